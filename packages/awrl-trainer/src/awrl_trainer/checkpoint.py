"""Sharded checkpoints of the trainer: save, resume, retention.

Invariants:

* A checkpoint appears as a whole (`awrl_trainer.folders`): a crash between any two writes leaves a
  complete one, and a save that fails leaves the ones before.
* It holds everything that the next update depends on: weights, optimizer state, number of optimizer
  steps (hence the learning rate), version, and the random state of each rank. Learning rate, betas
  and the like are the configuration's, never the checkpoint's.
* Neither saving nor a load that is refused changes anything of the actor.
* Weights must be the same in name and shape; optimizer state need not: a parameter without any, such
  as one that was frozen, starts at zero, and state of a parameter that is frozen now is left out.
* What is written is one moment's, also while the actor goes on: a copy in host memory, written by a
  thread over a group of its own (`CheckpointSaver`).
* It can be loaded on another number of ranks; random states of ranks that did not exist then start
  from the seed.
* What fails on one rank is raised on every rank.

Called on all ranks with the same arguments.
"""

from __future__ import annotations

import contextlib
import io
import json
import logging
import zipfile
from collections.abc import Callable, Generator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Any, TypeVar, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.checkpoint.metadata import TensorStorageMetadata
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save

from awrl_trainer.errors import CheckpointError
from awrl_trainer.folders import (
    new_folder,
    remove_old,
    why_damaged,
    why_incomplete,
)
from awrl_trainer.optimizer import SteppedOptimizer
from awrl_trainer.outcome import outcome_of

logger = logging.getLogger(__name__)

FORMAT = 1
"""Number of the layout; raised when an older reader would misunderstand a checkpoint."""

_FACTS_FILE = "trainer.json"
_ANOTHER = "Name another one, or remove it to go on from the one before."
_MODEL, _OPTIMIZER = "model.", "optimizer.state."

ResultT = TypeVar("ResultT")


class _CheckedReader(FileSystemReader):
    """Reads tensors with the checksums that their records carry, which torch itself ignores."""

    def _slice_file(self, file: IO[bytes], sinfo: Any) -> IO[bytes]:
        record = io.BytesIO(super()._slice_file(file, sinfo).read())
        with zipfile.ZipFile(record) as archive:
            if (name := archive.testzip()) is not None:
                raise zipfile.BadZipFile(f"{name!r} in {sinfo.relative_path} has another checksum")
        record.seek(0)
        return record


