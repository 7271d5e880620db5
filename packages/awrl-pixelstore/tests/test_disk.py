"""The disk tier: kills, damage, full disks."""

from __future__ import annotations

import errno
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from awrl_pixelstore import (
    PixelNotFound,
    PixelStoreConfig,
    PixelStoreCore,
    PixelStoreFull,
    PixelStoreUnavailable,
)
from awrl_pixelstore import disk as disk_module
from awrl_pixelstore.disk import DATABASE, DiskTier
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

MakeArray = Callable[..., NDArray[np.uint8]]
SIZE = 8 * 6 * 3


def make_config(root: Path, *, memory: int = 10, disk: int = 100) -> PixelStoreConfig:
    return PixelStoreConfig(max_bytes=memory * SIZE, disk_dir=str(root), max_disk_bytes=disk * SIZE)


def image_files(root: Path) -> list[Path]:
    return sorted(root.rglob("px-*"))


def run_killed(program: str, *arguments: str) -> str:
    """Return what a program printed that then killed itself."""
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program), *arguments],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == -signal.SIGKILL, done.stderr
    return done.stdout


class Disk:
    """A disk that refuses writes, or removals too, while it is told an error number of SQLite."""

    def __init__(self) -> None:
        self.refuses_rows: int | None = None

    def connect(self, path: Path) -> sqlite3.Connection:
        disk = self

        class Connection(sqlite3.Connection):
            def executemany(self, sql: str, parameters: object, /) -> sqlite3.Cursor:
                if disk.refuses_rows is not None:
                    error = sqlite3.OperationalError("refused")
                    error.sqlite_errorcode = disk.refuses_rows
                    raise error
                return super().executemany(sql, parameters)  # pyright: ignore[reportArgumentType]

        return sqlite3.connect(path, factory=Connection)


