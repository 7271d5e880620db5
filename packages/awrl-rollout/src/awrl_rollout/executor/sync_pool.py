"""`SyncPool`: the honest synchronous baseline, for comparison with the everlasting executor.

Each round spawns its slots, runs the same workflow, waits for the slowest, and tears everything
down; between rounds the caller refreshes the weights. Same workflow, same sessions, same seeds.

Invariants: one record per request; no episode of round i + 1 starts before the last one of round
i has ended and its slots are torn down.
"""

from __future__ import annotations

import asyncio
import random
from collections import deque
from collections.abc import Awaitable, Callable, Sequence

import msgspec

from awrl_rollout.clock import Clock, RealClock
from awrl_rollout.episode import EpisodeRecord, EpisodeRequest
from awrl_rollout.executor.slot import SlotRunner, Workflow, check_num_slots, idle_share
from awrl_rollout.retry import RetryPolicy

SlotHook = Callable[[int], Awaitable[None]]
"""Spawns or tears down what a slot needs, for example its browser."""


class SyncPoolStatistics(msgspec.Struct, frozen=True, kw_only=True):
    """A frozen picture of one pool."""

    num_rounds: int
    num_ended: int
    busy_s: float
    """Seconds inside episodes, summed over slots."""
    alive_s: float
    """Seconds of rounds, spawn and tear-down included, times the slots."""

    @property
    def idle_share(self) -> float:
        """Share of slot time without an episode, 0 to 1."""
        return idle_share(self.busy_s, self.alive_s)


class SyncPool:
    """Runs rounds of episodes with a barrier at the end of each.

    Args:
        workflow: `async (request, context) -> EpisodeResult | None`.
        num_slots: Episodes that run at once; a longer round reuses slots as they end.
        name: Name of the pool, copied into records.
        spawn: Awaited for each slot at the start of a round.
        tear_down: Awaited for each slot at the end of a round, also after a failure.
        deadline_s: Limit for one run of the workflow; None for none.
        retry: How often a faulted episode runs again in its slot.
        clock: Source of time.
        rng: Source of the retry jitter.

    Raises:
        ValueError: `num_slots` is below 1.
    """

    def __init__(
        self,
        workflow: Workflow,
        *,
        num_slots: int,
        name: str = "sync-pool",
        spawn: SlotHook | None = None,
        tear_down: SlotHook | None = None,
        deadline_s: float | None = None,
        retry: RetryPolicy | None = None,
        clock: Clock | None = None,
        rng: random.Random | None = None,
    ) -> None:
        check_num_slots(num_slots)
        self.num_slots = num_slots
        self._workflow = workflow
        self._name = name
        self._spawn = spawn
        self._tear_down = tear_down
        self._deadline_s = deadline_s
        self._retry = RetryPolicy() if retry is None else retry
        self._clock = RealClock() if clock is None else clock
        self._rng = random.Random(0) if rng is None else rng
        self._num_rounds = 0
        self._num_ended = 0
        self._busy_s = 0.0
        self._alive_s = 0.0

    async def run_round(self, requests: Sequence[EpisodeRequest]) -> list[EpisodeRecord]:
        """Return one record per request, in their order, after the slowest has ended."""
        started_s = self._clock.time()
        waiting = deque(requests)
        records: dict[str, EpisodeRecord] = {}
        num_slots = min(self.num_slots, len(waiting))
        slots = [self._new_slot(index) for index in range(num_slots)]
        try:
            await self._on_each(self._spawn, num_slots)
            async with asyncio.TaskGroup() as group:
                for slot in slots:
                    group.create_task(_run_until_empty(slot, waiting, records))
        finally:
            await self._on_each(self._tear_down, num_slots)
            self._num_rounds += 1
            self._num_ended += len(records)
            self._busy_s += sum(slot.busy_s for slot in slots)
            self._alive_s += (self._clock.time() - started_s) * self.num_slots
        return [records[request.episode_id] for request in requests]

    def statistics(self) -> SyncPoolStatistics:
        """Return a frozen picture of rounds and slot time."""
        return SyncPoolStatistics(
            num_rounds=self._num_rounds,
            num_ended=self._num_ended,
            busy_s=self._busy_s,
            alive_s=self._alive_s,
        )

    def _new_slot(self, index: int) -> SlotRunner:
        return SlotRunner(
            self._workflow,
            index=index,
            worker=self._name,
            deadline_s=self._deadline_s,
            retry=self._retry,
            clock=self._clock,
            rng=self._rng,
        )

    async def _on_each(self, hook: SlotHook | None, num_slots: int) -> None:
        if hook is None:
            return
        async with asyncio.TaskGroup() as group:
            for index in range(num_slots):
                group.create_task(_call(hook, index))


async def _call(hook: SlotHook, index: int) -> None:
    await hook(index)


async def _run_until_empty(
    slot: SlotRunner, waiting: deque[EpisodeRequest], records: dict[str, EpisodeRecord]
) -> None:
    while waiting:
        request = waiting.popleft()
        records[request.episode_id] = await slot.run(request)
