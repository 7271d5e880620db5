"""All ranks of the update engine as one object.

Invariant: every call reaches all ranks, so that their collectives stay in step.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import ray
from awrl_trainer import SaveReport, TrainRow, UpdateResult

from webrl.cluster.scheduler import WorkerHandle, async_call_engine, call_worker
from webrl.errors import EngineCallError, WorkerLostError
from webrl.training.actor_rank import UpdateEngine

UPDATE_DEADLINE_S = 3600.0
"""Limit of one update over all ranks; the ranks' own collectives time out long before."""

GRACE_S = 30.0
"""Beyond a limit that the ranks keep themselves."""

PROBE_DEADLINE_S = 5.0
"""For a rank to say that it lives, once another one's call has failed."""


class TrainerRanks:
    """Trains, saves and loads on every rank.

    Args:
        handles: Every rank, rank 0 first.
        disk_deadline_s: Limit of reading or writing one checkpoint, in seconds.
    """

    def __init__(
        self, handles: Sequence[WorkerHandle[UpdateEngine]], *, disk_deadline_s: float
    ) -> None:
        self.handles = tuple(handles)
        # The ranks' own limit is the one that binds.
        self._disk_s = disk_deadline_s + GRACE_S

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

    async def version(self) -> int:
        """Return the version of the ranks' weights.

        Raises:
            EngineCallError: A rank is gone, or hangs.
        """
        versions = await async_call_engine(self.handles, self._disk_s, UpdateEngine.version)
        return versions[0]

    async def start_save(
        self, policies: Path, root: Path | None, *, keep: int, extra: Mapping[str, Any]
    ) -> None:
        """Begin to write a snapshot and, below `root`, a complete checkpoint; training may go on.

        Raises:
            EngineCallError: A rank failed.
        """
        state = None if root is None else str(root)
        await async_call_engine(
            self.handles, self._disk_s, UpdateEngine.start_save, str(policies), state, keep, extra
        )

    async def is_saved(self) -> bool:
        """Return whether what was begun has come to its end on every rank."""
        return all(await async_call_engine(self.handles, self._disk_s, UpdateEngine.is_saved))

    async def finish_save(self) -> list[SaveReport]:
        """Wait for what was begun; return how it went on each rank.

        Raises:
            EngineCallError: The disk refused a write; earlier checkpoints are whole.
        """
        reports = await async_call_engine(self.handles, self._disk_s, UpdateEngine.finish_save)
        return [report for report in reports if report is not None]

    async def load(self, path: Path) -> tuple[int, dict[str, Any]]:
        """Load a checkpoint; return its version and what `save` got as `extra`."""
        extras = await async_call_engine(self.handles, self._disk_s, UpdateEngine.load, str(path))
        return await self.version(), extras[0]

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
