"""Sharded checkpoints of the trainer: save, resume, retention.

Invariants:

* A checkpoint is written under a hidden name, renamed, then marked complete: a crash between any two
  writes leaves the previous checkpoints whole and this one invisible.
* It holds everything that the next update depends on: weights, optimizer state, number of optimizer
  steps (hence the learning rate), version, and the random state of each rank.
* It can be loaded on another number of ranks; random states of ranks that did not exist then start
  from the seed.

Called on all ranks with the same arguments.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_state_dict,
    set_state_dict,
)
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save

from awrl_trainer.errors import CheckpointError
from awrl_trainer.optimizer import SteppedOptimizer
from awrl_trainer.weights.snapshot import is_complete, mark_complete, remove_old

_STATE_FILE = "trainer.json"
_OPTIONS = StateDictOptions(strict=True)


def save_checkpoint(
    root: Path,
    module: nn.Module,
    optimizer: SteppedOptimizer,
    *,
    version: int,
    extra: Mapping[str, Any],
    keep: int | None,
    group: dist.ProcessGroup,
) -> Path:
    """Write a checkpoint below a directory and return where.

    Args:
        root: Directory of the checkpoints, shared by all ranks.
        version: Version of the weights; names the checkpoint.
        extra: JSON values of the caller, such as a task cursor.
        keep: Complete checkpoints that stay; None keeps all.

    Raises:
        CheckpointError: The disk refused a write; the previous checkpoints are whole.
        TypeError: A value in `extra` that JSON can't hold.
    """
    # Before any rank waits for another: a value that JSON can't hold fails on all of them alike.
    facts = {"version": version, "num_steps": optimizer.num_steps, "extra": dict(extra)}
    facts_text = json.dumps(facts)
    target = root / f"version_{version}"
    hidden = root / f".writing_{version}"
    is_writer = dist.get_rank(group) == 0
    try:
        if is_writer:
            shutil.rmtree(hidden, ignore_errors=True)
            hidden.mkdir(parents=True)
        dist.barrier(group)
        save(_state(module, optimizer), checkpoint_id=hidden, process_group=group)
        torch.save(_random_state(), hidden / f"random_{dist.get_rank(group)}.pt")
        dist.barrier(group)
        if is_writer:
            (hidden / _STATE_FILE).write_text(facts_text)
            _replace(hidden, target)
            remove_old(root, keep)
        dist.barrier(group)
    except OSError as error:
        raise CheckpointError(
            f"checkpoint of version {version} must be writable below {str(root)!r}, got: {error}."
            " Free space or choose another directory."
        ) from error
    return target


def load_checkpoint(
    path: Path, module: nn.Module, optimizer: SteppedOptimizer, *, group: dist.ProcessGroup
) -> tuple[int, dict[str, Any]]:
    """Load a checkpoint into a module and an optimizer built alike.

    Args:
        group: The ranks; their number may differ from the one that saved.

    Returns:
        The version, and the caller's extra values.

    Raises:
        CheckpointError: Incomplete, or of another model.
    """
    if not is_complete(path):
        raise CheckpointError(
            f"checkpoint must be complete, got {str(path)!r}. Pick one with"
            " latest_complete_checkpoint."
        )
    state = _state(module, optimizer)
    try:
        load(state, checkpoint_id=path, process_group=group)
    except (RuntimeError, ValueError, KeyError, CheckpointException) as error:
        raise CheckpointError(
            f"checkpoint {str(path)!r} must belong to this model, got: {error}. Build the actor"
            " from the same base and the same optimizer config."
        ) from error
    set_state_dict(
        module,
        optimizer.inner,
        model_state_dict=state["model"],
        optim_state_dict=state["optimizer"],
        options=_OPTIONS,
    )
    facts = json.loads((path / _STATE_FILE).read_text())
    optimizer.num_steps = facts["num_steps"]
    random_file = path / f"random_{dist.get_rank(group)}.pt"
    if random_file.exists():
        _set_random_state(torch.load(random_file, weights_only=True))
    return facts["version"], facts["extra"]


def _state(module: nn.Module, optimizer: SteppedOptimizer) -> dict[str, Any]:
    model, optim = get_state_dict(module, optimizer.inner, options=_OPTIONS)
    return {"model": model, "optimizer": optim}


def _replace(hidden: Path, target: Path) -> None:
    """Put a written checkpoint in its place.

    One of the same version makes room under a name that readers understand, so that there is a whole
    one at every moment; where both are, the name without prefix sorts last and wins.
    """
    retired = target.with_name(f"retired_{target.name}")
    if target.exists():
        shutil.rmtree(retired, ignore_errors=True)
        target.rename(retired)
    hidden.rename(target)
    mark_complete(target)
    shutil.rmtree(retired, ignore_errors=True)


def _random_state() -> dict[str, torch.Tensor]:
    state = {"cpu": torch.get_rng_state()}
    if torch.cuda.is_available():
        state["cuda"] = torch.cuda.get_rng_state()
    return state


def _set_random_state(state: Mapping[str, torch.Tensor]) -> None:
    torch.set_rng_state(state["cpu"])
    if "cuda" in state and torch.cuda.is_available():
        torch.cuda.set_rng_state(state["cuda"])
