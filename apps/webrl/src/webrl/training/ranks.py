"""All ranks of the update engine as one object.

Invariant: every call reaches all ranks, so that their collectives stay in step.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import ray
from awrl_trainer import TrainRow, UpdateResult

from webrl.cluster.scheduler import WorkerHandle, async_call_engine, call_worker
from webrl.errors import EngineCallError, WorkerLostError
from webrl.training.actor_rank import UpdateEngine

UPDATE_DEADLINE_S = 3600.0
"""Limit of one update over all ranks; the ranks' own collectives time out long before."""

DISK_DEADLINE_S = 600.0
"""Limit of reading or writing one checkpoint."""

PROBE_DEADLINE_S = 5.0
"""For a rank to say that it lives, once another one's call has failed."""


class TrainerRanks:
    """Trains, saves and loads on every rank.

    Args:
        handles: Every rank, rank 0 first.
    """

    def __init__(self, handles: Sequence[WorkerHandle[UpdateEngine]]) -> None:
        self.handles = tuple(handles)

    async def update(self, rows: Sequence[TrainRow]) -> UpdateResult:
        """Run one update.

        Raises:
            EngineCallError: A rank failed.
        """
        # One rank gets the rows with the call; several read one copy of them.
        given: Any = list(rows) if len(self.handles) == 1 else ray.put(list(rows))
        results = await async_call_engine(
            self.handles, UPDATE_DEADLINE_S, UpdateEngine.update, given
        )
        return results[0]

    async def save(self, root: Path, *, keep: int, extra: Mapping[str, Any]) -> None:
        """Write a complete checkpoint for resuming.

        Raises:
            EngineCallError: The disk refused a write; earlier checkpoints are whole.
        """
        await async_call_engine(
            self.handles, DISK_DEADLINE_S, UpdateEngine.save, str(root), keep, extra
        )

    async def load(self, path: Path) -> tuple[int, dict[str, Any]]:
        """Load a checkpoint; return its version and what `save` got as `extra`."""
        extras = await async_call_engine(
            self.handles, DISK_DEADLINE_S, UpdateEngine.load, str(path)
        )
        versions = await async_call_engine(self.handles, DISK_DEADLINE_S, UpdateEngine.version)
        return versions[0], extras[0]

    async def write_snapshot(self, root: Path, *, keep: int) -> None:
        """Write the policy in Hugging Face's format.

        Raises:
            EngineCallError: The disk refused a write.
        """
        await async_call_engine(
            self.handles, DISK_DEADLINE_S, UpdateEngine.write_snapshot, str(root), keep
        )

    async def find_dead(self) -> None:
        """Raise for the first rank that is gone; its siblings only report a broken collective.

        Raises:
            WorkerLostError: A rank is gone.
        """
        for rank in self.handles:
            try:
                await call_worker(rank, PROBE_DEADLINE_S, UpdateEngine.version)
            except WorkerLostError:
                raise
            except EngineCallError:
                continue  # It lives, and hangs or refuses: the first error says more.
