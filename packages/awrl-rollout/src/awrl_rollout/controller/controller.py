"""`RolloutController`: keeps every slot of many workers full and hands batches to a trainer.

::

    source, submit --> scheduler --> worker pool --> worker --.        what decides, without waiting:
                          ^              ^                    |        scheduler  which episode starts
                          | refill       | records            |        groups     who is missing
                       groups <------ completed <-------------'        batches    what the trainer gets
                          |                                            breaker    too many faults
                          '--> batches --prepare_batch--> trainer --advance, release_budget--.
                                  ^                                                          |
                                  '------------------- staleness manager <-------------------'

Loops, children of one TaskScope:

============  ========================  ======================  =====================  ===============
loop          consumes                  produces                waits for              unblocked by
============  ========================  ======================  =====================  ===============
scheduling    free slots, refills,      assignments             `wake`, or the poll    a record, advance,
              groups of the source                              interval               a new worker
watching      the trainer's wait        a sentence in the log   its interval           time alone
send          a worker's outbox         calls of the worker     an assignment          `assign`
(per worker)
collect       a worker's records        completed episodes      its callback, or the   `notify`
(per worker)                                                    poll interval
============  ========================  ======================  =====================  ===============

`prepare_batch`, `advance` and `release_budget` run in the trainer's task; `prepare_batch` waits for
complete groups and is unblocked by the collect loops. Whoever changes the state calls `_wake`, and
every waiter then checks its own predicate.

Invariants, whatever workers, callbacks and hooks do:
* every admitted episode ends in exactly one ledger state; a duplicate or late record is counted
  and ignored;
* episodes in flight never exceed the manager's bounds, and those on one worker never its slots;
* what `prepare_batch` calls trainable lies at most eta versions behind at that moment;
* a batch closes full as soon as enough groups are ready (under `on_overrun = "wait"`, once no open
  group would expire with the next version); it closes short only when nothing runs and no further
  group fits the staleness budget; one that can never fill is an error that says why.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Sequence
from types import TracebackType
from typing import Self

from awrl_staleness import STALENESS, StalenessManager

from awrl_rollout.clock import Clock, RealClock
from awrl_rollout.concurrency import (
    Signal,
    TaskScope,
    UnwrappedTaskGroup,
    deadline,
    raise_if_ending,
    text_of,
)
from awrl_rollout.controller.batches import BatchAssembler, GroupHooks, RolloutBatch
from awrl_rollout.controller.breaker import FaultBreaker
from awrl_rollout.controller.config import (
    AcceptGroup,
    ControllerConfig,
    DiscardHook,
    EndedHook,
    ExtraBounds,
    GroupDropHook,
    TaskSource,
)
from awrl_rollout.controller.groups import GroupInVain, GroupTracker
from awrl_rollout.controller.reporting import ControllerStatistics, describe_wait
from awrl_rollout.controller.scheduler import Scheduler, check_group
from awrl_rollout.controller.workers import NotifyingWorker, Worker, WorkerPool, WorkerProxy
from awrl_rollout.episode import EpisodeRecord, EpisodeRequest
from awrl_rollout.errors import BatchTimeoutError, RolloutError, StarvedError
from awrl_rollout.executor import ExecutorStatistics

logger = logging.getLogger(__name__)

_CLOSED = "the controller was closed"


class RolloutController:
    """Keeps workers full and hands complete groups to a trainer; use it as `async with`.

    Args:
        source: Returns the next group's requests, None when a single pass is over.
        accept_group: Returns why a complete group is rejected, None to accept it.
        on_ended: Told of each record as it arrives, with its site and, of a fault, its kind.
        on_discarded: Told of each record that no batch will hold, with the reason.
        on_group_dropped: Told of each group that no batch will hold, with the reason.
        extra_bounds: Further named admission bounds, in episodes.
        on_worker_lost: Called with the name of a worker that died, so that it can be replaced.
    """

    def __init__(
        self,
        workers: Iterable[Worker],
        manager: StalenessManager,
        *,
        source: TaskSource | None = None,
        config: ControllerConfig | None = None,
        accept_group: AcceptGroup | None = None,
        on_ended: EndedHook | None = None,
        on_discarded: DiscardHook | None = None,
        on_group_dropped: GroupDropHook | None = None,
        extra_bounds: ExtraBounds | None = None,
        on_worker_lost: Callable[[str], None] | None = None,
        clock: Clock | None = None,
    ) -> None:
        self.config = ControllerConfig() if config is None else config
        self._clock = RealClock() if clock is None else clock
        self._manager = manager
        hooks = GroupHooks(accept_group, on_discarded, on_group_dropped)
        self._on_ended = on_ended
        self._on_worker_lost = on_worker_lost
        self._groups = GroupTracker(
            self.config.max_refills,
            lambda episode_id: self._scheduler.is_used(episode_id),
            delay_s=self.config.refill_delay_s,
        )
        self._scheduler = Scheduler(manager, self._groups, source, extra_bounds)
        self._batches = BatchAssembler(manager, self._groups, self.config, hooks)
        self._pool = WorkerPool(self._clock, self._completed, self._batches.late)
        self._breaker = FaultBreaker(
            max_share=self.config.max_fault_share,
            window=self.config.fault_window,
            patience_s=self.config.outage_patience_s,
        )
        self._scope = TaskScope()
        self._changed = Signal()
        self._has_work = asyncio.Event()
        self._unsubscribe: Callable[[], None] | None = None
        self._is_closed = False
        self._failure: BaseException | None = None
        """What ended a loop, and with it the controller."""
        self._is_generation_paused = False
        self._stuck_since_s: float | None = None
        self._told_stuck_since_s: float | None = None
        self._overrun: tuple[int, float] | None = None
        """Version whose batch waits for old groups, and since when."""
        self._wanted: tuple[int, float] | None = None
        """Episodes that the trainer waits for, and since when."""
        for worker in workers:
            self._add(worker)

    # -- life

    async def __aenter__(self) -> Self:
        """Start the loops."""
        await self._scope.enter()
        loop = asyncio.get_running_loop()

        def wake() -> None:  # from whatever thread
            loop.call_soon_threadsafe(self._has_work.set)

        self._unsubscribe = self._manager.subscribe(wake)
        self._start(self._scheduling_loop)
        self._start(self._watching_loop)
        for proxy in self._pool.live:
            self._serve(proxy)
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Close the controller and wait for its loops."""
        try:
            await self.aclose()
        finally:
            await self._scope.leave(exc)

    async def aclose(self, *, timeout_s: float = 10.0) -> None:
        """Return within `timeout_s` with every episode ended in the ledger; harmless if repeated.

        Workers are asked to cancel what they run; they are not closed. Ready groups stay queued. An
        error of a hook is raised when everything else is done.
        """
        if self._is_closed:
            return
        self._is_closed = True
        self._scheduler.is_paused = True
        assigned = {proxy: list(proxy.assigned) for proxy in self._pool.live if proxy.assigned}
        error = _call_each(self._pool.give_up_all(_CLOSED))
        error = _call_each(self._batches.abandon(_CLOSED)) or error
        try:
            async with deadline(timeout_s), UnwrappedTaskGroup() as group:
                for proxy, episode_ids in assigned.items():
                    group.create_task(proxy.cancel(episode_ids))
        except TimeoutError:
            logger.warning("closed after %s s, before every worker cancelled", timeout_s)
        finally:  # also when the wait was interrupted: no loop and no listener is left behind
            if self._unsubscribe is not None:
                self._unsubscribe()
            self._scope.cancel()
            self._changed.notify()
        if error is not None:
            raise error

    def add_worker(self, worker: Worker) -> None:
        """Use one more worker from now on, or one in place of a dead one of its name.

        Raises:
            ValueError: A live worker has its name.
            RolloutError: The controller is closed or not entered yet.
        """
        self._check_open()
        self._add(worker)

    # -- the trainer's side

    async def prepare_batch(
        self, num_episodes: int, *, timeout_s: float | None = None
    ) -> RolloutBatch:
        """Return the oldest complete groups, once they were asked for `num_episodes` in sum.

        Raises:
            BatchTimeoutError: It did not fill in time; nothing was consumed.
            StarvedError: It can never fill: the source is over, faults stopped the run, or nothing
                runs and nothing may start.
            RolloutError: The controller is closed or not entered yet.
            ValueError: `num_episodes` is below 1.
        """
        if not num_episodes >= 1:
            raise ValueError(
                f"num_episodes must be at least 1, got {num_episodes}. Count in episodes, not "
                "groups."
            )
        self._wanted = (num_episodes, self._clock.time())
        try:
            async with deadline(timeout_s):
                while True:
                    self._check_open()
                    self._batches.sweep()
                    self._schedule()
                    batch = self._try_batch(num_episodes)
                    if batch is not None:
                        return batch
                    await self._changed.wait()
        except TimeoutError as error:
            raise BatchTimeoutError(
                f"a batch of {num_episodes} must fill within {timeout_s} s, got "
                f"{self._batches.ready.num_episodes}: {self.describe()}. Raise the limit, "
                "or mend what the sentence names."
            ) from error
        except asyncio.CancelledError as error:
            raise_if_ending(error)
            raise _own_cancellation() from error
        finally:
            self._wanted = None

    def advance(self, version: int, *, batches: Sequence[int] | None = None) -> int:
        """Note new weights, release the budget of the batches behind them, return its episodes.

        Args:
            version: The version that the servers hold now.
            batches: `RolloutBatch.batch` numbers; None stands for every consumed batch.
        """
        num_released = self._manager.advance(version, batches=batches)
        self._batches.released(batches)
        self._wake()
        return num_released

    def release_budget(self, *, batches: Sequence[int] | None = None) -> int:
        """Release the budget of skipped or discarded batches, return its episodes."""
        num_released = self._manager.release_budget(batches)
        self._batches.released(batches)
        self._wake()
        return num_released

    def submit(self, requests: Sequence[EpisodeRequest]) -> None:
        """Put groups in line, ahead of the task source; all of them or none.

        Raises:
            ValueError: A group is malformed or can never fit, or an id is in use.
            RolloutError: The controller is closed or not entered yet.
        """
        self._check_open()
        self._scheduler.submit(requests)
        self._wake()

    def restore(self, requests: Sequence[EpisodeRequest], records: Sequence[EpisodeRecord]) -> bool:
        """Put a group among the ready ones that was complete before a resume, or answer False.

        False says that it can't be trained on: the budget has no room for it, no member is fresh, or
        a token is of a version that the servers do not hold yet, sampled from weights that are gone.
        `accept_group`, which took it then, is not asked again. Call this before the controller is
        entered: afterwards new groups have taken the room.

        Args:
            requests: What the group was asked for.
            records: Its members that ended well.

        Raises:
            ValueError: These are not the records of such a group.
            awrl_staleness.StalenessError: An episode of it is live.
        """
        group = check_group(requests)
        asked = {request.member for request in group}
        members = {record.member for record in records if record.has_ended_well}
        ids = {record.group_id for record in records}
        if ids != {group[0].group_id} or not len(records) == len(members) == len(members & asked):
            raise ValueError(
                f"records must be of distinct members of group {group[0].group_id!r} that ended well, "
                f"got {[(item.group_id, item.member, item.outcome.value) for item in records]!r}. "
                "Keep what accept_group was given."
            )
        return self._batches.restore(group, records)

    # -- pausing

    def pause_admission(self) -> None:
        """Start no further episode; running ones go on."""
        self._scheduler.is_paused = True

    def resume_admission(self) -> None:
        """Start episodes again."""
        self._scheduler.is_paused = False
        self._wake()

    async def pause_generation(self) -> None:
        """Return once no live worker sends requests to an inference server."""
        self._is_generation_paused = True
        async with UnwrappedTaskGroup() as group:
            for proxy in self._pool.live:
                group.create_task(proxy.pause())

    async def resume_generation(self) -> None:
        """Let every live worker generate again."""
        self._is_generation_paused = False
        async with UnwrappedTaskGroup() as group:
            for proxy in self._pool.live:
                group.create_task(proxy.resume())

    def notify(self, worker_name: str) -> None:
        """Look at a worker's records now; what a completion callback calls, any number of times."""
        proxy = self._pool.proxies.get(worker_name)
        if proxy is not None:
            proxy.notify()

    # -- reports

    def describe(self) -> str:
        """Return one sentence: what waits for what."""
        blocked, pool = self._scheduler.blocked_by, self._pool
        return (
            f"{pool.num_assigned} episodes in flight on {len(pool.live)} workers, "
            f"{self._groups.num_waiting} members wait for a slot, {self._groups.num_open} groups "
            f"are open, {len(self._batches.ready)} are ready; {self._manager.capacity().describe()}"
            + (f"; the next group was refused by {blocked}" if blocked else "")
            + self._breaker.describe()
            + ("; admission is paused" if self._scheduler.is_paused else "")
            + self._batches.describe_training()
            + (f"; {pool.last_death}" if pool.last_death else "")
        )

    def statistics(self) -> ControllerStatistics:
        """Return a frozen picture of assignments, groups and counts."""
        pool, batches = self._pool, self._batches
        return ControllerStatistics(
            num_workers=len(pool.live),
            num_slots=sum(proxy.num_slots for proxy in pool.live),
            num_in_flight=pool.num_assigned,
            num_pending=self._groups.num_waiting,
            num_open_groups=self._groups.num_open,
            num_ready_groups=len(batches.ready),
            num_ready_episodes=batches.ready.num_episodes,
            num_completed=pool.num_completed,
            num_faults=pool.num_faults,
            num_refills=self._groups.num_refills,
            num_duplicates=pool.num_duplicates,
            num_worker_deaths=pool.num_worker_deaths,
            num_restored=batches.num_restored,
            num_smaller_groups=batches.num_smaller_groups,
            num_short_batches=batches.num_short_batches,
            dropped_groups=dict(batches.dropped_groups),
            is_admission_open=not self._scheduler.is_paused,
            is_on_trial=self._breaker.is_on_trial,
            blocked_by=self._scheduler.blocked_by,
            staleness=self._manager.statistics(),
        )

    async def report(self) -> str:
        """Return one sentence: for whom the trainer waits, and where most slots are stuck."""
        # Read before the workers answer: the trainer may go on meanwhile.
        num_wanted, since_s = self._wanted or (0, self._clock.time())
        num_missing = max(0, num_wanted - self._batches.ready.num_episodes)
        waiting_s = self._clock.time() - since_s
        workers: list[ExecutorStatistics] = []

        async def ask(proxy: WorkerProxy) -> None:
            statistics = await proxy.statistics()
            if statistics is not None:
                workers.append(statistics)

        async with UnwrappedTaskGroup() as group:
            for proxy in self._pool.live:
                group.create_task(ask(proxy))
        return describe_wait(
            num_missing=num_missing,
            waiting_s=waiting_s,
            num_slots=sum(worker.num_slots for worker in workers),
            views=[view for worker in workers for view in worker.slots],
            stuck_after_s=self.config.watchdog_interval_s,
            situation=self.describe(),
        )

    # -- loops

    async def _scheduling_loop(self) -> None:
        while not self._is_closed:
            self._schedule()
            try:
                due_s = max(0.0, self._groups.next_due_s - self._clock.time())
                async with asyncio.timeout(min(self.config.poll_interval_s, due_s)):
                    await self._has_work.wait()
            except TimeoutError:
                pass
            self._has_work.clear()
            self._changed.notify()

    async def _watching_loop(self) -> None:
        interval_s = self.config.watchdog_interval_s
        while not self._is_closed:
            await self._clock.sleep(interval_s)
            if self._wanted is not None and self._clock.time() - self._wanted[1] >= interval_s:
                logger.warning("%s", await self.report())

    def _start(self, loop: Callable[[], Awaitable[None]]) -> None:
        async def remember_failure() -> None:
            try:
                await loop()
            except BaseException as error:
                raise_if_ending(error)
                self._failure = error
                if isinstance(error, asyncio.CancelledError):
                    raise _own_cancellation() from error
                raise

        self._scope.start(remember_failure())

    def _serve(self, proxy: WorkerProxy) -> None:
        self._start(proxy.send_loop)
        self._start(proxy.collect_loop)

    # -- what the loops and the callers share

    def _check_open(self) -> None:
        if self._failure is not None:
            raise RolloutError(
                f"controller must be open, got one that ended with {type(self._failure).__name__}: {text_of(self._failure)}."
            ) from self._failure
        if self._is_closed or not self._scope.is_entered:
            state = "a closed one" if self._is_closed else "one that was not entered"
            raise RolloutError(
                f"controller must be open, got {state}. Use `async with` around every call."
            )

    def _wake(self) -> None:
        """Have the scheduling loop look again."""
        self._has_work.set()

    def _add(self, worker: Worker) -> None:
        if isinstance(worker, NotifyingWorker):
            worker.subscribe(self.notify)
        proxy = WorkerProxy(
            worker,
            poll_interval_s=self.config.poll_interval_s,
            call_deadline_s=self.config.worker_call_deadline_s,
            on_records=self._pool.complete,
            on_death=self._died,
        )
        proxy.is_paused = self._is_generation_paused
        self._pool.add(proxy)
        if self._scope.is_entered:
            self._serve(proxy)
            self._wake()

    def _schedule(self) -> None:
        """Fill every free slot that the bounds allow."""
        if self._is_closed:
            return
        if self.config.episode_deadline_s is not None:
            self._pool.expire(self.config.episode_deadline_s)
        now_s = self._clock.time()
        self._groups.release_due(now_s)
        while self._breaker.may_start(now_s) and self._pool.has_free:
            request = self._scheduler.next_start()
            if request is None:
                return
            self._breaker.started(now_s)
            self._pool.assign(request)

    def _completed(self, request: EpisodeRequest, record: EpisodeRecord) -> None:
        now_s = self._clock.time()
        self._breaker.note(request, record, now_s)
        if self._on_ended is not None:
            self._on_ended(record)
        over = self._batches.ended(request, record, now_s)
        if isinstance(over, GroupInVain) and over.complete is None:
            self._pool.give_up_group(over.group_id, over.reason)
        elif over is not None:
            self._pool.forget_group(over.group_id)
            self._breaker.forget(over.group_id, now_s)
        self._wake()
        self._changed.notify()

    def _died(self, proxy: WorkerProxy, reason: str) -> None:
        self._pool.lose(proxy, reason)
        if not self._is_closed and self._on_worker_lost is not None:
            self._on_worker_lost(proxy.name)
        self._wake()

    # -- when a batch closes

    def _try_batch(self, num_episodes: int) -> RolloutBatch | None:
        """Return a batch that may close now, else None; the caller has just tried to admit.

        Raises:
            StarvedError: It can never fill.
        """
        self._breaker.check()
        ready, pool = self._batches.ready, self._pool
        if ready.num_episodes >= num_episodes:
            self._stuck_since_s = None
            if self._must_wait_for_overrun():
                return None
            return self._batches.take(num_episodes, is_short=False)
        is_moving = pool.num_assigned > 0 or (self._groups.num_waiting > 0 and bool(pool.live))
        if is_moving or self._scheduler.is_paused or self._breaker.is_on_trial:
            self._stuck_since_s = None
            return None
        if not self._scheduler.has_more and not self._groups.num_open:
            raise StarvedError(
                f"a batch of {num_episodes} must fill from the task source, got "
                f"{ready.num_episodes} and no further group: data exhausted. Use "
                "an endless source, or take what is ready with a smaller batch."
            )
        return self._when_stuck(num_episodes)

    def _when_stuck(self, num_episodes: int) -> RolloutBatch | None:
        now_s = self._clock.time()
        if self._scheduler.blocked_by == STALENESS and len(self._batches.ready):
            self._stuck_since_s = None
            return self._batches.take(num_episodes, is_short=True)
        if self._stuck_since_s is None:
            self._stuck_since_s = now_s
        if now_s - self._stuck_since_s < self.config.starved_after_s:
            return None
        if self._batches.in_training and self._pool.live:
            # Another task may be at the update of such a batch; a caller that forgot one waits too.
            if self._told_stuck_since_s != self._stuck_since_s:
                self._told_stuck_since_s = self._stuck_since_s
                logger.warning("a batch of %d cannot fill yet: %s", num_episodes, self.describe())
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
        last_chance = version - self._manager.config.max_off_policyness
        if not self._groups.has_group_as_old_as(last_chance):
            return False
        now_s = self._clock.time()
        if self._overrun is None or self._overrun[0] != version:
            self._overrun = (version, now_s)
        return now_s - self._overrun[1] < self.config.overrun_deadline_s


def _own_cancellation() -> RolloutError:
    return RolloutError("a hook must not raise CancelledError of its own.")


def _call_each(calls: Iterable[Callable[[], None]]) -> BaseException | None:
    """Make every call, also after one that raised, and return the last error."""
    last: BaseException | None = None
    for call in calls:
        try:
            call()
        except asyncio.CancelledError as error:
            last = _own_cancellation()  # nothing is awaited here, so nobody asked for it
            last.__cause__ = error
        except BaseException as error:
            logger.warning("a hook failed while the controller closed", exc_info=error)
            last = error
    return last