KILLED = """
    import os, signal, sys
    import numpy as np
    from awrl_pixelstore import PixelStoreConfig, PixelStoreCore

    core = PixelStoreCore(PixelStoreConfig(disk_dir=sys.argv[1]))
    images = [np.full((4, 4, 3), number, np.uint8) for number in range(5)]
    keys = core.put_many(images, trajectory_id="a")
    core.put_many(images[:2], trajectory_id="b")
    core.put(images[0], trajectory_id="gone")
    core.release("gone")
    print(*keys, flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_killed_process_loses_nothing(tmp_path: Path) -> None:
    keys = run_killed(KILLED, str(tmp_path)).split()
    core = PixelStoreCore(PixelStoreConfig(disk_dir=str(tmp_path)))
    assert core.missing(keys) == []
    assert core.statistics().num_lost == 0
    for number, image in enumerate(core.get_many(keys)):
        np.testing.assert_array_equal(image, np.full((4, 4, 3), number, np.uint8))
    assert core.statistics().num_references == 7
    core.release("a")
    assert core.missing(keys) == keys[2:]
    core.release("b")
    assert core.statistics().num_entries == 0
    assert image_files(tmp_path) == []


def test_a_process_killed_in_the_middle_of_a_put_leaves_nothing_of_it(tmp_path: Path) -> None:
    half_way = """
        import os, signal, sqlite3, sys
        import numpy as np
        from pathlib import Path
        from awrl_pixelstore import PixelStoreConfig, PixelStoreCore
        from awrl_pixelstore.disk import DiskTier

        class Connection(sqlite3.Connection):
            def executemany(self, sql, rows):
                if "INTO lease" in sql and rows[0][0] == "half":
                    os.kill(os.getpid(), signal.SIGKILL)
                return super().executemany(sql, rows)

        folder = Path(sys.argv[1]) / "local" / "shard-0"
        disk = DiskTier(folder, connect=lambda path: sqlite3.connect(path, factory=Connection))
        core = PixelStoreCore(PixelStoreConfig(disk_dir=sys.argv[1]), disk=disk)
        images = [np.full((4, 4, 3), number, np.uint8) for number in range(3)]
        print(core.put(images[0], trajectory_id="whole"), flush=True)
        core.put_many(images, trajectory_id="half")
    """
    whole = run_killed(half_way, str(tmp_path)).split()
    assert len(image_files(tmp_path)) == 3
    core = PixelStoreCore(PixelStoreConfig(disk_dir=str(tmp_path)))
    assert core.missing(whole) == []
    assert [path.name for path in image_files(tmp_path)] == whole
    assert (core.statistics().num_references, core.statistics().num_lost) == (1, 0)


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


def test_a_batch_and_an_image_larger_than_the_memory_go_to_disk(
    tmp_path: Path, make_array: MakeArray
) -> None:
    core = PixelStoreCore(make_config(tmp_path, memory=2))
    images = [make_array(seed) for seed in range(5)] + [make_array(9, (30, 30, 3))]
    keys = core.put_many(images, trajectory_id="a")
    assert len(image_files(tmp_path)) == 6
    assert core.statistics().num_memory_bytes == 2 * SIZE
    for image, got in zip(images, core.get_many(keys), strict=True):
        np.testing.assert_array_equal(got, image)


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_a_disk_too_full_for_an_image_refuses_the_put_whole_and_the_store_goes_on(
    tmp_path: Path, make_array: MakeArray, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    core = PixelStoreCore(make_config(tmp_path, memory=2))
    held = core.put_many([make_array(0), make_array(1)], trajectory_id="a")
    write = Path.write_bytes
    written: list[Path] = []

    def fail_at_the_third(path: Path, data: bytes) -> int:
        if len(written) == 2:
            raise OSError(number, os.strerror(number))
        written.append(path)
        return write(path, data)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "write_bytes", fail_at_the_third)
        with pytest.raises(PixelStoreFull, match=f"file system: .*{os.strerror(number)}"):
            core.put_many([make_array(seed) for seed in range(2, 6)], trajectory_id="b")
    assert [path.name for path in image_files(tmp_path)] == sorted(held)
    statistics = core.statistics()
    assert (statistics.num_entries, statistics.num_trajectories) == (2, 1)
    assert (statistics.num_disk_errors, statistics.num_refused) == (1, 4)
    np.testing.assert_array_equal(core.get_many(held)[0], make_array(0))
    core.put(make_array(2), trajectory_id="b")
    assert len(image_files(tmp_path)) == 3


@pytest.mark.parametrize("number", [sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR_WRITE])
def test_a_disk_too_full_for_a_row_refuses_the_put_whole(
    tmp_path: Path, make_array: MakeArray, number: int
) -> None:
    disk = Disk()
    core = PixelStoreCore(make_config(tmp_path), disk=DiskTier(tmp_path, disk.connect))
    disk.refuses_rows = number
    with pytest.raises(PixelStoreFull, match="file system: refused"):
        core.put(make_array(), trajectory_id="a")
    assert (core.statistics().num_entries, image_files(tmp_path)) == (0, [])
    disk.refuses_rows = None
    core.put(make_array(), trajectory_id="a")


def test_another_disk_error_is_named_and_changes_nothing(
    tmp_path: Path, make_array: MakeArray
) -> None:
    disk = Disk()
    core = PixelStoreCore(make_config(tmp_path), disk=DiskTier(tmp_path, disk.connect))
    disk.refuses_rows = sqlite3.SQLITE_IOERR_FSYNC
    with pytest.raises(PixelStoreUnavailable, match="shard 0 must answer, got a disk that fails"):
        core.put(make_array(), trajectory_id="a")
    assert (core.statistics().num_entries, image_files(tmp_path)) == (0, [])


def test_what_a_full_disk_could_not_note_as_released_is_noted_later(
    tmp_path: Path, make_array: MakeArray
) -> None:
    disk = Disk()
    tier = DiskTier(tmp_path, disk.connect)
    core = PixelStoreCore(make_config(tmp_path), disk=tier)
    keys = [core.put(make_array(seed), trajectory_id=f"t{seed}") for seed in range(4)]
    disk.refuses_rows = sqlite3.SQLITE_FULL
    assert core.release("t0", "t1") == 2 * SIZE
    assert core.release("t2") == SIZE
    assert core.statistics().num_disk_errors == 2
    assert core.missing(keys) == keys[:3]
    assert [path.name for path in image_files(tmp_path)] == keys[3:]
    disk.refuses_rows = None
    again = core.put(make_array(1), trajectory_id="t0")
    tier.close()
    core = PixelStoreCore(make_config(tmp_path), disk=DiskTier(tmp_path))
    assert core.missing(keys) == [keys[0], keys[2]]
    assert again == keys[1]
    assert (core.statistics().num_references, core.statistics().num_lost) == (2, 0)


FULL = """
    import os, signal, sys
    from pathlib import Path
    import numpy as np
    from awrl_pixelstore import PixelStoreConfig, PixelStoreCore, PixelStoreFull

    config = PixelStoreConfig(max_bytes=1, disk_dir=sys.argv[1])
    image = lambda seed: np.random.default_rng(seed).integers(0, 256, (200, 200, 3), np.uint8)
    if os.fork() == 0:
        core, seed = PixelStoreCore(config), 0
        try:
            while True:
                core.put(image(seed), trajectory_id=f"t{seed}")
                seed += 1
        except PixelStoreFull:
            Path(sys.argv[2]).write_text(str(seed))
        try:
            with open(sys.argv[1] + "/filler", "wb", buffering=0) as file:
                while True:
                    file.write(bytes(512))
        except OSError:
            os.kill(os.getpid(), signal.SIGKILL)
    os.wait()
    count = int(Path(sys.argv[2]).read_text())
    core = PixelStoreCore(config)
    assert core.statistics().num_entries == count > 10, count
    assert core.statistics().num_lost == 0
    try:
        core.put(image(1000), trajectory_id="new")
        raise SystemExit("a full disk took a put")
    except PixelStoreFull:
        pass
    assert core.release("t0", "t1") == 240_000
    key = core.put(image(1000), trajectory_id="new")
    assert (core.get_many([key])[0] == image(1000)).all()
    keys = [core.put(image(seed), trajectory_id=f"t{seed}") for seed in range(2, count)]
    assert core.missing(keys) == []
    assert core.statistics().num_entries == count - 1
    os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.skipif(shutil.which("unshare") is None, reason="no tool to mount a small disk")
