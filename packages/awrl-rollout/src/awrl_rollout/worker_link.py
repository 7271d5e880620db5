"""The controller's end of one worker: what it holds, and the two loops that talk to it.

Invariants:
* an episode is in flight on exactly one link, from its assignment to its record;
* a lost answer costs one poll interval, never a record: records are acknowledged one call later;
* once dead, a link says so once and never speaks to its worker again.

Loops, children of the controller's TaskGroup:
* send: consumes the outbox, produces `worker.submit` and `worker.cancel` calls; unblocked by
  `assign`, `ask_to_cancel` and death.
* collect: consumes the worker's records, produces calls of `on_records`; waits for a nudge (the
  callback) or the poll interval (the safety net), only while episodes are in flight.

This is the package's named boundary `worker`: any exception or missed deadline of a worker's
method is the death of that worker, not of the run.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from awrl_rollout.episode import EpisodeRecord, EpisodeRequest
from awrl_rollout.statistics import ExecutorStatistics
from awrl_rollout.worker import Worker

logger = logging.getLogger(__name__)

_T = TypeVar("_T")


class WorkerLink:
    """Assigns episodes to one worker and brings their records back.

    Args:
        worker: The worker.
        poll_interval_s: Longest time between two looks at its records.
        call_deadline_s: Limit for each of its methods.
        on_records: Called with the records of one look.
        on_death: Called once, with a reason.
    """

    def __init__(
        self,
        worker: Worker,
        *,
        poll_interval_s: float,
        call_deadline_s: float,
        on_records: Callable[[Sequence[EpisodeRecord]], None],
        on_death: Callable[[WorkerLink, str], None],
    ) -> None:
        self.name = worker.name
        self.num_slots = worker.num_slots
        self.in_flight: dict[str, EpisodeRequest] = {}
        self.is_dead = False
        self._worker = worker
        self._poll_interval_s = poll_interval_s
        self._call_deadline_s = call_deadline_s
        self._on_records = on_records
        self._on_death = on_death
        self._outbox: list[EpisodeRequest] = []
        self._acknowledged: list[str] = []
        self._to_cancel: list[str] = []
        self._has_outbox = asyncio.Event()
        self._has_flight = asyncio.Event()
        self._nudge = asyncio.Event()

    @property
    def num_free(self) -> int:
        """Slots that no assigned episode holds."""
        return 0 if self.is_dead else self.num_slots - len(self.in_flight)

    def assign(self, request: EpisodeRequest) -> None:
        """Put an episode in flight on this worker."""
        self.in_flight[request.episode_id] = request
        self._outbox.append(request)
        self._has_outbox.set()
        self._has_flight.set()

    def release(self, episode_id: str) -> None:
        """Forget an episode whose record arrived."""
        self.in_flight.pop(episode_id, None)
        if not self.in_flight:
            self._has_flight.clear()

    def ask_to_cancel(self, episode_id: str) -> None:
        """Have an episode cancelled that has landed here already, to free its slot."""
        num_before = len(self._outbox)
        self._outbox = [item for item in self._outbox if item.episode_id != episode_id]
        if len(self._outbox) == num_before:  # else it was never sent
            self._to_cancel.append(episode_id)
            self._has_outbox.set()

    def nudge(self) -> None:
        """Look at the worker's records now."""
        self._nudge.set()

    async def send_loop(self) -> None:
        """Submit what `assign` put into the outbox, until the worker dies."""
        while not self.is_dead:
            await self._has_outbox.wait()
            self._has_outbox.clear()
            # Cancelling comes first: it frees the slots that the requests were assigned to.
            episode_ids, self._to_cancel = self._to_cancel, []
            if episode_ids:
                await self._mortal(self._worker.cancel(episode_ids))
            requests, self._outbox = self._outbox, []
            if requests and not self.is_dead:
                await self._mortal(self._worker.submit(requests))

    async def collect_loop(self) -> None:
        """Bring records back, until the worker dies."""
        while not self.is_dead:
            await self._has_flight.wait()
            try:
                async with asyncio.timeout(self._poll_interval_s):
                    await self._nudge.wait()
            except TimeoutError:
                pass
            self._nudge.clear()
            if not self.is_dead:
                await self._collect()

    async def _collect(self) -> None:
        acknowledged, self._acknowledged = self._acknowledged, []
        records = await self._mortal(self._worker.take_finished(acknowledged))
        if records:
            self._acknowledged = [record.episode_id for record in records]
            self._on_records(records)

    async def pause(self) -> None:
        """Pause the worker's generation."""
        await self._mortal(self._worker.pause())

    async def resume(self) -> None:
        """Resume the worker's generation."""
        await self._mortal(self._worker.resume())

    async def cancel(self, episode_ids: Sequence[str]) -> None:
        """Cancel episodes on the worker."""
        await self._mortal(self._worker.cancel(episode_ids))

    async def statistics(self) -> ExecutorStatistics | None:
        """Return what the worker does now, None when it is dead."""
        return await self._mortal(self._worker.statistics())

    async def _mortal(self, call: Awaitable[_T]) -> _T | None:
        """Await one call of the worker; None when it died of it."""
        try:
            async with asyncio.timeout(self._call_deadline_s):
                return await call
        except Exception as error:
            logger.warning("worker %r is dead", self.name, exc_info=error)
            self.die(f"{type(error).__name__}: {error}")
            return None

    def die(self, reason: str) -> None:
        """Mark the worker as dead, once."""
        if not self.is_dead:
            self.is_dead = True
            self._has_outbox.set()
            self._has_flight.set()
            self._nudge.set()
            self._on_death(self, reason)
