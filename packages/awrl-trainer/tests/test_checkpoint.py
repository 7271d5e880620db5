from __future__ import annotations

import contextlib
import random
import resource
import shutil
from collections.abc import Callable, Generator
from contextlib import AbstractContextManager, contextmanager
from itertools import count
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from awrl_trainer import (
    ActorConfig,
    CheckpointError,
    FSDPActor,
    OptimizerConfig,
    SnapshotWriter,
    collate_text,
    latest_complete_checkpoint,
)
from awrl_trainer.folders import COMPLETE_MARK, complete_checkpoints, mark_complete
from awrl_trainer.testing import TinyPolicy
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_state_dict
from torch.distributed.checkpoint.state_dict_saver import save
from torch.distributed.tensor import DTensor

BeforeEachChange = Callable[[Callable[[], None]], AbstractContextManager[None]]


def make_actor(num_blocks: int = 2, frozen: tuple[str, ...] = (), **optimizer: Any) -> FSDPActor:
    torch.manual_seed(0)
    settings: dict[str, Any] = {"lr": 1e-2, **optimizer}
    config = ActorConfig(optimizer=OptimizerConfig(**settings), frozen_modules=frozen)
    return FSDPActor(TinyPolicy(num_blocks=num_blocks), config, collate=collate_text)


def state_of(actor: FSDPActor) -> dict[str, torch.Tensor]:
    """Return a copy of all that the next update depends on."""
    state: dict[str, torch.Tensor] = {
        f"weight {name}": p for name, p in actor.policy.named_parameters()
    }
    for name, parameter in actor.policy.named_parameters():
        for key, value in actor.optimizer.inner.state.get(parameter, {}).items():
            state[f"{key} {name}"] = value
    state["random"] = torch.get_rng_state()
    state["counts"] = torch.tensor([actor.version, actor.optimizer.num_steps])
    return {
        name: (value.full_tensor() if isinstance(value, DTensor) else value).detach().clone()
        for name, value in state.items()
    }


def assert_equal(left: dict[str, torch.Tensor], right: dict[str, torch.Tensor]) -> None:
    assert left.keys() == right.keys()
    assert [name for name in left if not torch.equal(left[name], right[name])] == []


def keep_state(root: Path, states: Path) -> None:
    """Copy what a kill would leave here."""
    shutil.copytree(root, states / str(len(list(states.iterdir()))))


def test_a_kill_between_any_two_writes_leaves_a_checkpoint_to_resume_from(
    tmp_path: Path, programs: ModuleType, before_each_change: BeforeEachChange
) -> None:
    root, states = tmp_path / "root", tmp_path / "states"
    actor = make_actor()
    actor.save(root, extra={"cursor": 0})
    states.mkdir()
    with before_each_change(lambda: keep_state(root, states)):
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


def test_a_kill_between_any_two_writes_leaves_a_snapshot_to_load(
    tmp_path: Path, before_each_change: BeforeEachChange
) -> None:
    root, states = tmp_path / "root", tmp_path / "states"
    publisher, actor = SnapshotWriter(root, keep=1), make_actor()
    publisher.write(actor.sender.named_full_tensors(), 1)
    states.mkdir()
    with before_each_change(lambda: keep_state(root, states)):
        publisher.write(actor.sender.named_full_tensors(), 2)
    newest = [latest_complete_checkpoint(state) for state in states.iterdir()]
    assert {path.name for path in newest if path is not None} == {"version_1", "version_2"}
    assert None not in newest


def test_a_save_in_the_background_holds_the_moment_it_was_started_at(
    tmp_path: Path, programs: ModuleType
) -> None:
    actor = make_actor()
    actor.update(programs.make_rows(2))
    before = state_of(actor)
    extra: dict[str, Any] = {"cursor": [1]}
    assert actor.start_save(tmp_path, extra=extra) >= 0
    extra["cursor"].append(2)
    actor.update(programs.make_rows(3))
    report = actor.finish_save()
    assert report is not None
    assert report.path is not None
    assert report.path == tmp_path / "version_1"
    assert report.num_bytes > 0
    assert actor.finish_save() is None
    reader = make_actor()
    assert reader.load(report.path) == {"cursor": [1]}
    assert_equal(state_of(reader), before)
    # What was staged when there was no optimizer state yet has no room for it.
    fresh = make_actor()
    fresh.start_save(tmp_path / "fresh")
    fresh.update(programs.make_rows(2))
    fresh.start_save(tmp_path / "fresh")
    assert latest_complete_checkpoint(tmp_path / "fresh") is not None
    report = fresh.finish_save()
    assert report is not None
    assert report.path is not None
    assert make_actor().load(report.path) == {}


