"""The disk tier: kills, torn files, full disks."""

import errno
import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Literal

import numpy as np
import pytest
from awrl_pixelstore import (
    DiskConfig,
    DiskTierError,
    PixelNotFound,
    PixelStoreConfig,
    PixelStoreCore,
    PixelStoreFull,
)
from awrl_pixelstore.disk import LOCK_ATTEMPTS, DiskTier, write_file
from numpy.typing import NDArray

MakeArray = Callable[..., NDArray[np.uint8]]
Mode = Literal["write_through", "write_behind"]
SIZE = 8 * 6 * 3


def make_config(
    root: Path, mode: Mode = "write_through", *, memory: int = 10, disk: int = 100
) -> PixelStoreConfig:
    return PixelStoreConfig(
        max_bytes=memory * SIZE, disk=DiskConfig(root=str(root), max_bytes=disk * SIZE, mode=mode)
    )


class FailingWriter:
    """Writes files until told to fail with an error number."""

    def __init__(self) -> None:
        self.error: int | None = None

    def __call__(self, path: Path, parts: Sequence[bytes], is_synced: bool) -> None:
        if self.error is not None:
            raise OSError(self.error, os.strerror(self.error))
        write_file(path, parts, is_synced)


def make_core(
    config: PixelStoreConfig, writer: FailingWriter | None = None
) -> tuple[PixelStoreCore, DiskTier]:
    assert config.disk is not None
    disk = DiskTier(config.disk, run_id="local", shard=0, writer=writer or write_file)
    return PixelStoreCore(config, disk=disk), disk


def image_files(root: Path) -> list[Path]:
    return sorted(root.rglob("*.px"))


