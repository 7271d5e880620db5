"""Where the trainer's batches come from: the everlasting pool, or synchronous rounds.

Both give the trainer the same thing, a ``RolloutBatch`` of groups, and hear of the same events
(published, settled), so the step loop is one piece of code.

Invariant: a group is told to the task stream as finished exactly once, when it was consumed,
rejected or dropped; until then a resume hands it out again.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from awrl_rollout import (
    EpisodeRecord,
    EpisodeRequest,
    GroupResult,
    RolloutBatch,
    RolloutController,
    SyncPoolStatistics,
    Worker,
)

from webrl.errors import EngineCallError
from webrl.system.batching import zero_variance_reason
from webrl.system.scheduler import RayScheduler, WorkerHandle
from webrl.system.task_scope import task_scope
from webrl.system.task_stream import TaskStream

logger = logging.getLogger(__name__)

STATISTICS_DEADLINE_S = 10.0
"""Looking at a worker's slots; a busy laptop answers within a second."""


class RolloutSource(Protocol):
    """Batches for the trainer's step loop."""

    async def prepare_batch(self, num_episodes: int, *, timeout_s: float) -> RolloutBatch:
        """Return the next batch."""
        ...

    def publish(self, version: int) -> None:
        """Hear that the servers hold a new version, computed from every consumed batch."""
        ...

    def settle(self) -> None:
        """Hear that the consumed batches changed nothing (a skipped update)."""
        ...

    async def metrics(self) -> dict[str, float]:
        """Return figures since the last call."""
        ...


class GroupFilter:
    """Decides which complete groups carry a gradient, and remembers who was dropped.

    The leases of dropped episodes are released by the trainer in one call per step.
    """

    def __init__(
        self,
        stream: TaskStream,
        on_group: Callable[[Sequence[EpisodeRecord]], None] = lambda records: None,
    ) -> None:
        """Filter groups of one stream.

        Args:
            stream: Hears of every group that is over.
            on_group: Told of each complete group, before it is judged.
        """
        self._stream = stream
        self._on_group = on_group
        self._dropped: dict[str, None] = {}
        self.num_groups = 0
        self.num_zero_variance = 0
        self.num_success = 0
        self.num_episodes = 0

    def accept(self, records: Sequence[EpisodeRecord]) -> str | None:
        """Return why a complete group is rejected, None to accept it."""
        self._on_group(records)
        rewards = [record.reward for record in records if record.reward is not None]
        self.num_groups += 1
        self.num_episodes += len(rewards)
        self.num_success += sum(reward > 0 for reward in rewards)
        reason = zero_variance_reason(rewards)
        self.num_zero_variance += reason is not None
        return reason

    def discarded(self, records: Sequence[EpisodeRecord], reason: str) -> None:
        """Note episodes that no batch will hold."""
        del reason
        self._dropped.update((record.episode_id, None) for record in records)

    def group_dropped(self, group_id: str, reason: str) -> None:
        """Note a group that no batch will hold."""
        del reason
        self._stream.finish(group_id)

    def taken(self, batch: RolloutBatch) -> None:
        """Note that a batch took its groups."""
        for group in batch:
            self._stream.finish(group.group_id)

    def take_dropped(self) -> list[str]:
        """Return the episodes whose screenshots nobody needs any more, each once."""
        dropped, self._dropped = list(self._dropped), {}
        return dropped


class EverlastingRollouts:
    """The asynchronous source: a ``RolloutController`` that never stops."""

    def __init__(
        self,
        controller: RolloutController,
        workers: Mapping[str, Worker],
        filter_: GroupFilter,
    ) -> None:
        """Speak for a running controller.

        Args:
            controller: Entered by the caller.
            workers: Its live workers by name; the caller replaces those that die.
            filter_: Its hooks.
        """
        self.controller = controller
        self._workers = workers
        self._filter = filter_
        self._slots: dict[str, tuple[float, float]] = {}

    async def prepare_batch(self, num_episodes: int, *, timeout_s: float) -> RolloutBatch:
        """Return the oldest complete groups; see ``RolloutController.prepare_batch``."""
        batch = await self.controller.prepare_batch(num_episodes, timeout_s=timeout_s)
        self._filter.taken(batch)
        return batch

    def publish(self, version: int) -> None:
        """Advance the version and settle what was consumed."""
        self.controller.publish(version)

    def settle(self) -> None:
        """Settle what was consumed without a new version."""
        self.controller.settle()

    async def metrics(self) -> dict[str, float]:
        """Return the controller's figures and the slots' idle share since the last call."""
        statistics = self.controller.statistics()
        wasted = statistics.staleness.wasted_by_label.items()
        return {
            **statistics.metrics(),
            **{f"staleness/wasted_{label}_episodes": float(count) for label, count in wasted},
            "rollout/expired_episodes": float(statistics.staleness.num_expired),
            "idle/rollout_share": await self._idle_share(),
            "staleness/bound_binds": float(statistics.blocked_by is not None),
        }

    async def _idle_share(self) -> float:
        """Return the share of slot time without an episode since the last call."""
        now: dict[str, tuple[float, float]] = {}
        for name, worker in self._workers.items():
            try:
                statistics = await worker.statistics()
            except EngineCallError as error:
                logger.info("no slot figures of %s: %s", name, error)
                continue
            now[name] = (statistics.busy_s, statistics.alive_s)
        before, self._slots = self._slots, now
        busy_s = sum(busy - before.get(name, (0.0, 0.0))[0] for name, (busy, _) in now.items())
        alive_s = sum(alive - before.get(name, (0.0, 0.0))[1] for name, (_, alive) in now.items())
        return max(0.0, 1.0 - busy_s / alive_s) if alive_s > 0 else 0.0


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
        version: int = 0,
    ) -> None:
        """Run rounds on the workers.

        Args:
            scheduler: Fans the calls out.
            workers: Synchronous rollout workers.
            stream: Hands out the groups.
            filter_: Decides which groups carry a gradient.
            group_size: Episodes of one group.
            version: Weight version that the servers hold.
        """
        self._scheduler = scheduler
        self._workers = list(workers)
        self._stream = stream
        self._filter = filter_
        self._group_size = group_size
        self._version = version
        self._batches = itertools.count()
        self._num_landed = 0
        self._num_faults = 0
        self._busy_s = 0.0
        self._alive_s = 0.0

    async def prepare_batch(self, num_episodes: int, *, timeout_s: float) -> RolloutBatch:
        """Return the groups of one round that carry a gradient; a round without any is repeated."""
        groups: list[GroupResult] = []
        while not groups:
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

    def publish(self, version: int) -> None:
        """Note the version of the next round."""
        self._version = version

    def settle(self) -> None:
        """Nothing is owed: a round's budget ends with the round."""

    async def metrics(self) -> dict[str, float]:
        """Return figures of the rounds since the last call."""
        rounds: list[SyncPoolStatistics] = await self._scheduler.async_call_engine(
            self._workers, "round_statistics", timeout_s=STATISTICS_DEADLINE_S
        )
        busy_s, alive_s = sum(r.busy_s for r in rounds), sum(r.alive_s for r in rounds)
        busy, alive = busy_s - self._busy_s, alive_s - self._alive_s
        self._busy_s, self._alive_s = busy_s, alive_s
        return {
            "rollout/landed_episodes": float(self._num_landed),
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
        self._num_landed += len(records)
        self._num_faults += sum(record.fault is not None for record in records)
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
