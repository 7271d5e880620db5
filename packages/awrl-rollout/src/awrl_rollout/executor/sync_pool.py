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

from awrl_rollout.clock import Clock, RealClock
from awrl_rollout.concurrency import UnwrappedTaskGroup, raise_if_ending
from awrl_rollout.episode import EpisodeRecord, EpisodeRequest
from awrl_rollout.errors import RolloutError
from awrl_rollout.executor.slot import SlotPlan, SlotRunner, SlotTime, Workflow
from awrl_rollout.retry import RetryPolicy

SlotHook = Callable[[int], Awaitable[None]]
"""Spawns or tears down what a slot needs, for example its browser."""


class SyncPool:
    """Runs rounds of episodes with a barrier at the end of each.

    Args:
        workflow: `async (request, context) -> EpisodeResult | None`.
        num_slots: Episodes that run at once; a longer round reuses slots as they end.
        spawn: Awaited for each slot at the start of a round.
        tear_down: Awaited for each slot at the end of a round, also after a failure.
        deadline_s: Limit for one run of the workflow; None for none.
        retry: How often a faulted episode runs again in its slot.

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
        retry: RetryPolicy = RetryPolicy(),  # noqa: B008 - frozen
        clock: Clock | None = None,
        rng: random.Random | None = None,
    ) -> None:
        self.num_slots = num_slots
        self._spawn = spawn
        self._tear_down = tear_down
        self._clock = clock or RealClock()
        self._plan = SlotPlan(
            workflow=workflow,
            num_slots=num_slots,
            worker=name,
            deadline_s=deadline_s,
            retry=retry,
            clock=self._clock,
            rng=rng or random.Random(0),
        )
        self._busy_s = 0.0
        self._alive_s = 0.0

    async def run_round(self, requests: Sequence[EpisodeRequest]) -> list[EpisodeRecord]:
        """Return one record per request, in their order, after the slowest has ended."""
        started_s = self._clock.time()
        waiting = deque(enumerate(requests))
        records: dict[int, EpisodeRecord] = {}
        num_slots = min(self.num_slots, len(waiting))
        slots = [SlotRunner(self._plan, index) for index in range(num_slots)]
        try:
            await self._on_each(self._spawn, num_slots)
            async with UnwrappedTaskGroup() as group:
                for slot in slots:
                    group.create_task(_run_until_empty(slot, waiting, records))
        finally:
            await self._on_each(self._tear_down, num_slots)
            self._busy_s += sum(slot.busy_s for slot in slots)
            self._alive_s += (self._clock.time() - started_s) * self.num_slots
        return [records[place] for place in range(len(requests))]

    def statistics(self) -> SlotTime:
        """Return the time of all rounds so far, spawn and tear-down included."""
        return SlotTime(busy_s=self._busy_s, alive_s=self._alive_s)

    async def _on_each(self, hook: SlotHook | None, num_slots: int) -> None:
        if hook is None:
            return
        errors: list[BaseException] = []

        async def call(index: int) -> None:
            try:
                await hook(index)
            except BaseException as error:  # noqa: BLE001 - raised once every other slot is done
                raise_if_ending(error)
                errors.append(error)

        async with UnwrappedTaskGroup() as group:
            for index in range(num_slots):
                group.create_task(call(index))
        if errors and isinstance(errors[0], asyncio.CancelledError):
            raise RolloutError("a slot hook must not raise CancelledError.") from errors[0]
        if errors:
            raise errors[0]


async def _run_until_empty(
    slot: SlotRunner, waiting: deque[tuple[int, EpisodeRequest]], records: dict[int, EpisodeRecord]
) -> None:
    while waiting:
        place, request = waiting.popleft()
        records[place] = await slot.run(request)
