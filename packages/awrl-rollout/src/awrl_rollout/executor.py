"""`WorkflowExecutor`: one worker's everlasting slots, in one asyncio loop.

Invariants:
* every accepted request gets exactly one record, whatever its workflow does;
* at most `num_slots` episodes run; a slot that ends one starts the next at once, with no barrier
  between episodes, batches or weight versions;
* one failed episode harms no sibling.

Loops, all children of one TaskGroup that `async with` or `serve()` owns:
* slot loop (x `num_slots`): consumes requests, produces records; waits for a request while
  admission is open; unblocked by `submit`, `resume_admission`, closing.
* notify loop, see `awrl_rollout.notify_loop`: a slow or failing hook never holds a slot.

Lives inside a Ray actor as well: the actor's `run` method awaits `executor.serve()`.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections import deque
from collections.abc import Callable, Collection, Iterable, Sequence
from types import TracebackType
from typing import Self

from awrl_rollout.clock import Clock, RealClock
from awrl_rollout.episode import EpisodeRecord, EpisodeRequest, Measured, record_fault
from awrl_rollout.errors import ClosedError
from awrl_rollout.faults import cancelled
from awrl_rollout.notify_loop import FinishedHook, NotifyLoop
from awrl_rollout.retry import RetryPolicy
from awrl_rollout.shelf import RecordShelf
from awrl_rollout.slot import SlotRunner, Workflow, check_num_slots
from awrl_rollout.statistics import ExecutorStatistics
from awrl_rollout.task_scope import TaskScope

logger = logging.getLogger(__name__)

_CLOSED = "the executor was closed"


class WorkflowExecutor:
    """Runs a workflow in many slots that never stop between requests.

    Args:
        workflow: `async (request, context) -> EpisodeResult | None`.
        num_slots: Episodes that run at once.
        name: Name of the worker, copied into records.
        deadline_s: Limit for one run of the workflow; None for none.
        on_finished: Awaited with the records that just ended; errors are logged, never raised.
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
        name: str = "worker",
        deadline_s: float | None = None,
        on_finished: FinishedHook | None = None,
        retry: RetryPolicy | None = None,
        clock: Clock | None = None,
        rng: random.Random | None = None,
    ) -> None:
        check_num_slots(num_slots)
        self.name = name
        self.num_slots = num_slots
        self._clock = RealClock() if clock is None else clock
        self._notify = None if on_finished is None else NotifyLoop(on_finished)
        self._measured = Measured(worker=name)
        shared_rng = random.Random(0) if rng is None else rng
        self._slots = [
            SlotRunner(
                workflow,
                index=index,
                worker=name,
                deadline_s=deadline_s,
                retry=RetryPolicy() if retry is None else retry,
                clock=self._clock,
                rng=shared_rng,
            )
            for index in range(num_slots)
        ]
        self._queue: asyncio.Queue[EpisodeRequest] = asyncio.Queue()
        self._held: deque[EpisodeRequest] = deque()
        self._waiting: dict[str, EpisodeRequest] = {}
        self._running: dict[str, SlotRunner] = {}
        self._shelf = RecordShelf()
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
        if self._notify is not None:
            self._scope.start(self._notify.run())
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Close the executor and wait for its tasks."""
        await self.aclose()
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
        if self._is_closing:
            return
        self._is_closing = True
        for episode_id in list(self._waiting):
            self.cancel([episode_id])
        self._scope.cancel()
        try:
            await self._shelf.changed.wait_for(lambda: not self._running, timeout_s=timeout_s)
        except TimeoutError:
            stuck = [slot.request for slot in self._running.values() if slot.request is not None]
            ids = [request.episode_id for request in stuck]
            logger.warning("closed after %s s; these refuse to be cancelled: %s", timeout_s, ids)
            for request in stuck:
                self._record(self._aborted(request, _CLOSED))
        self._closing.set()

    # -- requests

    def submit(self, requests: Iterable[EpisodeRequest]) -> None:
        """Accept requests; each gets one record.

        Raises:
            ClosedError: The executor was closed.
            ValueError: An id is live or its record was not taken yet. Nothing was accepted.
        """
        if self._is_closing:
            raise ClosedError("executor must be open to submit, got a closed one. Make a new one.")
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
        return self._shelf.take(acknowledged)

    async def wait(
        self, episode_ids: Sequence[str], *, timeout_s: float | None = None
    ) -> list[EpisodeRecord]:
        """Return these episodes' records, in the order of the ids, and forget them.

        Raises:
            BatchTimeoutError: Not all ended in time; nothing was taken.
            LookupError: An id is neither live nor untaken.
        """
        for episode_id in episode_ids:
            if not self._knows(episode_id):
                raise LookupError(
                    f"episode_id must be live or untaken, got {episode_id!r}. Submit it first."
                )
        return await self._shelf.wait(episode_ids, timeout_s=timeout_s)

    async def rollout_batch(
        self, requests: Sequence[EpisodeRequest], *, timeout_s: float | None = None
    ) -> list[EpisodeRecord]:
        """Submit and wait; one record per request, rejected and faulted ones included.

        Raises:
            ClosedError: The executor was closed.
            BatchTimeoutError: Not all ended in time; their records can still be taken.
        """
        self.submit(requests)
        return await self.wait([request.episode_id for request in requests], timeout_s=timeout_s)

    def statistics(self) -> ExecutorStatistics:
        """Return a frozen picture of slots and counts."""
        now_s = self._clock.time() if self._serving_since_s is not None else 0.0
        running_s = sum(now_s - slot.started_s for slot in self._running.values())
        alive_s = 0.0 if self._serving_since_s is None else now_s - self._serving_since_s
        return ExecutorStatistics(
            name=self.name,
            num_slots=self.num_slots,
            num_waiting=len(self._waiting),
            num_running=len(self._running),
            num_untaken=len(self._shelf),
            num_ended=self._num_ended,
            num_faults=self._num_faults,
            is_admission_open=self._is_open,
            busy_s=sum(slot.busy_s for slot in self._slots) + running_s,
            alive_s=alive_s * self.num_slots,
            slots=tuple(view for slot in self._slots if (view := slot.view()) is not None),
        )

    # -- loops

    async def _slot_loop(self, slot: SlotRunner) -> None:
        while not self._is_closing:
            request = await self._queue.get()
            if self._waiting.pop(request.episode_id, None) is None:
                continue
            self._running[request.episode_id] = slot
            try:
                record = await slot.run(request)
            except asyncio.CancelledError:
                self._record(self._aborted(request, _CLOSED))
                raise
            self._record(record)

    def _aborted(self, request: EpisodeRequest, message: str) -> EpisodeRecord:
        return record_fault(request, cancelled(message, boundary="executor"), self._measured)

    def _record(self, record: EpisodeRecord) -> None:
        if self._running.pop(record.episode_id, None) is not None:
            self._keep(record)

    def _keep(self, record: EpisodeRecord) -> None:
        self._num_ended += 1
        self._num_faults += record.fault is not None
        if self._notify is not None:
            self._notify.note(record)
        self._shelf.put(record)
        for listener in self._listeners:
            listener()

    def _knows(self, episode_id: str) -> bool:
        return any(episode_id in held for held in (self._waiting, self._running, self._shelf))
