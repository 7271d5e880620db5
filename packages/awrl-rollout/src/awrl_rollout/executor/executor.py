"""`WorkflowExecutor`: one worker's everlasting slots, in one asyncio loop.

Invariants:
* every accepted request gets exactly one record, whatever its workflow does;
* at most `num_slots` episodes run; a slot that ends one starts the next at once, with no barrier
  between episodes, batches or weight versions;
* an episode that gives up its slot (`EpisodeContext.release_slot`) goes on beside the next one, at most
  `max_detached` of them at once;
* one failed episode harms no sibling;
* records leave in the order in which the episodes ended; one that was handed out against
  acknowledgements stays until it is acknowledged.

Loops, all children of one TaskGroup that `async with` or `serve()` owns:
* slot loop (x `num_slots`): consumes requests, produces records; waits for a request while
  admission is open; unblocked by `submit`, `resume_admission`, closing.
* notifier: consumes records, calls `on_finished` with all that are there; waits for a record. It is the
  package's named boundary `on_finished`: a slow or failing hook never holds a slot, and what it raises
  is logged, because polling finds the records anyway.

Lives inside a Ray actor as well: the actor's `run` method awaits `executor.serve()`.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections import deque
from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from types import TracebackType
from typing import Self

from awrl_rollout.clock import Clock, RealClock
from awrl_rollout.concurrency import ENDS_PROCESS, Signal, TaskScope, raise_if_ending
from awrl_rollout.episode import EpisodeRecord, EpisodeRequest, record_of
from awrl_rollout.errors import BatchTimeoutError, RolloutError
from awrl_rollout.executor.slot import (
    SlotPlan,
    SlotRunner,
    SlotTime,
    SlotView,
    Workflow,
    cancelled,
)
from awrl_rollout.retry import RetryPolicy

logger = logging.getLogger(__name__)

FinishedHook = Callable[[Sequence[EpisodeRecord]], Awaitable[None]]
"""Awaited with records that just ended, for example a `CallbackNotifier`."""

_CLOSED = "the executor was closed"


class ExecutorStatistics(SlotTime, frozen=True, kw_only=True):
    """A frozen picture of one executor."""

    name: str
    num_slots: int
    num_waiting: int
    """Requests accepted, not started."""
    num_running: int
    """Episodes in slots."""
    num_detached: int = 0
    """Episodes that gave up their slot and have not ended."""
    num_untaken: int
    """Records that nobody took yet."""
    num_ended: int
    """Records produced so far."""
    num_faults: int
    is_admission_open: bool
    slots: tuple[SlotView, ...]
    """What each busy slot does now."""


class ResultBuffer:
    """The records that nobody took yet."""

    def __init__(self) -> None:
        self._records: dict[str, EpisodeRecord] = {}

    def __len__(self) -> int:
        """Return the number of records."""
        return len(self._records)

    def __contains__(self, episode_id: object) -> bool:
        """Return whether this episode's record is here."""
        return episode_id in self._records

    def put(self, record: EpisodeRecord) -> None:
        """Keep a record."""
        self._records[record.episode_id] = record

    def pop(self, episode_ids: Sequence[str]) -> list[EpisodeRecord]:
        """Forget these records and return them; all must be here."""
        return [self._records.pop(episode_id) for episode_id in episode_ids]

    def take(self, acknowledged: Collection[str] | None) -> list[EpisodeRecord]:
        """Forget the acknowledged records and return all others; None forgets those too."""
        if acknowledged is None:
            records = list(self._records.values())
            self._records.clear()
            return records
        for episode_id in acknowledged:
            self._records.pop(episode_id, None)
        return list(self._records.values())


class Notifier:
    """Batches records for one hook."""

    def __init__(self, hook: FinishedHook) -> None:
        self._hook = hook
        self._records: list[EpisodeRecord] = []
        self._has_records = asyncio.Event()

    def note(self, record: EpisodeRecord) -> None:
        """Have the hook told of a record."""
        self._records.append(record)
        self._has_records.set()

    async def run(self) -> None:
        """Call the hook for ever."""
        while True:
            await self._has_records.wait()
            self._has_records.clear()
            records, self._records = self._records, []
            try:
                await self._hook(records)
            except BaseException as error:
                raise_if_ending(error)
                logger.warning("on_finished failed for %d records", len(records), exc_info=error)


