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
* watchdog: consumes the workers' statistics, produces a log line while the trainer waits; waits for
  its interval.
* per worker, see `awrl_rollout.worker_link`: send and collect.

The trainer's side (`prepare_batch`, `publish`, `settle`) runs in the caller's task; it waits for
complete groups and is unblocked by the collect loops. The decisions are in
`admission`, `assembly`, `batch_rule` and `awrl_staleness`; this module only carries them out.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence
from types import TracebackType
from typing import Self

from awrl_staleness import StalenessManager

from awrl_rollout.admission import Admission, ExtraBounds, TaskSource
from awrl_rollout.assembly import AcceptGroup, Assembly, DiscardHook, GroupDropHook
from awrl_rollout.batch import RolloutBatch
from awrl_rollout.batch_rule import BatchRule
from awrl_rollout.breaker import FaultBreaker
from awrl_rollout.clock import Clock, RealClock
from awrl_rollout.controller_config import ControllerConfig
from awrl_rollout.episode import EpisodeRecord, EpisodeRequest
from awrl_rollout.errors import BatchTimeoutError, ClosedError
from awrl_rollout.eval_desk import EvalDesk
from awrl_rollout.fleet import Fleet
from awrl_rollout.groups import GroupBook
from awrl_rollout.parts import ControllerParts
from awrl_rollout.resume import ControllerSnapshot, load_snapshot, take_snapshot
from awrl_rollout.signal import Signal
from awrl_rollout.statistics import ControllerStatistics, ExecutorStatistics
from awrl_rollout.task_scope import TaskScope
from awrl_rollout.watchdog import describe_wait
from awrl_rollout.worker import NotifyingWorker, Worker
from awrl_rollout.worker_link import WorkerLink

logger = logging.getLogger(__name__)

_CLOSED = "the controller was closed"