@dataclass(frozen=True, kw_only=True, slots=True)
class _Facts:
    """What stands in a checkpoint beside tensors."""

    version: int
    num_steps: int
    extra: dict[str, Any]
    optimizer: dict[str, Any]
    """Settings at that time; empty in a checkpoint that does not tell."""
    torch: str
    """Version that wrote it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class CheckpointContent:
    """What one rank writes: all of one moment."""

    facts: _Facts
    random: dict[str, Tensor]
    """Random state of the rank."""
    tensors: dict[str, Any]
    """Weights and optimizer state by name in the checkpoint."""


@dataclass(frozen=True, kw_only=True, slots=True)
class _Found:
    """A checkpoint that fits, and room for its tensors."""

    facts: _Facts
    random: dict[str, Tensor]
    """Random state of this rank; empty when it did not exist then."""
    tensors: dict[str, Any]
    """Weights and optimizer state by name in the checkpoint."""
    with_state: list[str]
    """Parameters whose optimizer state is there."""
    without_state: list[str]
    """Trained parameters whose optimizer state is not."""
    unused_state: list[str]
    """Parameters with optimizer state there and none here."""


def checkpoint_content(
    module: nn.Module, optimizer: SteppedOptimizer, *, version: int, extra: Mapping[str, Any]
) -> CheckpointContent:
    """Return what a checkpoint of this moment holds; its tensors are the live ones, not copies.

    Args:
        version: Version of the weights; names the checkpoint.
        extra: JSON values of the caller, such as a task cursor.

    Raises:
        TypeError: A value in `extra` that JSON can't hold.
    """
    facts = _Facts(
        version=version,
        num_steps=optimizer.num_steps,
        # A copy that the caller can't change: it is written later.
        extra=json.loads(json.dumps(dict(extra))),
        optimizer=asdict(optimizer.config),
        torch=torch.__version__,
    )
    return CheckpointContent(facts=facts, random=_random_state(), tensors=_state(module, optimizer))


def write_checkpoint(
    root: Path, content: CheckpointContent, *, keep: int | None, group: dist.ProcessGroup
) -> Path:
    """Write a checkpoint below a directory and return where.

    Args:
        root: Directory of the checkpoints, shared by all ranks.
        keep: Complete checkpoints that stay beside the written one; None or a negative number keeps
            all.

    Raises:
        CheckpointError: The disk refused a write on some rank; the previous checkpoints are whole.
    """
    version = content.facts.version
    facts_text = json.dumps({"format": FORMAT, **asdict(content.facts)})
    target = root / f"version_{version}"
    is_first = dist.get_rank(group) == 0
    with contextlib.ExitStack() as stack:

        def start() -> Path | None:
            return stack.enter_context(new_folder(target)) if is_first else None

        def finish() -> None:
            if is_first:
                (hidden / _FACTS_FILE).write_text(facts_text)
            stack.close()
            if is_first:
                remove_old(target, keep)

        rule = f"checkpoint of version {version} must be writable below {str(root)!r}"
        remedy = "Free space or choose another directory."
        box = [_on_all_ranks(start, group, rule=rule, remedy=remedy)]
        dist.broadcast_object_list(box, group=group, group_src=0)
        hidden = cast("Path", box[0])
        with _as_checkpoint_error(dist.get_rank(group), rule, remedy):
            save(content.tensors, checkpoint_id=hidden, process_group=group)
        random_file = hidden / f"random_{dist.get_rank(group)}.pt"
        _on_all_ranks(
            lambda: torch.save(content.random, random_file), group, rule=rule, remedy=remedy
        )
        _on_all_ranks(finish, group, rule=rule, remedy=remedy)
    return target


def load_checkpoint(
    path: Path, module: nn.Module, optimizer: SteppedOptimizer, *, group: dist.ProcessGroup
) -> tuple[int, dict[str, Any]]:
    """Load a checkpoint into a module and an optimizer.

    Args:
        group: The ranks; their number may differ from the one that saved.

    Returns:
        The version, and the caller's extra values.

    Raises:
        CheckpointError: On every rank, with nothing changed: it is missing, incomplete, damaged, of
            a newer format, or of another model.
    """
    rank = dist.get_rank(group)
    rule = f"checkpoint {str(path)!r} must be undamaged"

    found = _on_all_ranks(
        lambda: _look(path, rank, module, optimizer), group, rule=rule, remedy=_ANOTHER
    )
    tensors = found.tensors
    with _as_checkpoint_error(rank, rule, _ANOTHER):
        load(tensors, storage_reader=_CheckedReader(path), process_group=group)
    if rank == 0:
        _log_differences(path, found, optimizer)
    _set_random_state(found.random)
    module.load_state_dict({name: tensors[_MODEL + name] for name in module.state_dict()})
    for name, parameter in module.named_parameters():
        optimizer.inner.state.pop(parameter, None)
        if name in found.with_state:
            optimizer.inner.state[parameter] = {
                key: tensors[_key(name, key)] for key in optimizer.zero_state(parameter)
            }
    optimizer.num_steps = found.facts.num_steps
    return found.facts.version, found.facts.extra


def _state(module: nn.Module, optimizer: SteppedOptimizer) -> dict[str, Any]:
    """Return every tensor of a checkpoint by its name there.

    Torch's own `get_state_dict` steps an optimizer that has no state yet.
    """
    state = {_MODEL + name: value for name, value in module.state_dict().items()}
    for name, parameter in module.named_parameters():
        values = optimizer.inner.state.get(parameter, {})
        state |= {_key(name, key): v for key, v in values.items() if isinstance(v, Tensor)}
    return state


def _key(name: str, key: str) -> str:
    return f"{_OPTIMIZER}{name}.{key}"


def _look(path: Path, rank: int, module: nn.Module, optimizer: SteppedOptimizer) -> _Found:
    """Read all but the tensors, and make room for them.

    New room: a read that fails half way must leave the weights as they are.

    Raises:
        CheckpointError: It is not a checkpoint, or none for this module.
    """
    facts = _read_facts(path)
    random = _read_random_state(path / f"random_{rank}.pt")
    stored = _stored_shapes(path, facts)
    wanted = {_MODEL + name: value for name, value in module.state_dict().items()}
    _require_same_model(path, stored, wanted)
    tensors = {k: torch.empty_like(v) if isinstance(v, Tensor) else v for k, v in wanted.items()}
    with_state, without_state = list[str](), list[str]()
    for name, parameter in module.named_parameters():
        zeros = {_key(name, key): zero for key, zero in optimizer.zero_state(parameter).items()}
        # Before the first step there is no state, whatever an older writer put there.
        if facts.num_steps and zeros and zeros.keys() <= stored.keys():
            with_state.append(name)
            tensors |= zeros
        elif zeros:
            without_state.append(name)
    unused = [k for k in stored if k.startswith(_OPTIMIZER) and k not in tensors]
    return _Found(
        facts=facts,
        random=random,
        tensors=tensors,
        with_state=with_state,
        without_state=without_state if facts.num_steps else [],
        unused_state=sorted({k.removeprefix(_OPTIMIZER).rpartition(".")[0] for k in unused}),
    )


def _read_facts(path: Path) -> _Facts:
    """Read what stands beside tensors.

    Raises:
        CheckpointError: The checkpoint is missing, incomplete, of another kind or of a newer format.
    """
    if (lack := why_incomplete(path)) is not None:
        raise CheckpointError(
            f"checkpoint must be complete, got {str(path)!r}: {lack}. Pick one with"
            " latest_complete_checkpoint."
        )
    if (damage := why_damaged(path)) is not None:
        raise CheckpointError(
            f"checkpoint must be undamaged, got {str(path)!r}: {damage}. {_ANOTHER}"
        )
    if not (path / _FACTS_FILE).exists():
        raise CheckpointError(
            f"checkpoint must be one that FSDPActor.save wrote, got {str(path)!r}, which has no"
            f" {_FACTS_FILE}. A snapshot holds weights only: build the actor from it instead."
        )
    found = json.loads((path / _FACTS_FILE).read_bytes())
    number = found.get("format", 1)
    if type(number) is not int or number > FORMAT:
        raise CheckpointError(
            f"checkpoint must be of format {FORMAT} or older, got {str(path)!r} of format"
            f" {number!r}. Load it with the awrl-trainer that wrote it, or a newer one."
        )
    facts = _Facts(
        version=found["version"],
        num_steps=found["num_steps"],
        extra=found["extra"],
        optimizer=found.get("optimizer", {}),
        torch=str(found.get("torch", "unknown")),
    )
    for name, kind in (("version", int), ("num_steps", int), ("extra", dict), ("optimizer", dict)):
        if not isinstance(getattr(facts, name), kind):
            raise TypeError(f"{name} in {_FACTS_FILE} is {getattr(facts, name)!r}")
    return facts


def _stored_shapes(path: Path, facts: _Facts) -> dict[str, tuple[int, ...] | None]:
    """Return the shape of every stored tensor by name; None for what is not a tensor."""
    outcome = outcome_of(lambda: FileSystemReader(path).read_metadata().state_dict_metadata)
    if outcome.value is None:
        raise CheckpointError(
            f"checkpoint {str(path)!r} must be readable, got: {outcome.error!r}. It is damaged,"
            f" or the torch that wrote it ({facts.torch}) is too new for this one"
            f" ({torch.__version__})."
        )
    return {
        name: tuple(entry.size) if isinstance(entry, TensorStorageMetadata) else None
        for name, entry in outcome.value.items()
    }


def _require_same_model(
    path: Path, stored: Mapping[str, tuple[int, ...] | None], wanted: Mapping[str, Any]
) -> None:
    there = {name: shape for name, shape in stored.items() if name.startswith(_MODEL)}
    here = {k: tuple(v.shape) if isinstance(v, Tensor) else None for k, v in wanted.items()}
    names = [name for name in here | there if here.get(name, 0) != there.get(name, 0)]
    if names:
        first = names[0]
        shapes = [
            "is missing" if first not in side else f"has shape {side[first]}"
            for side in (there, here)
        ]
        raise CheckpointError(
            f"checkpoint must belong to this model, got {str(path)!r}, where"
            f" {first.removeprefix(_MODEL)!r} {shapes[0]} and here it {shapes[1]};"
            f" {len(names)} of {len(here | there)} weights differ. Build the actor from the same"
            " base."
        )


def _log_differences(path: Path, found: _Found, optimizer: SteppedOptimizer) -> None:
    """Say in a line each what of the optimizer is not as the checkpoint has it."""
    before = found.facts.optimizer
    now: dict[str, Any] = json.loads(json.dumps(asdict(optimizer.config)))
    changed = [f"{k} {before[k]} -> {v}" for k, v in now.items() if before.get(k, v) != v]
    if changed:
        logger.warning("%s: other optimizer settings from here on: %s", path, ", ".join(changed))
    if found.without_state:
        logger.warning(
            "%s: optimizer state starts at zero for %d parameters that have none there, such as %s",
            path,
            len(found.without_state),
            found.without_state[0],
        )
    if found.unused_state:
        logger.warning(
            "%s: optimizer state of %d parameters that have none here is left out, such as %s",
            path,
            len(found.unused_state),
            found.unused_state[0],
        )


def _on_all_ranks(
    action: Callable[[], ResultT], group: dist.ProcessGroup, *, rule: str, remedy: str
) -> ResultT:
    """Run something without a collective in it; what fails on one rank is raised on all.

    Raises:
        CheckpointError: On every rank, with the same text.
    """
    outcome = outcome_of(action)
    error = outcome.error
    if error is not None and not isinstance(error, CheckpointError):
        error = _checkpoint_error(error, dist.get_rank(group), rule, remedy)
    errors: list[CheckpointError | None] = [None] * dist.get_world_size(group)
    dist.all_gather_object(errors, error, group=group)
    for each in errors:
        if each is not None:
            raise each from (None if isinstance(outcome.error, CheckpointError) else outcome.error)
    return cast("ResultT", outcome.value)


@contextlib.contextmanager
def _as_checkpoint_error(rank: int, rule: str, remedy: str) -> Generator[None]:
    """Turn what torch gathers from all ranks, which is no `Exception`, into this package's error.

    Raises:
        CheckpointError: A rank failed.
    """
    try:
        yield
    except CheckpointException as error:
        mine, _ = error.failures.get(rank, (None, None))
        if mine is not None and not isinstance(mine, Exception):
            raise mine from error  # Torch takes an interrupt for a failure too.
        their_rank, (theirs, _) = min(error.failures.items(), key=lambda item: item[0])
        raise _checkpoint_error(theirs, their_rank, rule, remedy) from error


def _checkpoint_error(error: BaseException, rank: int, rule: str, remedy: str) -> CheckpointError:
    first_line = str(error).partition("\n")[0]
    return CheckpointError(
        f"{rule}, got {type(error).__name__} on rank {rank}: {first_line}. {remedy}"
    )


def _read_random_state(file: Path) -> dict[str, Tensor]:
    """Return a rank's random state, empty where it has no file.

    Raises:
        CheckpointError: It is damaged.
    """
    if not file.exists():
        return {}

    def read() -> dict[str, Tensor]:
        state: dict[str, Tensor] = torch.load(file, weights_only=True)
        torch.Generator().set_state(state["cpu"])  # Refuses what is no state.
        return state

    outcome = outcome_of(read)
    if outcome.value is None:
        raise CheckpointError(
            f"checkpoint must be undamaged, got {str(file)!r} without a random state. {_ANOTHER}"
        ) from outcome.error
    return outcome.value


def _random_state() -> dict[str, Tensor]:
    state = {"cpu": torch.get_rng_state()}
    if torch.cuda.is_available():
        state["cuda"] = torch.cuda.get_rng_state()
    return state


def _set_random_state(state: Mapping[str, Tensor]) -> None:
    if "cpu" in state:
        torch.set_rng_state(state["cpu"])
    if "cuda" in state and torch.cuda.is_available():
        torch.cuda.set_rng_state(state["cuda"])
