"""`RolloutController`: one run's admission, dispatch, assembly and batches over many workers.

Invariants, whatever workers, callbacks and hooks do:
* every admitted episode ends in exactly one ledger state; a duplicate or late record is counted
  and ignored;
* training episodes in flight never exceed the manager's bounds, and episodes on one worker never
  exceed its slots;
* what `prepare_batch` calls trainable lies at most eta versions behind at that moment;
* evaluation episodes never touch the manager.

Loops, all children of the TaskGroup that `async with` owns:
* admission: consumes free slots, the refill line and the task source, produces assignments; waits
  for a change (record, publish, resume, new worker) or the poll interval.
* per worker, see `awrl_rollout.worker_link`: send and collect.

The trainer's side (`prepare_batch`, `publish`, `settle`) runs in the caller's task; it waits for
complete groups and is unblocked by the collect loops. The decisions are in `groups`, `batch` and
`awrl_staleness`; this module only carries them out.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence
from types import TracebackType
from typing import Self

import msgspec
from awrl_staleness import STALENESS, StalenessManager

from awrl_rollout.admission import Admission, ExtraBounds, TaskSource
from awrl_rollout.assembly import AcceptGroup, Assembly
from awrl_rollout.batch import RolloutBatch
from awrl_rollout.clock import Clock, RealClock
from awrl_rollout.controller_config import ControllerConfig
from awrl_rollout.episode import EpisodeRecord, EpisodeRequest
from awrl_rollout.errors import (
    BatchTimeoutError,
    ClosedError,
    DataExhaustedError,
    StarvedError,
)
from awrl_rollout.fleet import Fleet
from awrl_rollout.groups import GroupBook
from awrl_rollout.signal import Signal
from awrl_rollout.statistics import ControllerStatistics
from awrl_rollout.task_scope import TaskScope
from awrl_rollout.worker import NotifyingWorker, Worker
from awrl_rollout.worker_link import WorkerLink

logger = logging.getLogger(__name__)


class RolloutController:
    """Keeps workers full within the staleness bound and hands complete groups to a trainer.

    Use it as `async with RolloutController(...) as controller:`.

    Args:
        workers: The first workers; more can be added.
        manager: The run's one authority on pacing.
        source: Returns the next group's requests, None when a single pass is over.
        config: Time limits and policies.
        accept_group: Returns why a complete group is rejected, None to accept it.
        extra_bounds: Further named admission bounds, in episodes.
        on_worker_lost: Called with the name of a worker that died, so that it can be replaced.
        clock: Source of time.
    """

    def __init__(
        self,
        workers: Iterable[Worker],
        manager: StalenessManager,
        *,
        source: TaskSource | None = None,
        config: ControllerConfig | None = None,
        accept_group: AcceptGroup | None = None,
        extra_bounds: ExtraBounds | None = None,
        on_worker_lost: Callable[[str], None] | None = None,
        clock: Clock | None = None,
    ) -> None:
        self.config = ControllerConfig() if config is None else config
        self._manager = manager
        self._clock = RealClock() if clock is None else clock
        self._book = GroupBook(self.config.group)
        self._admission = Admission(manager, self._book, source, extra_bounds)
        self._assembly = Assembly(manager, self._book, accept_group)
        self._fleet = Fleet(self._clock, self._landed)
        self._on_worker_lost = on_worker_lost
        self._changed = Signal()
        self._wake = asyncio.Event()
        self._eval_waiting: list[EpisodeRequest] = []
        self._eval_records: dict[str, EpisodeRecord] = {}
        self._eval_live: set[str] = set()
        self._stuck_since_s: float | None = None
        self._overrun: tuple[int, float] | None = None
        self._is_closed = False
        self._scope = TaskScope()
        self._unsubscribe: Callable[[], None] | None = None
        for worker in workers:
            self._fleet.add(self._link(worker))

    # -- life

    async def __aenter__(self) -> Self:
        """Start the loops."""
        await self._scope.enter()
        loop = asyncio.get_running_loop()

        def wake() -> None:
            loop.call_soon_threadsafe(self._wake.set)

        self._unsubscribe = self._manager.subscribe(wake)
        self._scope.start(self._admission_loop())
        for link in self._fleet.live:
            self._serve(link)
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Close the controller and wait for its loops."""
        await self.aclose()
        await self._scope.leave(exc)

    async def aclose(self, *, timeout_s: float = 10.0) -> None:
        """Return within `timeout_s` with every episode ended in the ledger; harmless if repeated.

        Workers are asked to cancel what they run; they are not closed.
        """
        if self._is_closed:
            return
        self._is_closed = True
        self._admission.is_paused = True
        flying = {link: list(link.in_flight) for link in self._fleet.live if link.in_flight}
        self._fleet.land_all("the controller was closed")
        for group_id, episode_ids in self._book.abandon().items():
            for episode_id in episode_ids:
                self._manager.reject(episode_id, "the controller was closed")
            self._manager.close_group(group_id)
        try:
            async with asyncio.timeout(timeout_s), asyncio.TaskGroup() as group:
                for link, episode_ids in flying.items():
                    group.create_task(link.cancel(episode_ids))
        except TimeoutError:
            logger.warning("closed after %s s, before every worker cancelled", timeout_s)
        if self._unsubscribe is not None:
            self._unsubscribe()
        self._scope.cancel()
        self._changed.notify()

    def add_worker(self, worker: Worker) -> None:
        """Use one more worker from now on, or one in place of a dead one of its name.

        Raises:
            ValueError: A live worker has its name.
            ClosedError: The controller is closed or not entered yet.
        """
        self._check_open()
        link = self._link(worker)
        self._fleet.add(link)
        self._serve(link)
        self._wake.set()

    # -- the trainer's side

    async def prepare_batch(
        self, num_episodes: int, *, timeout_s: float | None = None
    ) -> RolloutBatch:
        """Return the oldest complete groups, once they were asked for `num_episodes`.

        A batch closes short when nothing runs and no further group fits the staleness budget.

        Args:
            num_episodes: Episodes, counted as the groups were asked for.
            timeout_s: Limit for the wait; None for none.

        Raises:
            BatchTimeoutError: It did not fill in time; nothing was consumed.
            DataExhaustedError: The source is over and the batch cannot fill.
            StarvedError: Nothing runs, nothing may start, and nothing waits.
            ClosedError: The controller is closed or not entered yet.
        """
        if num_episodes < 1:
            raise ValueError(
                f"num_episodes must be at least 1, got {num_episodes}. Count in episodes."
            )
        try:
            async with asyncio.timeout(timeout_s):
                while True:
                    self._check_open()
                    batch = self._try_batch(num_episodes)
                    if batch is not None:
                        return batch
                    await self._changed.wait()
        except TimeoutError as error:
            raise BatchTimeoutError(
                f"a batch of {num_episodes} must fill within {timeout_s} s, got "
                f"{self._assembly.ready.num_episodes}. {self.describe()}"
            ) from error

    def publish(self, version: int, *, batches: Sequence[int] | None = None) -> int:
        """Advance the weight version and settle the batches that it was computed from.

        Args:
            version: The version that the servers hold now.
            batches: `RolloutBatch.batch` numbers; None settles every consumed batch.

        Returns:
            How many episodes were settled.
        """
        num_settled = self._manager.publish(version, batches=batches)
        self._assembly.settled(batches)
        self._wake.set()
        return num_settled

    def settle(self, *, batches: Sequence[int] | None = None) -> int:
        """Return the budget of skipped or discarded batches; the version stays.

        Returns:
            How many episodes were settled.
        """
        num_settled = self._manager.settle(batches)
        self._assembly.settled(batches)
        self._wake.set()
        return num_settled

    # -- requests

    def submit(self, requests: Sequence[EpisodeRequest]) -> None:
        """Put training groups in line, ahead of the task source; they wait for their budget.

        Raises:
            ValueError: A group is malformed.
        """
        self._admission.submit(requests)
        self._wake.set()

    async def rollout_batch(
        self, requests: Sequence[EpisodeRequest], *, timeout_s: float | None = None
    ) -> list[EpisodeRecord]:
        """Run evaluation episodes; one record per request, in their order.

        They take slots but never touch the staleness manager.

        Raises:
            BatchTimeoutError: Not all ended in time; the rest was cancelled.
            ValueError: An id is live.
            ClosedError: The controller is closed or not entered yet.
        """
        self._check_open()
        ids = [request.episode_id for request in requests]
        if len(set(ids)) != len(ids) or self._eval_live.intersection(ids):
            raise ValueError(f"episode_id must be new, got {ids[:5]!r}. Use fresh ids.")
        self._eval_live.update(ids)
        self._eval_waiting.extend(
            msgspec.structs.replace(request, is_eval=True) for request in requests
        )
        self._wake.set()
        try:
            await self._changed.wait_for(
                lambda: self._is_closed or all(key in self._eval_records for key in ids),
                timeout_s=timeout_s,
            )
            self._check_open()
            return [self._eval_records[key] for key in ids]
        except TimeoutError as error:
            num_ended = sum(key in self._eval_records for key in ids)
            raise BatchTimeoutError(
                f"{len(ids)} evaluation episodes must end within {timeout_s} s, got {num_ended}. "
                "Raise the limit or give more slots."
            ) from error
        finally:
            self._forget_eval(ids)

    # -- pausing

    def pause_admission(self) -> None:
        """Start no further training episode; running ones go on."""
        self._admission.is_paused = True

    def resume_admission(self) -> None:
        """Start training episodes again."""
        self._admission.is_paused = False
        self._wake.set()

    async def pause_generation(self) -> None:
        """Return once no live worker sends requests to an inference server."""
        async with asyncio.TaskGroup() as group:
            for link in self._fleet.live:
                group.create_task(link.pause())

    async def resume_generation(self) -> None:
        """Let every live worker generate again."""
        async with asyncio.TaskGroup() as group:
            for link in self._fleet.live:
                group.create_task(link.resume())

    async def drain(self, *, timeout_s: float | None = None) -> None:
        """Pause admission and return once no episode is in flight.

        Raises:
            BatchTimeoutError: Episodes still run after `timeout_s`.
        """
        self.pause_admission()
        try:
            await self._changed.wait_for(lambda: not self._fleet.num_in_flight, timeout_s=timeout_s)
        except TimeoutError as error:
            raise BatchTimeoutError(
                f"all episodes must end within {timeout_s} s, got {self._fleet.num_in_flight} "
                "in flight. Raise the limit or close the controller."
            ) from error

    def nudge(self, worker_name: str) -> None:
        """Look at a worker's records now; what a completion callback calls, any number of times."""
        link = self._fleet.links.get(worker_name)
        if link is not None:
            link.nudge()

    # -- reports

    def describe(self) -> str:
        """Return one sentence: what waits for what."""
        capacity = self._manager.capacity()
        blocked = self._admission.blocked_by
        return (
            f"{self._fleet.num_in_flight} episodes in flight on {len(self._fleet.live)} workers, "
            f"{len(self._book.pending)} members wait for a slot, {self._book.num_open} groups are "
            f"open, {len(self._assembly.ready)} are ready; {capacity.describe()}"
            + (f"; the next group was refused by {blocked}" if blocked else "")
            + ("; admission is paused" if self._admission.is_paused else "")
        )

    def statistics(self) -> ControllerStatistics:
        """Return a frozen picture of flights, groups and counts."""
        fleet, assembly = self._fleet, self._assembly
        return ControllerStatistics(
            num_workers=len(fleet.live),
            num_slots=sum(link.num_slots for link in fleet.live),
            num_in_flight=fleet.num_in_flight,
            num_pending=len(self._book.pending),
            num_eval_waiting=len(self._eval_waiting),
            num_open_groups=self._book.num_open,
            num_ready_groups=len(assembly.ready),
            num_ready_episodes=assembly.ready.num_episodes,
            num_landed=fleet.num_landed,
            num_faults=fleet.num_faults,
            num_refills=self._book.num_refills,
            num_duplicates=fleet.num_duplicates,
            num_worker_deaths=fleet.num_worker_deaths,
            num_smaller_groups=assembly.num_smaller_groups,
            dropped_groups=dict(assembly.dropped_groups),
            is_admission_open=not self._admission.is_paused,
            blocked_by=self._admission.blocked_by,
            staleness=self._manager.statistics(),
        )

    # -- loops and decisions

    async def _admission_loop(self) -> None:
        while not self._is_closed:
            self._pump()
            try:
                async with asyncio.timeout(self.config.poll_interval_s):
                    await self._wake.wait()
            except TimeoutError:
                pass
            self._wake.clear()
            self._changed.notify()

    def _pump(self) -> None:
        if self.config.episode_deadline_s is not None:
            self._fleet.land_overdue(self.config.episode_deadline_s)
        while self._eval_waiting:
            request = self._eval_waiting[0]
            link = self._fleet.pick(request.group_id)
            if link is None:
                return
            del self._eval_waiting[0]
            self._fleet.assign(request, link)
        while self._fleet.num_free > 0:
            request = self._admission.next_start()
            if request is None:
                return
            link = self._fleet.pick(request.group_id)
            assert link is not None
            self._fleet.assign(request, link)

    def _landed(self, request: EpisodeRequest, record: EpisodeRecord) -> None:
        if request.is_eval:
            if request.episode_id in self._eval_live:
                self._eval_records[request.episode_id] = record
        else:
            complete = self._assembly.ended(request, record)
            if complete is not None:
                self._fleet.forget_group(complete.group_id)
        self._wake.set()
        self._changed.notify()

    def _died(self, link: WorkerLink, reason: str) -> None:
        self._fleet.lose(link, reason)
        if self._on_worker_lost is not None:
            self._on_worker_lost(link.name)
        self._wake.set()

    def _try_batch(self, num_episodes: int) -> RolloutBatch | None:
        self._assembly.sweep()
        ready = self._assembly.ready
        if ready.num_episodes >= num_episodes:
            if self._must_wait_for_overrun():
                return None
            return self._assembly.take(num_episodes, is_short=False)
        if self._fleet.num_training or self._book.pending or self._admission.is_paused:
            self._stuck_since_s = None
            return None
        if not self._admission.has_more:
            raise DataExhaustedError(
                f"a batch of {num_episodes} must fill from the task source, got "
                f"{ready.num_episodes} and no further group: data exhausted. Use an endless "
                "source, or take what is ready with a smaller batch."
            )
        return self._when_stuck(num_episodes)

    def _when_stuck(self, num_episodes: int) -> RolloutBatch | None:
        now_s = self._clock.time()
        if self._admission.blocked_by == STALENESS and len(self._assembly.ready):
            return self._assembly.take(num_episodes, is_short=True)
        if self._stuck_since_s is None:
            self._stuck_since_s = now_s
        if self._assembly.in_training or (
            now_s - self._stuck_since_s < self.config.starved_after_s
        ):
            return None
        raise StarvedError(
            f"a batch of {num_episodes} must be able to fill, got nothing running for "
            f"{self.config.starved_after_s} s: {self.describe()}. Free what the refusing bound "
            "counts, or add a worker."
        )

    def _must_wait_for_overrun(self) -> bool:
        if self.config.on_overrun == "drop":
            return False
        version = self._manager.version
        last = version - self._manager.config.max_off_policyness
        if not self._book.has_group_as_old_as(last):
            return False
        now_s = self._clock.time()
        if self._overrun is None or self._overrun[0] != version:
            self._overrun = (version, now_s)
        return now_s - self._overrun[1] < self.config.overrun_deadline_s

    def _forget_eval(self, ids: Sequence[str]) -> None:
        self._eval_live.difference_update(ids)
        self._eval_waiting = [
            request for request in self._eval_waiting if request.episode_id not in ids
        ]
        for flight in self._fleet.cancel(ids, "the evaluation was given up"):
            flight.link.ask_to_cancel(flight.request.episode_id)
        for key in ids:
            self._eval_records.pop(key, None)

    def _link(self, worker: Worker) -> WorkerLink:
        if isinstance(worker, NotifyingWorker):
            worker.subscribe(self.nudge)
        return WorkerLink(
            worker,
            poll_interval_s=self.config.poll_interval_s,
            call_deadline_s=self.config.worker_call_deadline_s,
            on_records=self._fleet.land,
            on_death=self._died,
        )

    def _serve(self, link: WorkerLink) -> None:
        self._scope.start(link.send_loop())
        self._scope.start(link.collect_loop())

    def _check_open(self) -> None:
        if self._is_closed or not self._scope.is_entered:
            state = "a closed one" if self._is_closed else "one that was not entered"
            raise ClosedError(
                f"controller must be open, got {state}. Use `async with` around every call."
            )