KILLED = """
    import os, signal, sys
    import numpy as np
    from awrl_pixelstore import DiskConfig, PixelStoreConfig, PixelStoreCore

    root, mode = sys.argv[1:]
    disk = DiskConfig(root=root, max_bytes=2**20, mode=mode)
    core = PixelStoreCore(PixelStoreConfig(disk=disk))
    images = [np.full((4, 4, 3), number, np.uint8) for number in range(5)]
    keys = core.put_many(images, trajectory_id="a")
    core.acquire("b", keys[:2])
    core.put(images[0], trajectory_id="gone")
    core.release("gone")
    if mode == "write_behind":
        core.flush(3)
    print(*keys, flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.parametrize(("mode", "num_kept"), [("write_through", 5), ("write_behind", 3)])
def test_a_killed_process_loses_nothing_that_was_written(
    tmp_path: Path, mode: Mode, num_kept: int
) -> None:
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(KILLED), str(tmp_path), mode],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == -signal.SIGKILL, done.stderr
    keys = done.stdout.split()
    disk = DiskConfig(root=str(tmp_path), max_bytes=2**20, mode=mode)
    core = PixelStoreCore(PixelStoreConfig(disk=disk))
    assert core.missing(keys) == keys[num_kept:]
    assert core.statistics().num_lost == 5 - num_kept
    for number, image in enumerate(core.get_many(keys[:num_kept])):
        np.testing.assert_array_equal(image, np.full((4, 4, 3), number, np.uint8))
    assert [info.num_references for info in core.describe(keys[:3])] == [2, 2, 1]
    core.release("a")
    assert core.missing(keys) == keys[2:]
    core.release("b")
    assert core.statistics().num_entries == 0
    assert image_files(tmp_path) == []


def test_memory_stays_bounded_and_reads_come_back_from_disk(
    tmp_path: Path, make_array: MakeArray
) -> None:
    core = PixelStoreCore(make_config(tmp_path, memory=2, disk=6))
    images = [make_array(seed) for seed in range(6)]
    keys = [core.put(image, trajectory_id="a") for image in images]
    assert core.statistics().num_memory_bytes == 2 * SIZE
    for image, got in zip(images, core.get_many(keys), strict=True):
        np.testing.assert_array_equal(got, image)
    statistics = core.statistics()
    assert statistics.num_disk_hits >= 4
    assert statistics.num_disk_hits + statistics.num_memory_hits == 6
    assert statistics.num_memory_bytes == 2 * SIZE
    with pytest.raises(PixelStoreFull, match=f"disk budget of {6 * SIZE} bytes") as caught:
        core.put(make_array(9), trajectory_id="b")
    assert caught.value.tier == "disk"


@pytest.mark.parametrize("mode", ["write_through", "write_behind"])
def test_a_batch_larger_than_the_memory_goes_to_disk(
    tmp_path: Path, make_array: MakeArray, mode: Mode
) -> None:
    core = PixelStoreCore(make_config(tmp_path, mode, memory=2))
    images = [make_array(seed) for seed in range(5)]
    keys = core.put_many(images, trajectory_id="a")
    assert len(image_files(tmp_path)) == 5
    assert core.statistics().num_memory_bytes <= 2 * SIZE
    for image, got in zip(images, core.get_many(keys), strict=True):
        np.testing.assert_array_equal(got, image)


def test_writing_behind_makes_room_by_writing(tmp_path: Path, make_array: MakeArray) -> None:
    core = PixelStoreCore(make_config(tmp_path, "write_behind", memory=2))
    core.put_many([make_array(0), make_array(1)], trajectory_id="a")
    assert image_files(tmp_path) == []
    core.put(make_array(2), trajectory_id="a")
    assert len(image_files(tmp_path)) == 1
    assert core.flush() == 0
    assert len(image_files(tmp_path)) == 3


@pytest.mark.parametrize("mode", ["write_through", "write_behind"])
@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_a_full_disk_refuses_the_put_and_the_store_goes_on(
    tmp_path: Path, make_array: MakeArray, mode: Mode, number: int
) -> None:
    writer = FailingWriter()
    core, _ = make_core(make_config(tmp_path, mode, memory=2), writer)
    held = core.put_many([make_array(0), make_array(1)], trajectory_id="a")
    writer.error = number
    with pytest.raises(PixelStoreFull, match=f"file system: {os.strerror(number)}"):
        core.put_many([make_array(2)], trajectory_id="b")
    statistics = core.statistics()
    assert (statistics.num_entries, statistics.num_trajectories) == (2, 1)
    assert (statistics.num_disk_errors, statistics.num_refused) == (1, 1)
    np.testing.assert_array_equal(core.get(held[0]), make_array(0))
    core.release("a")
    writer.error = None
    core.put(make_array(2), trajectory_id="b")
    core.flush()
    assert len(image_files(tmp_path)) == 1


def test_another_disk_error_is_named_and_changes_nothing(
    tmp_path: Path, make_array: MakeArray
) -> None:
    writer = FailingWriter()
    core, _ = make_core(make_config(tmp_path), writer)
    writer.error = errno.EIO
    with pytest.raises(DiskTierError, match="disk tier of shard 0 must answer, got"):
        core.put(make_array(), trajectory_id="a")
    assert core.statistics().num_entries == 0
    assert core.statistics().num_disk_bytes == 0


def test_a_put_that_fails_half_way_leaves_no_file(tmp_path: Path, make_array: MakeArray) -> None:
    writer = FailingWriter()
    written: list[Path] = []

    class ThirdFails(FailingWriter):
        def __call__(self, path: Path, parts: Sequence[bytes], is_synced: bool) -> None:
            writer.error = errno.ENOSPC if len(written) == 2 else None
            writer(path, parts, is_synced)
            written.append(path)

    core, _ = make_core(make_config(tmp_path), ThirdFails())
    with pytest.raises(PixelStoreFull):
        core.put_many([make_array(seed) for seed in range(4)], trajectory_id="a")
    assert len(written) == 2
    assert image_files(tmp_path) == []
    assert core.statistics().num_disk_bytes == 0


def test_a_damaged_file_is_lost_and_said_so(tmp_path: Path, make_array: MakeArray) -> None:
    core, disk = make_core(make_config(tmp_path))
    keys = core.put_many([make_array(seed) for seed in range(3)], trajectory_id="a")
    disk.close()
    damaged, cut = (next(tmp_path.rglob(f"{key[-32:]}.px")) for key in keys[:2])
    data = bytearray(damaged.read_bytes())
    data[-1] ^= 1
    damaged.write_bytes(data)
    cut.write_bytes(cut.read_bytes()[:-1])
    core = PixelStoreCore(make_config(tmp_path))
    assert core.missing(keys) == [keys[1]]
    with pytest.raises(PixelNotFound) as caught:
        core.get_many(keys)
    assert caught.value.keys == (keys[0], keys[1])
    assert core.missing(keys) == keys[:2]
    assert core.statistics().num_lost == 2
    assert core.release("a") == SIZE
    assert core.put(make_array(0), trajectory_id="b") == keys[0]
    np.testing.assert_array_equal(core.get(keys[0]), make_array(0))


def test_a_torn_journal_line_and_stray_files_are_cleared(
    tmp_path: Path, make_array: MakeArray
) -> None:
    core, disk = make_core(make_config(tmp_path))
    keys = [core.put(make_array(seed), trajectory_id=f"t{seed}") for seed in range(2)]
    disk.close()
    (journal,) = tmp_path.rglob("leases.journal")
    journal.write_bytes(journal.read_bytes()[:-3])
    stray = image_files(tmp_path)[0].with_name("f" * 32 + ".px")
    stray.write_bytes(b"half")
    stray.with_suffix(".tmp").write_bytes(b"half")
    core = PixelStoreCore(make_config(tmp_path))
    assert core.missing(keys) == [keys[1]]
    assert [path.stem for path in image_files(tmp_path)] == [keys[0][-32:]]
    assert list(tmp_path.rglob("*.tmp")) == []


def test_the_journal_is_rewritten_when_long(tmp_path: Path, make_array: MakeArray) -> None:
    core, disk = make_core(make_config(tmp_path))
    key = core.put(make_array(), trajectory_id="kept")
    for number in range(3000):
        core.acquire(f"t{number}", [key])
        core.release(f"t{number}")
    (journal,) = tmp_path.rglob("leases.journal")
    assert len(journal.read_bytes().splitlines()) < 4200
    disk.close()
    core = PixelStoreCore(make_config(tmp_path))
    assert core.describe([key])[0].num_references == 1
    assert len(journal.read_bytes().splitlines()) == 1


def test_a_folder_serves_one_store_at_a_time(tmp_path: Path) -> None:
    core, disk = make_core(make_config(tmp_path))
    pauses: list[float] = []
    with pytest.raises(DiskTierError, match="that no other store uses"):
        DiskTier(disk.config, run_id="local", shard=0, sleep=pauses.append)
    assert len(pauses) == LOCK_ATTEMPTS - 1
    DiskTier(disk.config, run_id="local", shard=1).close()
    core.close()
    assert not image_files(tmp_path)


def test_an_unusable_root_is_refused_at_start(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(DiskTierError, match=r"disk\.root must be a writable folder"):
        PixelStoreCore(make_config(tmp_path / "file"))


@pytest.mark.parametrize("is_kept", [True, False])
def test_close_keeps_or_removes_the_folder(
    tmp_path: Path, make_array: MakeArray, is_kept: bool
) -> None:
    core = PixelStoreCore(make_config(tmp_path, "write_behind"))
    key = core.put(make_array(), trajectory_id="a")
    core.close(is_disk_kept=is_kept)
    again = PixelStoreCore(make_config(tmp_path, "write_behind"))
    assert again.missing([key]) == ([] if is_kept else [key])


def test_images_are_synced_when_asked(tmp_path: Path, make_array: MakeArray) -> None:
    disk = DiskConfig(root=str(tmp_path), max_bytes=SIZE, is_synced=True)
    core = PixelStoreCore(PixelStoreConfig(disk=disk))
    key = core.put(make_array(), trajectory_id="a")
    np.testing.assert_array_equal(core.get(key), make_array())
