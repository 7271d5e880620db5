"""Who waits for whom: asks the workers and says it in one sentence."""

from __future__ import annotations

import asyncio
import logging

from awrl_rollout.clock import Clock
from awrl_rollout.parts import ControllerParts
from awrl_rollout.statistics import ExecutorStatistics
from awrl_rollout.watchdog import describe_wait
from awrl_rollout.worker_link import WorkerLink

logger = logging.getLogger(__name__)


class Reporter:
    """Reports on one controller.

    Args:
        parts: Its parts.
        interval_s: Waits and stages longer than this are worth a word.
        clock: Source of time.
    """

    def __init__(self, parts: ControllerParts, interval_s: float, clock: Clock) -> None:
        self._parts = parts
        self._interval_s = interval_s
        self._clock = clock
        self._num_wanted = 0
        self._since_s: float | None = None

    def trainer_waits(self, num_episodes: int) -> None:
        """Note that the trainer waits for a batch from now on."""
        self._num_wanted = num_episodes
        self._since_s = self._clock.time()

    def trainer_goes_on(self) -> None:
        """Note that the trainer waits no more."""
        self._num_wanted = 0
        self._since_s = None

    async def worker_statistics(self) -> list[ExecutorStatistics]:
        """Return what each live worker does now, by name."""
        found: list[ExecutorStatistics] = []

        async def ask(link: WorkerLink) -> None:
            statistics = await link.statistics()
            if statistics is not None:
                found.append(statistics)

        async with asyncio.TaskGroup() as group:
            for link in self._parts.fleet.live:
                group.create_task(ask(link))
        return sorted(found, key=lambda item: item.name)

    async def report(self) -> str:
        """Return one sentence: for whom the trainer waits, and where most slots are stuck."""
        # Read before the workers answer: the trainer may go on meanwhile.
        num_missing = max(0, self._num_wanted - self._parts.assembly.ready.num_episodes)
        waiting_s = 0.0 if self._since_s is None else self._clock.time() - self._since_s
        workers = await self.worker_statistics()
        return describe_wait(
            num_missing=num_missing,
            waiting_s=waiting_s,
            num_slots=sum(worker.num_slots for worker in workers),
            views=[view for worker in workers for view in worker.slots],
            stuck_after_s=self._interval_s,
            situation=self._parts.describe(),
        )

    async def watch(self) -> None:
        """Log the sentence when the trainer has waited for the interval."""
        if self._since_s is not None and self._clock.time() - self._since_s >= self._interval_s:
            logger.warning("%s", await self.report())