class WorkflowExecutor:
    """Runs a workflow in many slots that never stop between requests.

    Args:
        workflow: `async (request, context) -> EpisodeResult | None`.
        deadline_s: Limit for one run of the workflow; None for none.
        on_finished: Awaited with the records that just ended; errors are logged, never raised.
        retry: How often a faulted episode runs again in its slot.
        max_detached: Episodes that may go on without a slot at one moment.

    Raises:
        ValueError: `num_slots` is below 1.
    """

    def __init__(
        self,
        workflow: Workflow,
        *,
        num_slots: int,
        name: str = "worker",
        deadline_s: float | None = None,
        on_finished: FinishedHook | None = None,
        retry: RetryPolicy = RetryPolicy(),  # noqa: B008 - frozen
        clock: Clock | None = None,
        rng: random.Random | None = None,
        max_detached: int = 0,
    ) -> None:
        self.name = name
        self.num_slots = num_slots
        self._clock = clock or RealClock()
        self._notifier = None if on_finished is None else Notifier(on_finished)
        self._max_detached = max_detached
        self._num_detached = 0
        self._plan = plan = SlotPlan(
            workflow=workflow,
            num_slots=num_slots,
            worker=name,
            deadline_s=deadline_s,
            retry=retry,
            clock=self._clock,
            rng=rng or random.Random(0),
        )
        self._slots = [
            SlotRunner(plan, index, on_release=self._detach) for index in range(num_slots)
        ]
        self._queue: asyncio.Queue[EpisodeRequest] = asyncio.Queue()
        self._held: deque[EpisodeRequest] = deque()
        self._waiting: dict[str, EpisodeRequest] = {}
        self._running: dict[str, SlotRunner] = {}
        self._results = ResultBuffer()
        self._changed = Signal()
        self._is_open = True
        self._is_closing = False
        self._num_ended = 0
        self._num_faults = 0
        self._serving_since_s: float | None = None
        self._listeners: list[Callable[[], None]] = []
        self._scope = TaskScope()
        self._closing = asyncio.Event()

    # -- life

    async def __aenter__(self) -> Self:
        """Start the slots."""
        await self._scope.enter()
        self._serving_since_s = self._clock.time()
        for slot in self._slots:
            self._scope.start(self._slot_loop(slot))
        if self._notifier is not None:
            self._scope.start(self._notifier.run())
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Close the executor and wait for its tasks."""
        try:
            await self.aclose()
        finally:
            await self._scope.leave(exc)

    async def serve(self) -> None:
        """Own the slots until `aclose`; for a host that has no `async with` of its own."""
        async with self:
            await self._closing.wait()

    async def aclose(self, *, timeout_s: float = 10.0) -> None:
        """Return within `timeout_s` with every accepted request recorded; harmless if repeated.

        Running episodes are cancelled and recorded as faults. A workflow that refuses to be
        cancelled is logged, recorded as a fault, and left behind.
        """
        if not self._is_closing:
            self._is_closing = True
            self.cancel(list(self._waiting))
            self._scope.cancel()
        try:
            await self._changed.wait_for(lambda: not self._running, timeout_s=timeout_s)
        except TimeoutError:
            stuck = [slot.request for slot in self._running.values() if slot.request is not None]
            ids = [request.episode_id for request in stuck]
            logger.warning("closed after %s s; these refuse to be cancelled: %s", timeout_s, ids)
            for request in stuck:
                self._record(self._aborted(request, _CLOSED))
        finally:  # also when the wait was interrupted: whoever serves goes on closing
            self._closing.set()

    # -- requests

    def submit(self, requests: Iterable[EpisodeRequest]) -> None:
        """Accept requests; each gets one record.

        Raises:
            RolloutError: The executor was closed.
            ValueError: An id is live or its record was not taken yet. Nothing was accepted.
        """
        if self._is_closing:
            raise RolloutError("executor must be open to submit, got a closed one. Make a new one.")
        accepted = list(requests)
        ids = [request.episode_id for request in accepted]
        known = [key for key in ids if self._knows(key)]
        if known or len(set(ids)) != len(ids):
            raise ValueError(
                f"episode_id must be new to this executor, got {known or ids!r}. Use fresh ids."
            )
        for request in accepted:
            self._waiting[request.episode_id] = request
            if self._is_open:
                self._queue.put_nowait(request)
            else:
                self._held.append(request)

    def cancel(self, episode_ids: Iterable[str]) -> None:
        """End these episodes as cancelled faults; unknown and ended ids are ignored."""
        for episode_id in episode_ids:
            request = self._waiting.pop(episode_id, None)
            slot = self._running.get(episode_id)
            if request is not None:
                self._keep(self._aborted(request, "was cancelled before it started"))
            elif slot is not None:
                slot.cancel()

    def pause_admission(self) -> None:
        """Start no further episode; running ones go on."""
        self._is_open = False
        while not self._queue.empty():
            self._held.append(self._queue.get_nowait())

    def resume_admission(self) -> None:
        """Start episodes again, in the order of their requests."""
        self._is_open = True
        while self._held:
            self._queue.put_nowait(self._held.popleft())

    # -- records

    def subscribe(self, listener: Callable[[], None]) -> None:
        """Call `listener` in this loop after every record; it must return at once."""
        self._listeners.append(listener)

    def take_finished(self, acknowledged: Collection[str] | None = None) -> list[EpisodeRecord]:
        """Return records in the order in which the episodes ended.

        Args:
            acknowledged: Ids of records that arrived; they are forgotten, and all others are
                returned and *kept*, so that a lost answer loses no record. None hands over all
                records and forgets them.
        """
        return self._results.take(acknowledged)

    async def wait(
        self, episode_ids: Sequence[str], *, timeout_s: float | None = None
    ) -> list[EpisodeRecord]:
        """Return these episodes' records, in the order of the ids, and forget them.

        Raises:
            BatchTimeoutError: Not all ended in time; nothing was taken.
            LookupError: An id is neither live nor untaken, or somebody else took its record.
        """
        for episode_id in episode_ids:
            if not self._knows(episode_id):
                raise LookupError(
                    f"episode_id must be live or untaken, got {episode_id!r}. Submit it first."
                )
        # What has ended is not looked at again, so the cost of a wait is linear in its ids.
        live = deque(episode_ids)

        def have_ended() -> bool:
            while live and not self._is_live(live[0]):
                live.popleft()
            return not live

        try:
            await self._changed.wait_for(have_ended, timeout_s=timeout_s)
        except TimeoutError as error:
            ids = [key for key in live if self._is_live(key)]
            raise BatchTimeoutError(
                f"{len(episode_ids)} episodes must end within {timeout_s} s, got "
                f"{len(ids)} still live: {ids[:5]!r}. Raise the limit or cancel them."
            ) from error
        gone = [key for key in episode_ids if key not in self._results]
        if gone:
            raise LookupError(
                f"a record must be taken once, got {gone[:5]!r} taken by take_finished meanwhile. "
                "Wait for episodes, or take what has finished, but not both."
            )
        return self._results.pop(episode_ids)

    async def rollout_batch(
        self, requests: Sequence[EpisodeRequest], *, timeout_s: float | None = None
    ) -> list[EpisodeRecord]:
        """Submit and wait; one record per request, rejected and faulted ones included.

        Raises:
            RolloutError: The executor was closed.
            BatchTimeoutError: Not all ended in time; their records can still be taken.
        """
        self.submit(requests)
        return await self.wait([request.episode_id for request in requests], timeout_s=timeout_s)

    def statistics(self) -> ExecutorStatistics:
        """Return a frozen picture of slots and counts."""
        now_s = self._clock.time() if self._serving_since_s is not None else 0.0
        in_slots = [slot for slot in self._running.values() if not slot.is_released]
        running_s = sum(now_s - slot.started_s for slot in in_slots)
        alive_s = 0.0 if self._serving_since_s is None else now_s - self._serving_since_s
        return ExecutorStatistics(
            name=self.name,
            num_slots=self.num_slots,
            num_waiting=len(self._waiting),
            num_running=len(in_slots),
            num_detached=len(self._running) - len(in_slots),
            num_untaken=len(self._results),
            num_ended=self._num_ended,
            num_faults=self._num_faults,
            is_admission_open=self._is_open,
            busy_s=sum(slot.busy_s for slot in self._slots) + running_s,
            alive_s=alive_s * self.num_slots,
            slots=tuple(view for slot in self._slots if (view := slot.view()) is not None),
        )

    # -- loops

    async def _slot_loop(self, slot: SlotRunner) -> None:
        while not (self._is_closing or slot.is_released):
            request = await self._queue.get()
            if self._waiting.get(request.episode_id) is not request:
                continue  # cancelled meanwhile; its id may be in line again
            del self._waiting[request.episode_id]
            self._running[request.episode_id] = slot
            try:
                record = await slot.run(request)
            except asyncio.CancelledError:
                self._record(self._aborted(request, _CLOSED))
                raise
            finally:
                self._num_detached -= slot.is_released
            self._record(record)

    def _detach(self, slot: SlotRunner) -> bool:
        """Have another runner take the slot; the episode in this one goes on."""
        if self._is_closing or self._num_detached >= self._max_detached:
            return False
        self._num_detached += 1
        successor = SlotRunner(self._plan, slot.index, busy_s=slot.busy_s, on_release=self._detach)
        self._slots[slot.index] = successor
        self._scope.start(self._slot_loop(successor))
        return True

    def _aborted(self, request: EpisodeRequest, message: str) -> EpisodeRecord:
        return record_of(request, cancelled(message), worker=self.name)

    def _record(self, record: EpisodeRecord) -> None:
        if self._running.pop(record.episode_id, None) is not None:
            self._keep(record)

    def _keep(self, record: EpisodeRecord) -> None:
        self._num_ended += 1
        self._num_faults += record.fault is not None
        if self._notifier is not None:
            self._notifier.note(record)
        self._results.put(record)
        self._changed.notify()
        for listener in self._listeners:
            try:
                listener()
            except ENDS_PROCESS:
                raise
            except BaseException as error:  # nothing is awaited here: no cancellation of ours
                logger.warning("a listener failed, polling finds the record", exc_info=error)

    def _is_live(self, episode_id: str) -> bool:
        return episode_id in self._waiting or episode_id in self._running

    def _knows(self, episode_id: str) -> bool:
        return self._is_live(episode_id) or episode_id in self._results