def test_a_kill_during_a_save_in_the_background_leaves_a_checkpoint_to_resume_from(
    tmp_path: Path, programs: ModuleType, before_each_change: BeforeEachChange
) -> None:
    root, states = tmp_path / "root", tmp_path / "states"
    actor = make_actor()
    actor.save(root, extra={"cursor": 0})
    states.mkdir()
    with before_each_change(lambda: keep_state(root, states)):
        actor.update(programs.make_rows(2))
        actor.start_save(root, keep=1, extra={"cursor": 1})
        actor.update(programs.make_rows(2))
        actor.finish_save()
    seen: set[tuple[int, int]] = set()
    reader = make_actor()
    for state in states.iterdir():
        path = latest_complete_checkpoint(state)
        assert path is not None, sorted(entry.name for entry in state.iterdir())
        extra = reader.load(path)
        seen.add((reader.version, extra["cursor"]))
    assert len(list(states.iterdir())) > 10
    assert seen == {(0, 0), (1, 1)}


def test_a_save_in_the_background_that_fails_says_so_when_it_is_finished(tmp_path: Path) -> None:
    actor = make_actor()
    (tmp_path / "file").write_text("no folder")
    actor.start_save(tmp_path / "file" / "below")
    with pytest.raises(CheckpointError, match="must be writable below"):
        actor.finish_save()
    assert actor.finish_save() is None
    with pytest.raises(TypeError):
        actor.start_save(tmp_path, extra={"a": object()})
    with pytest.raises(ValueError, match="keep must be"):
        actor.start_save(tmp_path, keep=0)
    actor.start_save(tmp_path / "good")
    assert actor.finish_save() is not None


def test_saving_the_same_version_twice_keeps_the_newer_extra(tmp_path: Path) -> None:
    actor = make_actor()
    for cursor in (1, 2):
        path = actor.save(tmp_path, extra={"cursor": cursor})
    assert [entry.name for entry in tmp_path.iterdir()] == ["version_0"]
    assert make_actor().load(path) == {"cursor": 2}


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


@pytest.mark.parametrize("num_updates", [0, 1])
def test_saving_changes_nothing(num_updates: int, tmp_path: Path, programs: ModuleType) -> None:
    saving, other = make_actor(), make_actor()
    for seed in range(num_updates):
        for actor in (saving, other):
            actor.update(programs.make_rows(2, seed=seed))
    before = state_of(saving)
    path = saving.save(tmp_path)
    assert_equal(state_of(saving), before)
    loaded = make_actor()
    loaded.load(path)
    for actor in (saving, other, loaded):
        actor.update(programs.make_rows(2, seed=7))
    torch.set_rng_state(before["random"])
    assert_equal(state_of(saving), state_of(other))
    assert_equal(state_of(saving), state_of(loaded))


def test_a_parameter_that_never_had_a_gradient_is_saved_and_loaded(
    tmp_path: Path, programs: ModuleType, caplog: pytest.LogCaptureFixture
) -> None:
    class WithUnused(TinyPolicy):
        def __init__(self) -> None:
            super().__init__()
            self.visual = torch.nn.Linear(3, 3)

    def make() -> FSDPActor:
        torch.manual_seed(0)
        return FSDPActor(
            WithUnused(), ActorConfig(optimizer=OptimizerConfig(lr=1e-2)), collate=collate_text
        )

    actor, loaded = make(), make()
    actor.update(programs.make_rows(2))
    loaded.load(actor.save(tmp_path))
    assert_equal(state_of(actor), state_of(loaded))
    assert "starts at zero for 2 parameters that have none there, such as model.visual" in (
        caplog.text
    )


def test_a_frozen_part_can_be_trained_later_and_the_other_way_round(
    tmp_path: Path, programs: ModuleType, caplog: pytest.LogCaptureFixture
) -> None:
    part, rows = "blocks.0", programs.make_rows(2)
    frozen, trained = make_actor(frozen=(part,)), make_actor()
    for actor, root in ((frozen, tmp_path / "frozen"), (trained, tmp_path / "trained")):
        actor.update(rows)
        actor.save(root)
    thawed = make_actor()
    thawed.load(tmp_path / "frozen" / "version_1")
    assert_equal(state_of(thawed), state_of(frozen))
    assert "optimizer state starts at zero for 4 parameters" in caplog.text
    frozen = make_actor(frozen=(part,))
    frozen.load(tmp_path / "trained" / "version_1")
    assert "optimizer state of 4 parameters that have none here is left out" in caplog.text
    with_state = {name for name in state_of(frozen) if name.startswith("exp_avg ")}
    assert with_state
    assert not any(part in name for name in with_state)
    thawed.update(rows)
    frozen.update(rows)


