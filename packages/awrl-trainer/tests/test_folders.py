"""Folders that appear as a whole: kills, left-overs, retention."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from itertools import count
from pathlib import Path

import pytest
from awrl_trainer import folders
from awrl_trainer.folders import (
    COMPLETE_MARK,
    complete_checkpoints,
    incomplete_checkpoints,
    latest_complete_checkpoint,
    mark_complete,
    new_folder,
    remove_old,
    why_damaged,
    why_incomplete,
)
from hypothesis import given, settings
from hypothesis import strategies as st

BeforeEachChange = Callable[[Callable[[], None]], AbstractContextManager[None]]


def write(root: Path, version: int, content: str = "", keep: int | None = None) -> Path:
    target = root / f"version_{version}"
    with new_folder(target) as folder:
        (folder / "weights").write_text(content)
        (folder / "parts").mkdir()
        (folder / "parts" / "1").write_text(content)
    remove_old(target, keep)
    return target


def names(root: Path) -> list[str]:
    return sorted(path.name for path in root.iterdir())


@settings(max_examples=60, deadline=None)
@given(
    writes=st.lists(
        st.tuples(st.integers(0, 2), st.sampled_from([1, 2, None]), st.integers(0, 40)),
        min_size=1,
        max_size=4,
    )
)
def test_kills_one_after_another_never_cost_the_last_complete_one(
    tmp_path_factory: pytest.TempPathFactory,
    before_each_change: BeforeEachChange,
    writes: list[tuple[int, int | None, int]],
) -> None:
    """Each write is cut before one of its changes; the next one finds what the kill left."""
    base = tmp_path_factory.mktemp("kills")
    root = base / "0"
    write(root, 1, "first")
    contents = {"first"}
    for index, (version, keep, cut) in enumerate(writes, 1):
        left, seen = base / str(index), count()

        def kill(
            left: Path = left, root: Path = root, cut: int = cut, seen: count[int] = seen
        ) -> None:
            if next(seen) == cut:
                shutil.copytree(root, left)

        contents.add(f"write {index}")
        with before_each_change(kill):
            write(root, version, f"write {index}", keep)
        root = left if left.exists() else root
        found = latest_complete_checkpoint(root)
        assert found is not None, names(root)
        assert (found / "weights").read_text() in contents
        assert (found / "parts" / "1").read_text() == (found / "weights").read_text()
    last = write(root, 3, "last", keep=1)
    assert names(root) == [last.name]


def test_a_write_that_fails_leaves_nothing_and_the_one_before(tmp_path: Path) -> None:
    before = write(tmp_path, 1, "before")

    def fail(error: BaseException) -> None:
        with new_folder(before) as folder:
            (folder / "weights").write_text("after")
            raise error

    for error in (OSError(28, "No space left on device"), KeyboardInterrupt()):
        with pytest.raises(type(error)):
            fail(error)
        assert names(tmp_path) == ["version_1"]
        assert (before / "weights").read_text() == "before"


WRITER = """
import runpy, sys
from pathlib import Path
new_folder = runpy.run_path(sys.argv[2])["new_folder"]  # Without torch, for speed.
with new_folder(Path(sys.argv[1])) as folder:
    (folder / "weights").write_text("theirs")
    print("writing", flush=True)
    sys.stdin.readline()
"""


def start_writer(target: Path) -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [sys.executable, "-c", WRITER, str(target), folders.__file__],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "writing\n"
    return process


def test_the_next_write_removes_what_a_killed_writer_left_and_nothing_of_a_living_one(
    tmp_path: Path,
) -> None:
    write(tmp_path, 1)
    process = start_writer(tmp_path / "version_2")
    write(tmp_path, 3)
    process.communicate("go on\n")
    assert names(tmp_path) == ["version_1", "version_2", "version_3"]
    process = start_writer(tmp_path / "version_4")
    os.kill(process.pid, signal.SIGKILL)
    process.communicate()
    for left_over in (".writing_7", ".writing_7_123", ".removing_version_0_0123abcd"):
        (tmp_path / left_over).mkdir()
        (tmp_path / left_over / "weights").write_text("half")
    (tmp_path / ".writing_notes").mkdir()
    write(tmp_path, 5)
    kept = [".writing_notes", "version_1", "version_2", "version_3", "version_5"]
    assert names(tmp_path) == kept


def test_what_is_not_complete_stays_where_it_is(tmp_path: Path) -> None:
    """Somebody may be copying it there."""
    copied = tmp_path / "version_1"
    copied.mkdir()
    for version in (2, 3):
        write(tmp_path, version, keep=1)
    assert names(tmp_path) == ["version_1", "version_3"]


def test_the_one_just_written_stays_beside_the_newest(tmp_path: Path) -> None:
    write(tmp_path, 125)
    written = write(tmp_path, 5, keep=1)
    assert complete_checkpoints(tmp_path) == [written, tmp_path / "version_125"]
    write(tmp_path, 126, keep=1)
    assert names(tmp_path) == ["version_126"]


@pytest.mark.parametrize("keep", [-1, -3, None])
def test_a_negative_number_and_none_keep_all(keep: int | None, tmp_path: Path) -> None:
    for version in (1, 2, 3):
        write(tmp_path, version, keep=keep)
    assert len(complete_checkpoints(tmp_path)) == 3


@pytest.mark.parametrize(
    ("existing", "newest"),
    [
        (["step_500", "step_2500"], "step_2500"),
        (["step_9000", "step_10000"], "step_10000"),
        (["125", "5"], "125"),
    ],
)
def test_newest_is_the_largest_number(existing: list[str], newest: str, tmp_path: Path) -> None:
    for name in existing:
        (tmp_path / name).mkdir()
        (tmp_path / name / "weights").write_text(name)
        mark_complete(tmp_path / name)
    assert latest_complete_checkpoint(tmp_path) == tmp_path / newest


def test_no_directory_holds_no_checkpoint(tmp_path: Path) -> None:
    assert latest_complete_checkpoint(tmp_path / "none") is None
    assert why_incomplete(tmp_path / "none") == "no such folder"


@pytest.mark.parametrize(
    "mark", ["", "{", "[]", "null", '{"files": 1}', '{"files": {"weights": "x"}}', "\ud800"]
)
def test_a_mark_that_cannot_be_read_is_none(mark: str, tmp_path: Path) -> None:
    path = write(tmp_path, 1)
    (path / COMPLETE_MARK).write_bytes(mark.encode("utf-8", "surrogatepass"))
    assert latest_complete_checkpoint(tmp_path) is None
    assert why_incomplete(path) is not None


def test_a_lack_and_a_damage_are_named(tmp_path: Path) -> None:
    path = write(tmp_path, 1, "abc")
    assert why_damaged(path) is None
    (path / "weights").write_text("abd")
    assert why_incomplete(path) is None
    assert why_damaged(path) == "weights has another checksum than when it was written"
    (path / "weights").write_text("ab")
    assert why_incomplete(path) == "weights has 2 bytes instead of 3"
    (path / "weights").unlink()
    assert why_incomplete(path) == "no file weights"


def test_what_was_left_out_behind_the_newest_complete_one_is_told(tmp_path: Path) -> None:
    for version in (1, 2, 3, 4):
        write(tmp_path, version, "abc")
    for version in (1, 3, 4):
        (tmp_path / f"version_{version}" / "weights").unlink()
    assert incomplete_checkpoints(tmp_path) == {
        tmp_path / "version_4": "no file weights",
        tmp_path / "version_3": "no file weights",
    }
    assert incomplete_checkpoints(tmp_path / "none") == {}
