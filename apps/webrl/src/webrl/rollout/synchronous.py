"""Batches of the synchronous pool: spawn, wait for the slowest, tear down, train, repeat.

Invariants:
    * the budget of a round ends with the round: nothing is left over for the next one;
    * rounds without a usable group are repeated, until the breaker says that the infrastructure is
      down.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Sequence

from awrl_rollout import (
    EpisodeRecord,
    EpisodeRequest,
    FaultBreaker,
    GroupResult,
    RolloutBatch,
    SlotTime,
)

from webrl.cluster.scheduler import RayScheduler, WorkerHandle
from webrl.cluster.unwrapped_group import task_scope
from webrl.rollout.batch_source import GroupFilter
from webrl.rollout.task_stream import TaskStream

STATISTICS_DEADLINE_S = 10.0
"""Looking at a worker's slots; a busy laptop answers within a second."""


class SynchronousRollouts:
    """The synchronous source: spawn, wait for the slowest, tear down, train, repeat."""

    def __init__(
        self,
        scheduler: RayScheduler,
        workers: Sequence[WorkerHandle],
        stream: TaskStream,
        filter_: GroupFilter,
        *,
        group_size: int,
        breaker: FaultBreaker,
        version: int = 0,
    ) -> None:
        """Run rounds on the workers.

        Args:
            scheduler: Fans the calls out.
            workers: Synchronous rollout workers.
            stream: Hands out the groups.
            filter_: Decides which groups carry a gradient.
            group_size: Episodes of one group.
            breaker: Stops the run when the share of faults is too high.
            version: Weight version that the servers hold.
        """
        self._scheduler = scheduler
        self._workers = list(workers)
        self._stream = stream
        self._filter = filter_
        self._group_size = group_size
        self._breaker = breaker
        self._version = version
        self._batches = itertools.count()
        self._num_completed = 0
        self._num_faults = 0
        self._busy_s = 0.0
        self._alive_s = 0.0

    async def prepare_batch(self, num_episodes: int, *, timeout_s: float) -> RolloutBatch:
        """Return the groups of one round that carry a gradient; a round without any is repeated.

        Raises:
            StarvedError: The breaker is open.
        """
        groups: list[GroupResult] = []
        while not groups:
            self._breaker.check()
            requests = [
                request
                for _ in range(num_episodes // self._group_size)
                for request in self._stream.next_group()
            ]
            groups = self._accept(await self._round(requests, timeout_s))
        batch = RolloutBatch(
            groups, batch=next(self._batches), version=self._version, is_short=False
        )
        self._filter.taken(batch)
        return batch

    def advance(self, version: int) -> None:
        """Note the version of the next round."""
        self._version = version

    def release_budget(self) -> None:
        """Nothing is owed: a round's budget ends with the round."""

    async def metrics(self) -> dict[str, float]:
        """Return figures of the rounds since the last call."""
        rounds: list[SlotTime] = await self._scheduler.async_call_engine(
            self._workers, "round_statistics", timeout_s=STATISTICS_DEADLINE_S
        )
        busy_s, alive_s = sum(r.busy_s for r in rounds), sum(r.alive_s for r in rounds)
        busy, alive = busy_s - self._busy_s, alive_s - self._alive_s
        self._busy_s, self._alive_s = busy_s, alive_s
        return {
            "rollout/completed_episodes": float(self._num_completed),
            "rollout/faulted_episodes": float(self._num_faults),
            "idle/rollout_share": max(0.0, 1.0 - busy / alive) if alive > 0 else 0.0,
            "staleness/off_policyness_mean_versions": 0.0,
            "staleness/off_policyness_max_versions": 0.0,
        }

    async def _round(
        self, requests: Sequence[EpisodeRequest], timeout_s: float
    ) -> list[EpisodeRecord]:
        shares = [requests[index :: len(self._workers)] for index in range(len(self._workers))]
        async with asyncio.timeout(timeout_s), task_scope() as group:
            tasks = [
                group.create_task(
                    self._scheduler.async_call_engine(
                        [worker], "run_round", share, timeout_s=timeout_s
                    )
                )
                for worker, share in zip(self._workers, shares, strict=True)
            ]
        records = [record for task in tasks for record in task.result()[0]]
        self._num_completed += len(records)
        self._num_faults += sum(record.fault is not None for record in records)
        for record in records:
            self._breaker.note(record.fault)
        return records

    def _accept(self, records: Sequence[EpisodeRecord]) -> list[GroupResult]:
        grouped: dict[str, list[EpisodeRecord]] = {}
        for record in records:
            grouped.setdefault(record.group_id, []).append(record)
        accepted: list[GroupResult] = []
        for group_id, members in grouped.items():
            ended = [record for record in members if record.has_ended_well]
            reason = self._filter.accept(ended)
            if reason is not None:
                self._filter.discarded(ended, reason)
                self._filter.group_dropped(group_id, reason)
            else:
                accepted.append(
                    GroupResult(
                        group_id=group_id,
                        records=tuple(sorted(ended, key=lambda record: record.member)),
                        expired=frozenset(),
                        group_size=len(members),
                        num_lost=len(members) - len(ended),
                    )
                )
        return accepted