def test_a_shard_that_restarts_on_a_full_disk_serves_all_and_accepts_again_once_room_is_made(
    tmp_path: Path,
) -> None:
    (tmp_path / "program.py").write_text(textwrap.dedent(FULL))
    (tmp_path / "disk").mkdir()
    mount = f"mount -t tmpfs -o size=4m none {tmp_path}/disk"
    run = f"exec {sys.executable} {tmp_path}/program.py {tmp_path}/disk {tmp_path}/count"
    if subprocess.run(["unshare", "-rm", "sh", "-c", mount], check=False).returncode:
        pytest.skip("this user may not mount a small disk")
    done = subprocess.run(
        ["unshare", "-rm", "sh", "-c", f"{mount} && {run}"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == -signal.SIGKILL, done.stderr


@pytest.mark.parametrize("is_restarted", [False, True])
@pytest.mark.parametrize("how", ["deleted", "damaged", "cut", "replaced"])
def test_missing_names_what_the_disk_lost_before_a_get_does(
    tmp_path: Path, make_array: MakeArray, how: str, is_restarted: bool
) -> None:
    tier = DiskTier(tmp_path)
    config = make_config(tmp_path, memory=1)
    core = PixelStoreCore(config, disk=tier)
    keys = core.put_many([make_array(seed) for seed in range(3)], trajectory_id="a")
    if is_restarted:
        tier.close()
    path = tmp_path / "images" / keys[1]
    data = path.read_bytes()
    if how == "deleted":
        path.unlink()
    else:
        bad = {"damaged": bytes([data[0] ^ 1]) + data[1:], "cut": data[:-1], "replaced": b""}
        path.write_bytes(bad[how])
    if is_restarted:
        core = PixelStoreCore(config, disk=DiskTier(tmp_path))
    assert core.missing(keys) == [keys[1]]
    with pytest.raises(PixelNotFound) as caught:
        core.get_many(keys)
    assert caught.value.keys == (keys[1],)
    assert core.statistics().num_lost == 1
    assert core.statistics().num_references == 2
    assert core.put(make_array(1), trajectory_id="b") == keys[1]
    np.testing.assert_array_equal(core.get_many(keys)[1], make_array(1))
    assert core.release("a", "b") == 3 * SIZE
    assert image_files(tmp_path) == []


def test_missing_names_what_the_database_lost(tmp_path: Path, make_array: MakeArray) -> None:
    tier = DiskTier(tmp_path)
    core = PixelStoreCore(make_config(tmp_path), disk=tier)
    keys = core.put_many([make_array(seed) for seed in range(3)], trajectory_id="a")
    tier.close()
    db = sqlite3.connect(tmp_path / DATABASE)
    db.execute("DELETE FROM image WHERE key = ?", (keys[0],))
    db.commit()
    db.execute("DELETE FROM lease WHERE key = ?", (keys[2],))
    db.commit()
    db.close()
    core = PixelStoreCore(make_config(tmp_path), disk=DiskTier(tmp_path))
    assert core.missing(keys) == [keys[0], keys[2]]
    assert [path.name for path in image_files(tmp_path)] == [keys[1]]
    assert core.statistics().num_lost == 1
    assert core.put_many([make_array(seed) for seed in range(3)], trajectory_id="b") == keys
    assert core.missing(keys) == []


@pytest.mark.parametrize("how", ["overwritten", "cut"])
def test_a_damaged_database_is_replaced_and_all_of_it_is_missing(
    tmp_path: Path, make_array: MakeArray, how: str
) -> None:
    tier = DiskTier(tmp_path)
    core = PixelStoreCore(make_config(tmp_path, disk=500), disk=tier)
    images = [make_array(seed) for seed in range(300)]
    keys = core.put_many(images, trajectory_id="a")
    tier.close()
    database = tmp_path / DATABASE
    data = database.read_bytes()
    database.write_bytes(b"x" * len(data) if how == "overwritten" else data[: len(data) // 2])
    core = PixelStoreCore(make_config(tmp_path, disk=500), disk=DiskTier(tmp_path))
    assert core.missing(keys) == keys
    assert image_files(tmp_path) == []
    assert core.put_many(images, trajectory_id="a") == keys
    assert core.missing(keys) == []


def test_a_folder_serves_one_store_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(disk_module, "LOCK_WAIT_S", 0.1)
    config = make_config(tmp_path)
    core = PixelStoreCore(config)
    with pytest.raises(PixelStoreUnavailable, match="that no other store uses"):
        PixelStoreCore(config)
    PixelStoreCore(config, shard=1).close()
    core.close()
    PixelStoreCore(config).close()
    assert not image_files(tmp_path)


def test_an_unusable_root_is_refused_at_start(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(PixelStoreUnavailable, match="disk_dir must be a writable folder"):
        PixelStoreCore(make_config(tmp_path / "file"))


@pytest.mark.parametrize("is_kept", [True, False])
def test_close_keeps_or_removes_the_folder(
    tmp_path: Path, make_array: MakeArray, is_kept: bool
) -> None:
    core = PixelStoreCore(make_config(tmp_path))
    key = core.put(make_array(), trajectory_id="a")
    core.close(is_disk_kept=is_kept)
    assert len(image_files(tmp_path)) == is_kept
    again = PixelStoreCore(make_config(tmp_path))
    assert again.missing([key]) == ([] if is_kept else [key])


@pytest.mark.parametrize("damage", [None, b"", bytes(SIZE)])
def test_a_put_stores_again_what_the_disk_lost_or_damaged(
    tmp_path: Path, make_array: MakeArray, damage: bytes | None
) -> None:
    core = PixelStoreCore(make_config(tmp_path, memory=1))
    key = core.put(make_array(0), trajectory_id="a")
    core.put(make_array(1), trajectory_id="a")  # takes its place in memory
    (file,) = (path for path in image_files(tmp_path) if path.name == key)
    file.unlink() if damage is None else file.write_bytes(damage)
    assert core.put(make_array(0), trajectory_id="b") == key
    core.put(make_array(2), trajectory_id="b")
    assert core.missing([key]) == []


def test_a_left_over_that_cannot_be_removed_keeps_nobody_from_the_images(
    tmp_path: Path, make_array: MakeArray
) -> None:
    core = PixelStoreCore(make_config(tmp_path))
    key = core.put(make_array(), trajectory_id="a")
    core.close(is_disk_kept=True)
    (image_files(tmp_path)[0].parent / "lost+found").mkdir()
    assert PixelStoreCore(make_config(tmp_path)).missing([key]) == []


@settings(max_examples=40, deadline=None)
@given(name=st.text(st.characters(), max_size=5) | st.integers() | st.binary(max_size=3))
def test_a_name_that_is_taken_holds_its_image_over_a_restart_until_it_is_released(
    name: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    root = tmp_path_factory.mktemp("names")
    core, image = PixelStoreCore(make_config(root)), np.zeros((1, 1, 3), np.uint8)
    try:
        key = core.put(image, trajectory_id=name)
    except (TypeError, ValueError):
        assert (core.statistics().num_entries, image_files(root)) == (0, [])
        assert core.release(name) == 0
        return
    core.close(is_disk_kept=True)
    core = PixelStoreCore(make_config(root))
    assert core.missing([key]) == []
    assert core.release(name) == 3
    core.close()
