"""A run's folder: one process at a time, and what is there to go on from."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

import pytest
from awrl_trainer import new_folder
from webrl.errors import PreflightError, RunFailedError
from webrl.records.run_folder import (
    RunEnd,
    RunFolders,
    read_end,
    unpack_state,
    write_end,
    write_whole,
)
from webrl.rollout.task_stream import TaskStream
from webrl.tasks import Task


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


def test_incomplete_checkpoints_are_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    folders = RunFolders(tmp_path)
    (folders.state / "version_4").mkdir(parents=True)
    with pytest.raises(RunFailedError, match=r"got none but .*version_4: no file .save_complete"):
        folders.newest_checkpoint()
    with new_folder(folders.state / "version_2"):
        pass
    assert folders.newest_checkpoint().name == "version_2"
    assert "left out: ['version_4: no file .save_complete']" in caplog.text


def test_later_policies_are_forgotten_and_folders_of_other_names_stay(tmp_path: Path) -> None:
    folders = RunFolders(tmp_path)
    for name in ("version_1", "version_3", "version_3_mine", "version_"):
        (folders.policies / name).mkdir(parents=True)
    folders.forget_later_weights(2)
    left = sorted(folder.name for folder in folders.policies.iterdir())
    assert left == ["version_", "version_1", "version_3_mine"]


@pytest.mark.parametrize("values", [{}, {"num_steps": "x"}, {"cursor": 11}])
def test_a_checkpoint_of_another_program_is_named(values: dict[str, object]) -> None:
    task = Task(suite="web", name="t", url="https://site.test/", goal="Go.", answer="x")
    stream = TaskStream([task], num_seeds=1, group_size=1, seed=0)
    with pytest.raises(RunFailedError, match="must hold the state of a run, got: "):
        unpack_state(values, 1, stream)


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
