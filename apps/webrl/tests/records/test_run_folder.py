"""A run's folder: one process at a time, and what is there to go on from."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

import pytest
from webrl.errors import PreflightError, RunFailedError
from webrl.records.run_folder import RunEnd, RunFolders, read_end, write_end, write_whole


def test_a_folder_in_use_is_refused_by_name_of_its_user_and_free_again_afterwards(
    tmp_path: Path,
) -> None:
    folders = RunFolders(tmp_path / "run")
    with (
        folders.locked(),
        pytest.raises(PreflightError, match=f"must not be in use.*process {os.getpid()} on"),
        RunFolders(tmp_path / "run").locked(),
    ):
        pass
    with folders.locked():
        assert folders.root.is_dir()


def test_a_folder_that_can_not_be_made_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    folders = RunFolders(tmp_path / "file" / "run")
    with (
        pytest.raises(PreflightError, match="must be a folder that can be written"),
        folders.locked(),
    ):
        pass


def test_there_is_nothing_to_go_on_from_before_the_first_save(tmp_path: Path) -> None:
    with pytest.raises(RunFailedError, match=r"complete checkpoint .* got none.*start a new one"):
        RunFolders(tmp_path).newest_checkpoint()


def test_a_run_has_ended_only_once_it_says_so(tmp_path: Path) -> None:
    folders = RunFolders(tmp_path)
    assert read_end(folders) is None
    folders.end.write_text("{")
    assert read_end(folders) is None
    end = RunEnd(version=3, time_limit_s=None)
    write_end(folders, end)
    assert read_end(folders) == end


def test_a_file_that_can_not_be_replaced_stays_as_it_was(
    tmp_path: Path, full_disk: Callable[[int], AbstractContextManager[None]]
) -> None:
    path = tmp_path / "config.toml"
    write_whole(path, b"before")
    with full_disk(2), pytest.raises(PreflightError, match="must be writable"):
        write_whole(path, b"after")
    assert path.read_bytes() == b"before"
    assert list(tmp_path.iterdir()) == [path]