@pytest.mark.parametrize(("before", "after"), [("adamw", "sgd"), ("sgd", "adamw")])
def test_another_optimizer_goes_on_with_the_weights(
    before: Any, after: Any, tmp_path: Path, programs: ModuleType
) -> None:
    actor, other = make_actor(kind=before), make_actor(kind=after)
    actor.update(programs.make_rows(2))
    other.load(actor.save(tmp_path))
    assert other.version == 1
    other.update(programs.make_rows(2))


def test_optimizer_settings_are_those_of_the_new_configuration(
    tmp_path: Path, programs: ModuleType, caplog: pytest.LogCaptureFixture
) -> None:
    actor = make_actor()
    actor.update(programs.make_rows(2))
    path = actor.save(tmp_path)
    make_actor().load(path)
    assert "other optimizer settings" not in caplog.text
    other = make_actor(weight_decay=0.3, betas=(0.8, 0.9), eps=1e-6, lr=0.5)
    other.load(path)
    group = other.optimizer.inner.param_groups[0]
    assert (group["weight_decay"], group["betas"], group["eps"]) == (0.3, (0.8, 0.9), 1e-6)
    assert "lr 0.01 -> 0.5, betas [0.9, 0.95] -> [0.8, 0.9], eps 1e-08 -> 1e-06, weight_decay" in (
        caplog.text
    )
    assert other.update(programs.make_rows(2)).metrics["optimizer/lr"] == 0.5


def test_a_checkpoint_of_torchs_own_layout_loads(tmp_path: Path, programs: ModuleType) -> None:
    """What earlier releases wrote."""
    actor, loaded = make_actor(), make_actor()
    actor.update(programs.make_rows(2))
    path = actor.save(tmp_path)
    model, optimizer = get_state_dict(
        actor.policy, actor.optimizer.inner, options=StateDictOptions(strict=True)
    )
    for file in path.glob("*.distcp"):
        file.unlink()
    save({"model": model, "optimizer": optimizer}, checkpoint_id=path)
    (path / "trainer.json").write_text('{"version": 1, "num_steps": 1, "extra": {}}')
    mark_complete(path)
    loaded.load(path)
    assert_equal(state_of(actor), state_of(loaded))


def no_folder(path: Path) -> None:
    shutil.rmtree(path)


def no_mark(path: Path) -> None:
    (path / COMPLETE_MARK).unlink()


def no_random_state(path: Path) -> None:
    (path / "random_0.pt").unlink()


def short_file(path: Path) -> None:
    with (path / "__0_0.distcp").open("r+b") as stream:
        stream.truncate(1000)


def zeros(path: Path) -> None:
    file = path / "__0_0.distcp"
    file.write_bytes(bytes(file.stat().st_size))


def only_sizes(path: Path) -> None:
    """Leave the mark of an earlier release."""
    mark = path / COMPLETE_MARK
    mark.write_text(mark.read_text().partition(', "crc32"')[0] + "}")


def zeros_without_checksum(path: Path) -> None:
    zeros(path)
    only_sizes(path)


def damaged_metadata(path: Path) -> None:
    file = path / ".metadata"
    file.write_bytes(bytes(file.stat().st_size))
    mark_complete(path)


def damaged_random_state(path: Path) -> None:
    torch.save({"cpu": torch.zeros(3, dtype=torch.uint8)}, path / "random_0.pt")
    mark_complete(path)


def facts(text: str) -> Callable[[Path], None]:
    def write(path: Path) -> None:
        (path / "trainer.json").write_text(text)
        mark_complete(path)

    return write


def a_snapshot(path: Path) -> None:
    shutil.rmtree(path)
    SnapshotWriter(path.parent).write([("a", torch.ones(2))], 1)


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (no_folder, "must be complete, got .*version_1': no such folder"),
        (no_mark, "must be complete, got .*: no file .save_complete"),
        (no_random_state, "must be complete, got .*: no file random_0.pt"),
        (short_file, "must be complete, got .*: __0_0.distcp has 1000 bytes instead of"),
        (zeros, "must be undamaged, got .*: __0_0.distcp has another checksum"),
        (zeros_without_checksum, "must be undamaged, got BadZipFile"),
        (damaged_metadata, "is damaged, or the torch that wrote it"),
        (damaged_random_state, "must be undamaged, got .*random_0.pt. without a random state"),
        (facts("{"), "must be undamaged, got JSONDecodeError"),
        (facts("[]"), "must be undamaged, got AttributeError"),
        (facts('{"version": 1}'), "must be undamaged, got KeyError"),
        (
            facts('{"version": null, "num_steps": 1, "extra": {}}'),
            "version in trainer.json is None",
        ),
        (facts('{"format": 2, "what": "ever"}'), "must be of format 1 or older, got .* format 2"),
        (a_snapshot, "must be one that FSDPActor.save wrote, got .* has no trainer.json"),
    ],
)
def test_what_cannot_be_loaded_is_named_for_what_it_is_and_changes_nothing(
    spoil: Callable[[Path], None], message: str, tmp_path: Path, programs: ModuleType
) -> None:
    actor = make_actor()
    actor.update(programs.make_rows(2))
    path = actor.save(tmp_path)
    spoil(path)
    actor.update(programs.make_rows(2))
    before = state_of(actor)
    with pytest.raises(CheckpointError, match=message):
        actor.load(path)
    assert_equal(state_of(actor), before)


