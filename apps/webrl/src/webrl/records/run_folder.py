"""What a run keeps on disk, where, and how it goes on after a stop.

Invariants:
    * a resume continues from a checkpoint that is whole: progress and task order are stored inside
      of the trainer's own checkpoint, so they can't be of another moment;
    * after a resume nothing is running and nothing is queued: groups that were handed out and not
      trained on are handed out again.
"""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from webrl.rollout.task_stream import TaskStream, TaskStreamState
from webrl.training.step_loop import Progress


@dataclass(frozen=True, slots=True)
class RunFolders:
    """Where the parts of a run lie."""

    root: Path
    """Folder of the run."""

    @property
    def state(self) -> Path:
        """Return the folder of the trainer's checkpoints (resume)."""
        return self.root / "checkpoints" / "trainer"

    @property
    def policies(self) -> Path:
        """Return the folder of policy snapshots (evaluation, use elsewhere)."""
        return self.root / "checkpoints" / "policy"

    @property
    def published(self) -> Path:
        """Return the folder through which weights travel with `weight_update_mode = "disk"`."""
        return self.root / "published"

    @property
    def logs(self) -> Path:
        """Return the folder of the servers' logs."""
        return self.root / "logs"

    @property
    def samples(self) -> Path:
        """Return the folder of sampled trajectories."""
        return self.root / "trajectories"

    def forget_later_weights(self, version: int) -> None:
        """Remove weights of versions that a run which goes on at `version` computes anew."""
        shutil.rmtree(self.published, ignore_errors=True)
        for folder in self.policies.glob("version_*"):
            if int(folder.name.removeprefix("version_")) > version:
                shutil.rmtree(folder)

    @property
    def evaluations(self) -> Path:
        """Return the file of evaluation results."""
        return self.root / "evaluations.jsonl"


class RunState(msgspec.Struct, frozen=True, kw_only=True):
    """The controller's part of a checkpoint."""

    num_steps: int
    """See `Progress`."""
    num_trained_episodes: int
    """See `Progress`."""
    train_s: float
    """See `Progress`."""
    stream: TaskStreamState
    """The task order."""
    totals: dict[str, float] = {}
    """See `Progress`."""


def pack_state(progress: Progress, stream: TaskStream) -> dict[str, Any]:
    """Return the controller's state as JSON values."""
    return msgspec.to_builtins(
        RunState(
            num_steps=progress.num_steps,
            num_trained_episodes=progress.num_trained_episodes,
            train_s=progress.train_s,
            stream=stream.state(),
            totals=dict(progress.totals),
        )
    )


def unpack_state(values: dict[str, Any], version: int, stream: TaskStream) -> tuple[Progress, bool]:
    """Return progress at a checkpoint, and whether the task order could be continued.

    Args:
        values: What `pack_state` returned.
        version: The trainer's version in that checkpoint.
        stream: Restored in place.
    """
    state = msgspec.convert(values, RunState)
    is_same_data = stream.restore(state.stream)
    progress = Progress(
        version=version,
        num_steps=state.num_steps,
        num_trained_episodes=state.num_trained_episodes,
        train_s=state.train_s,
        totals=state.totals,
    )
    return progress, is_same_data
