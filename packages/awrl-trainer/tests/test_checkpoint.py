from __future__ import annotations

import shutil
import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType

import pytest
from awrl_trainer import (
    ActorConfig,
    CheckpointError,
    FSDPActor,
    OptimizerConfig,
    SnapshotWriter,
    collate_text,
    latest_complete_checkpoint,
)
from awrl_trainer.testing import TinyPolicy
from awrl_trainer.weights.snapshot import complete_checkpoints


def make_actor(num_blocks: int = 2) -> FSDPActor:
    config = ActorConfig(optimizer=OptimizerConfig(lr=1e-2))
    return FSDPActor(TinyPolicy(num_blocks=num_blocks), config, collate=collate_text)


WRITES = {"open", "os.mkdir", "os.rename", "os.remove", "os.rmdir", "shutil.rmtree"}
observers: list[Callable[[], None]] = []


def audit(event: str, _: tuple[object, ...]) -> None:
    if observers and event in WRITES:
        observer = observers.pop()
        observer()
        observers.append(observer)


sys.addaudithook(audit)


@contextmanager
def kept_before_each_write(root: Path, states: Path) -> Generator[None]:
    """Copy what lies below `root` before each change to any file: what a kill would leave there."""

    def keep() -> None:
        shutil.copytree(root, states / str(len(list(states.iterdir()))))

    states.mkdir()
    observers.append(keep)
    try:
        yield
    finally:
        observers.clear()


def test_a_kill_between_any_two_writes_leaves_a_checkpoint_to_resume_from(
    tmp_path: Path, programs: ModuleType
) -> None:
    root, states = tmp_path / "root", tmp_path / "states"
    actor = make_actor()
    actor.save(root, extra={"cursor": 0})
    with kept_before_each_write(root, states):
        actor.save(root, keep=1, extra={"cursor": 1})
        actor.update(programs.make_rows(2))
        actor.save(root, keep=1, extra={"cursor": 2})
    seen: set[tuple[int, int]] = set()
    reader = make_actor()
    for state in states.iterdir():
        path = latest_complete_checkpoint(state)
        assert path is not None, sorted(entry.name for entry in state.iterdir())
        extra = reader.load(path)
        seen.add((reader.version, extra["cursor"]))
    assert len(list(states.iterdir())) > 20
    assert seen == {(0, 0), (0, 1), (1, 2)}


def test_a_kill_between_any_two_writes_leaves_a_snapshot_to_load(tmp_path: Path) -> None:
    root, states = tmp_path / "root", tmp_path / "states"
    publisher, actor = SnapshotWriter(root, keep=1), make_actor()
    publisher.write(actor.sender.named_full_tensors(), 1)
    with kept_before_each_write(root, states):
        publisher.write(actor.sender.named_full_tensors(), 2)
    newest = [latest_complete_checkpoint(state) for state in states.iterdir()]
    assert {path.name for path in newest if path is not None} == {"version_1", "version_2"}
    assert None not in newest


def test_saving_the_same_version_twice_keeps_the_newer_extra(tmp_path: Path) -> None:
    actor = make_actor()
    for cursor in (1, 2):
        path = actor.save(tmp_path, extra={"cursor": cursor})
    assert [entry.name for entry in tmp_path.iterdir()] == ["version_0"]
    assert make_actor().load(path) == {"cursor": 2}


def test_a_crash_while_a_version_is_replaced_leaves_a_whole_one(tmp_path: Path) -> None:
    actor = make_actor()
    path = actor.save(tmp_path, extra={"cursor": 1})
    retired = path.rename(tmp_path / "retired_version_0")
    assert latest_complete_checkpoint(tmp_path) == retired
    again = actor.save(tmp_path, extra={"cursor": 2})
    assert complete_checkpoints(tmp_path) == [again]


def test_a_value_that_json_cannot_hold_leaves_the_previous_one(tmp_path: Path) -> None:
    actor = make_actor()
    path = actor.save(tmp_path)
    with pytest.raises(TypeError):
        actor.save(tmp_path, extra={"cursor": object()})
    assert latest_complete_checkpoint(tmp_path) == path
    assert [entry.name for entry in tmp_path.iterdir()] == ["version_0"]


def test_retention_keeps_the_newest(tmp_path: Path, programs: ModuleType) -> None:
    actor = make_actor()
    for seed in range(3):
        actor.save(tmp_path, keep=2)
        actor.update(programs.make_rows(2, seed=seed))
    assert [path.name for path in complete_checkpoints(tmp_path)] == ["version_1", "version_2"]


def test_another_model_and_half_a_checkpoint_are_refused(tmp_path: Path) -> None:
    path = make_actor(num_blocks=1).save(tmp_path)
    with pytest.raises(CheckpointError, match="must belong to this model"):
        make_actor(num_blocks=3).load(path)
    (path / "trainer.json").unlink()
    with pytest.raises(CheckpointError, match="checkpoint must be complete"):
        make_actor(num_blocks=1).load(path)