def test_no_byte_can_be_wrong_unnoticed(tmp_path: Path, programs: ModuleType) -> None:
    actor = make_actor()
    actor.update(programs.make_rows(2))
    path = actor.save(tmp_path)
    only_sizes(path)
    right = state_of(actor)
    file = path / "__0_0.distcp"
    content, loaded = file.read_bytes(), make_actor()
    for position in random.Random(0).sample(range(len(content)), 25):
        file.write_bytes(
            content[:position] + bytes([content[position] ^ 255]) + content[position + 1 :]
        )
        try:
            loaded.load(path)
        except CheckpointError as error:
            assert "must be undamaged" in str(error)  # noqa: PT017 - padding may be any byte
        else:
            assert_equal(state_of(loaded), right)


@pytest.mark.parametrize(
    ("saved", "loaded", "message"),
    [
        (1, 3, "'model.blocks.1.mix.weight' is missing and here it has shape"),
        (3, 1, "'model.blocks.1.mix.weight' has shape .* and here it is missing; 8 of 14 weights"),
    ],
)
def test_another_model_is_named(saved: int, loaded: int, message: str, tmp_path: Path) -> None:
    path = make_actor(num_blocks=saved).save(tmp_path)
    with pytest.raises(CheckpointError, match="must belong to this model") as caught:
        make_actor(num_blocks=loaded).load(path)
    assert caught.match(message)


def test_another_shape_is_named(tmp_path: Path) -> None:
    config = ActorConfig(optimizer=OptimizerConfig(lr=1e-2))
    wide = FSDPActor(TinyPolicy(hidden_size=32), config, collate=collate_text)
    with pytest.raises(CheckpointError, match=r"has shape \(.*\) and here it has shape \("):
        make_actor().load(wide.save(tmp_path))


@pytest.mark.parametrize("keep", [0, 2.5, True])
def test_a_keep_that_is_no_count_is_refused_before_anything_is_written(
    keep: Any, tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match="keep must be a whole number >= 1, negative or None"):
        make_actor().save(tmp_path, keep=keep)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("error", [OSError(28, "No space left"), KeyboardInterrupt()])
def test_whatever_file_operation_fails_a_checkpoint_stays_and_nothing_is_left_over(
    error: BaseException, tmp_path: Path, before_each_change: BeforeEachChange
) -> None:
    actor = make_actor()
    path = actor.save(tmp_path, extra={"cursor": -1})
    before, number, is_reached = state_of(actor), -1, True
    expected = CheckpointError if isinstance(error, OSError) else KeyboardInterrupt
    while is_reached:
        number += 1
        operations = count()

        def fail(number: int = number, operations: count[int] = operations) -> None:
            if next(operations) == number:
                raise error

        with contextlib.suppress(expected), before_each_change(fail):
            actor.save(tmp_path, extra={"cursor": number})
        is_reached = next(operations) > number
        assert_equal(state_of(actor), before)
        assert latest_complete_checkpoint(tmp_path) is not None
    assert number > 20
    actor.save(tmp_path, extra={"cursor": "whole"})
    assert list(tmp_path.iterdir()) == [path]


@contextmanager
def files_up_to(limit: int) -> Generator[None]:
    """Refuse larger files, as a disk without space does."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.parametrize("limit", [0, 10, 100, 3_000, 5_000, 6_500, 20_000])
def test_a_full_disk_is_a_named_error_and_leaves_what_was_there(limit: int, tmp_path: Path) -> None:
    actor = make_actor()
    path, writer = actor.save(tmp_path / "state"), SnapshotWriter(tmp_path / "policy")
    actor.write_snapshot(writer)
    before = state_of(actor)
    with files_up_to(limit), pytest.raises(CheckpointError, match="version 0 must be writable"):
        actor.save(tmp_path / "state", extra={"cursor": 1})
    if limit < 5_000:
        with files_up_to(limit), pytest.raises(CheckpointError, match="version 1 must be writable"):
            actor.sender.write_snapshot(writer, 1)
    assert_equal(state_of(actor), before)
    assert make_actor().load(path) == {}
    left = sorted(path.name for folder in tmp_path.iterdir() for path in folder.iterdir())
    assert left == ["version_0", "version_0"]