class RolloutController:
    """Keeps workers full within the staleness bound and hands complete groups to a trainer.

    Use it as `async with RolloutController(...) as controller:`.

    Args:
        workers: The first workers; more can be added.
        manager: The run's one authority on pacing.
        source: Returns the next group's requests, None when a single pass is over.
        config: Time limits and policies.
        accept_group: Returns why a complete group is rejected, None to accept it.
        on_discarded: Told of each training record that no batch will hold, with the reason.
        on_group_dropped: Told of each group that no batch will hold, with the reason.
        extra_bounds: Further named admission bounds, in episodes.
        on_worker_lost: Called with the name of a worker that died, so that it can be replaced.
        resume_from: Where an earlier controller stood; `manager` was restored from it too.
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
        on_discarded: DiscardHook | None = None,
        on_group_dropped: GroupDropHook | None = None,
        extra_bounds: ExtraBounds | None = None,
        on_worker_lost: Callable[[str], None] | None = None,
        resume_from: ControllerSnapshot | None = None,
        clock: Clock | None = None,
    ) -> None:
        self.config = ControllerConfig() if config is None else config
        self._clock = RealClock() if clock is None else clock
        book = GroupBook(self.config.group)
        self._parts = ControllerParts(
            manager=manager,
            book=book,
            admission=Admission(manager, book, source, extra_bounds),
            assembly=Assembly(
                manager,
                book,
                accept_group,
                on_discarded=on_discarded,
                on_group_dropped=on_group_dropped,
            ),
            fleet=Fleet(self._clock, self._landed, self._late),
            desk=EvalDesk(),
            breaker=FaultBreaker(
                max_share=self.config.max_fault_share, window=self.config.fault_window
            ),
        )
        self._rule = BatchRule(self._parts, self.config, self._clock)
        self._on_worker_lost = on_worker_lost
        self._changed = Signal()
        self._wake = asyncio.Event()
        self._trainer_waits: tuple[int, float] | None = None
        self._is_closed = False
        self._scope = TaskScope()
        self._unsubscribe: Callable[[], None] | None = None
        if resume_from is not None:
            load_snapshot(self._parts, resume_from)
        for worker in workers:
            self._parts.fleet.add(self._link(worker))

    # -- life

    async def __aenter__(self) -> Self:
        """Start the loops."""
        await self._scope.enter()
        loop = asyncio.get_running_loop()

        def wake() -> None:
            loop.call_soon_threadsafe(self._wake.set)

        self._unsubscribe = self._parts.manager.subscribe(wake)
        self._scope.start(self._admission_loop())
        self._scope.start(self._watchdog_loop())
        for link in self._parts.fleet.live:
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

        Workers are asked to cancel what they run; they are not closed. Ready groups stay queued.
        """
        if self._is_closed:
            return
        self._is_closed = True
        parts = self._parts
        parts.admission.is_paused = True
        flying = {link: list(link.in_flight) for link in parts.fleet.live if link.in_flight}
        parts.fleet.land_all(_CLOSED)
        parts.assembly.abandon(_CLOSED)
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
        self._parts.fleet.add(link)
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
            FaultShareError: The share of faults stayed above its limit.
            StarvedError: Nothing runs, nothing may start, and nothing waits.
            ClosedError: The controller is closed or not entered yet.
            ValueError: `num_episodes` is below 1.
        """
        if num_episodes < 1:
            raise ValueError(
                f"num_episodes must be at least 1, got {num_episodes}. Count in episodes."
            )
        self._trainer_waits = (num_episodes, self._clock.time())
        try:
            async with asyncio.timeout(timeout_s):
                while True:
                    self._check_open()
                    self._parts.assembly.sweep()
                    self._pump()
                    batch = self._rule.try_batch(num_episodes)
                    if batch is not None:
                        return batch
                    await self._changed.wait()
        except TimeoutError as error:
            raise BatchTimeoutError(
                f"a batch of {num_episodes} must fill within {timeout_s} s, got "
                f"{self._parts.assembly.ready.num_episodes}: {self.describe()}. Raise the limit, "
                "or mend what the sentence names."
            ) from error
        finally:
            self._trainer_waits = None

    def publish(self, version: int, *, batches: Sequence[int] | None = None) -> int:
        """Advance the version, settle the batches behind it, return how many episodes that were.

        Args:
            version: The version that the servers hold now.
            batches: `RolloutBatch.batch` numbers; None settles every consumed batch.
        """
        num_settled = self._parts.manager.publish(version, batches=batches)
        self._parts.assembly.settled(batches)
        self._wake.set()
        return num_settled

    def settle(self, *, batches: Sequence[int] | None = None) -> int:
        """Settle skipped or discarded batches, return how many episodes; the version stays."""
        num_settled = self._parts.manager.settle(batches)
        self._parts.assembly.settled(batches)
        self._wake.set()
        return num_settled

    # -- requests

    def submit(self, requests: Sequence[EpisodeRequest]) -> None:
        """Put requests in line: evaluation at once, training groups ahead of the task source.

        Training waits for its budget and comes by `prepare_batch`; evaluation takes slots, never
        touches the staleness manager, and comes by `wait`.

        Raises:
            ValueError: A group is malformed, or an evaluation id is live.
            ClosedError: The controller is closed or not entered yet.
        """
        self._check_open()
        self._parts.admission.submit([item for item in requests if not item.is_eval])
        self._parts.desk.submit([item for item in requests if item.is_eval])
        self._wake.set()

    async def wait(
        self, episode_ids: Sequence[str], *, timeout_s: float | None = None
    ) -> list[EpisodeRecord]:
        """Return the records of evaluation episodes, in the order of the ids; give up on an error.

        Raises:
            BatchTimeoutError: Not all ended in time; the rest was cancelled.
            LookupError: An id is not a live evaluation episode.
            ClosedError: The controller is closed or not entered yet.
        """
        desk = self._parts.desk
        desk.check(episode_ids)
        num_wanted = len(episode_ids)
        try:
            await self._changed.wait_for(
                lambda: self._is_closed or desk.count(episode_ids) == num_wanted,
                timeout_s=timeout_s,
            )
            self._check_open()
            return desk.take(episode_ids)
        except TimeoutError as error:
            raise BatchTimeoutError(
                f"{num_wanted} evaluation episodes must end within {timeout_s} s, got "
                f"{desk.count(episode_ids)}. Raise the limit or give more slots."
            ) from error
        finally:
            desk.give_up(episode_ids)
            for flight in self._parts.fleet.cancel(episode_ids, "the evaluation was given up"):
                flight.link.ask_to_cancel(flight.request.episode_id)

    async def rollout_batch(
        self, requests: Sequence[EpisodeRequest], *, timeout_s: float | None = None
    ) -> list[EpisodeRecord]:
        """Run evaluation episodes; one record per request, in their order, faults included.

        Raises:
            BatchTimeoutError: Not all ended in time; the rest was cancelled.
            ValueError: An id is live.
            ClosedError: The controller is closed or not entered yet.
        """
        self._check_open()
        self._parts.desk.submit(requests)
        self._wake.set()
        return await self.wait([item.episode_id for item in requests], timeout_s=timeout_s)

    # -- pausing

    def pause_admission(self) -> None:
        """Start no further training episode; running ones go on."""
        self._parts.admission.is_paused = True

    def resume_admission(self) -> None:
        """Start training episodes again."""
        self._parts.admission.is_paused = False
        self._wake.set()

    async def pause_generation(self) -> None:
        """Return once no live worker sends requests to an inference server."""
        async with asyncio.TaskGroup() as group:
            for link in self._parts.fleet.live:
                group.create_task(link.pause())

    async def resume_generation(self) -> None:
        """Let every live worker generate again."""
        async with asyncio.TaskGroup() as group:
            for link in self._parts.fleet.live:
                group.create_task(link.resume())

    async def drain(self, *, timeout_s: float | None = None) -> None:
        """Pause admission and return once no episode is in flight.

        Raises:
            BatchTimeoutError: Episodes still run after `timeout_s`.
        """
        self.pause_admission()
        fleet = self._parts.fleet
        try:
            await self._changed.wait_for(lambda: not fleet.num_in_flight, timeout_s=timeout_s)
        except TimeoutError as error:
            raise BatchTimeoutError(
                f"all episodes must end within {timeout_s} s, got {fleet.num_in_flight} in "
                "flight. Raise the limit or close the controller."
            ) from error

    def nudge(self, worker_name: str) -> None:
        """Look at a worker's records now; what a completion callback calls, any number of times."""
        link = self._parts.fleet.links.get(worker_name)
        if link is not None:
            link.nudge()

    # -- reports

    def describe(self) -> str:
        """Return one sentence: what waits for what."""
        return self._parts.describe()

    def statistics(self) -> ControllerStatistics:
        """Return a frozen picture of flights, groups and counts."""
        return self._parts.statistics()

    async def worker_statistics(self) -> list[ExecutorStatistics]:
        """Return what each live worker does now."""
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
        workers = await self.worker_statistics()
        num_wanted, since_s = self._trainer_waits or (0, self._clock.time())
        return describe_wait(
            num_missing=max(0, num_wanted - self._parts.assembly.ready.num_episodes),
            waiting_s=self._clock.time() - since_s,
            num_slots=sum(worker.num_slots for worker in workers),
            views=[view for worker in workers for view in worker.slots],
            stuck_after_s=self.config.watchdog_interval_s,
            situation=self.describe(),
        )

    def snapshot(self) -> ControllerSnapshot:
        """Return what a checkpoint has to hold; read the task source's position with it."""
        return take_snapshot(self._parts)

    # -- loops and their steps

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

    async def _watchdog_loop(self) -> None:
        while not self._is_closed:
            await self._clock.sleep(self.config.watchdog_interval_s)
            waits = self._trainer_waits
            if waits and self._clock.time() - waits[1] >= self.config.watchdog_interval_s:
                logger.warning("%s", await self.report())

    def _pump(self) -> None:
        """Fill every free slot that the bounds allow."""
        fleet, desk = self._parts.fleet, self._parts.desk
        if self._is_closed:
            return
        if self.config.episode_deadline_s is not None:
            for flight in fleet.land_overdue(self.config.episode_deadline_s):
                flight.link.ask_to_cancel(flight.request.episode_id)
        while desk.waiting:
            link = fleet.pick(desk.waiting[0].group_id)
            if link is None:
                return
            fleet.assign(desk.waiting.popleft(), link)
        while not self._parts.breaker.is_open and fleet.has_free:
            request = self._parts.admission.next_start()
            if request is None:
                return
            link = fleet.pick(request.group_id)
            assert link is not None
            fleet.assign(request, link)

    def _landed(self, request: EpisodeRequest, record: EpisodeRecord) -> None:
        if request.is_eval:
            self._parts.desk.landed(record)
        else:
            self._parts.breaker.note(record.fault)
            complete = self._parts.assembly.ended(request, record)
            if complete is not None:
                self._parts.fleet.forget_group(complete.group_id)
        self._wake.set()
        self._changed.notify()

    def _late(self, record: EpisodeRecord) -> None:
        if not record.is_eval:
            self._parts.assembly.late([record])

    def _died(self, link: WorkerLink, reason: str) -> None:
        self._parts.fleet.lose(link, reason)
        if self._on_worker_lost is not None and not self._is_closed:
            self._on_worker_lost(link.name)
        self._wake.set()

    def _link(self, worker: Worker) -> WorkerLink:
        if isinstance(worker, NotifyingWorker):
            worker.subscribe(self.nudge)
        return WorkerLink(
            worker,
            poll_interval_s=self.config.poll_interval_s,
            call_deadline_s=self.config.worker_call_deadline_s,
            on_records=self._parts.fleet.land,
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
