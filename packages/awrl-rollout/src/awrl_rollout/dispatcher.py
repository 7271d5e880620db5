"""The loops of one controller: keep every slot full, bring every record back.

Invariants: see `awrl_rollout.controller`. Whoever changes the state calls `kick`, and every waiter
then checks its own predicate.

Loops, children of one TaskScope:
* admission: consumes free slots, the refill line and the task source, produces assignments; waits
  for a kick (record, publish, resume, new worker) or the poll interval.
* watchdog: produces a call of `on_watch` each interval; waits for its interval only.
* per worker, see `awrl_rollout.worker_link`: send and collect.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from awrl_staleness import StalenessManager

from awrl_rollout.admission import Admission, ExtraBounds, TaskSource
from awrl_rollout.assembly import Assembly
from awrl_rollout.breaker import FaultBreaker
from awrl_rollout.clock import Clock
from awrl_rollout.controller_config import ControllerConfig
from awrl_rollout.episode import EpisodeRecord, EpisodeRequest
from awrl_rollout.errors import ClosedError
from awrl_rollout.eval_desk import EvalDesk
from awrl_rollout.fleet import Fleet
from awrl_rollout.groups import GroupBook
from awrl_rollout.hooks import ControllerHooks
from awrl_rollout.parts import ControllerParts
from awrl_rollout.signal import Signal
from awrl_rollout.task_scope import TaskScope
from awrl_rollout.worker import NotifyingWorker, Worker
from awrl_rollout.worker_link import WorkerLink

logger = logging.getLogger(__name__)

_CLOSED = "the controller was closed"


class Dispatcher:
    """Owns the parts and the loops of one `RolloutController`.

    Args:
        manager: The run's one authority on pacing.
        source: Returns the next group's requests.
        config: Time limits and policies.
        hooks: The caller's callables.
        extra_bounds: Further named admission bounds.
        clock: Source of time.
    """

    def __init__(
        self,
        manager: StalenessManager,
        *,
        source: TaskSource | None,
        config: ControllerConfig,
        hooks: ControllerHooks,
        extra_bounds: ExtraBounds | None,
        clock: Clock,
    ) -> None:
        self.changed = Signal()
        self.is_closed = False
        self._config = config
        self._hooks = hooks
        self._clock = clock
        self._wake = asyncio.Event()
        self._scope = TaskScope()
        self._unsubscribe: Callable[[], None] | None = None
        book = GroupBook(config.group)
        self.parts = ControllerParts(
            manager=manager,
            book=book,
            admission=Admission(manager, book, source, extra_bounds),
            assembly=Assembly(manager, book, hooks),
            fleet=Fleet(clock, self._landed, self._late),
            desk=EvalDesk(),
            breaker=FaultBreaker(max_share=config.max_fault_share, window=config.fault_window),
        )

    # -- life

    async def enter(self, on_watch: Callable[[], Awaitable[None]]) -> None:
        """Start the loops; to be left by the same task.

        Args:
            on_watch: Awaited each watchdog interval.
        """
        await self._scope.enter()
        loop = asyncio.get_running_loop()

        def wake() -> None:
            loop.call_soon_threadsafe(self._wake.set)

        self._unsubscribe = self.parts.manager.subscribe(wake)
        self._scope.start(self._admission_loop())
        self._scope.start(self._watchdog_loop(on_watch))
        for link in self.parts.fleet.live:
            self._serve(link)

    async def leave(self, error: BaseException | None) -> None:
        """Return when every loop has ended."""
        await self._scope.leave(error)

    async def aclose(self, timeout_s: float) -> None:
        """End every episode in the ledger and ask workers to cancel, within `timeout_s`."""
        if self.is_closed:
            return
        self.is_closed = True
        parts = self.parts
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
        self.changed.notify()

    def check_open(self) -> None:
        """Raise unless the loops run.

        Raises:
            ClosedError: They were not started, or are over.
        """
        if self.is_closed or not self._scope.is_entered:
            state = "a closed one" if self.is_closed else "one that was not entered"
            raise ClosedError(
                f"controller must be open, got {state}. Use `async with` around every call."
            )

    # -- events

    def kick(self) -> None:
        """Have the admission loop look again."""
        self._wake.set()

    def add_worker(self, worker: Worker) -> None:
        """Use one more worker; its loops start now, or with `enter`."""
        if isinstance(worker, NotifyingWorker):
            worker.subscribe(self.nudge)
        link = WorkerLink(
            worker,
            poll_interval_s=self._config.poll_interval_s,
            call_deadline_s=self._config.worker_call_deadline_s,
            on_records=self.parts.fleet.land,
            on_death=self._died,
        )
        self.parts.fleet.add(link)
        if self._scope.is_entered:
            self._serve(link)
            self.kick()

    def nudge(self, worker_name: str) -> None:
        """Look at a worker's records now."""
        link = self.parts.fleet.links.get(worker_name)
        if link is not None:
            link.nudge()

    def pump(self) -> None:
        """Fill every free slot that the bounds allow."""
        fleet, desk = self.parts.fleet, self.parts.desk
        if self.is_closed:
            return
        if self._config.episode_deadline_s is not None:
            for flight in fleet.land_overdue(self._config.episode_deadline_s):
                flight.link.ask_to_cancel(flight.request.episode_id)
        while desk.waiting:
            link = fleet.pick(desk.waiting[0].group_id)
            if link is None:
                return
            fleet.assign(desk.waiting.popleft(), link)
        while not self.parts.breaker.is_open and fleet.has_free:
            request = self.parts.admission.next_start()
            if request is None:
                return
            link = fleet.pick(request.group_id)
            assert link is not None
            fleet.assign(request, link)

    # -- loops

    async def _admission_loop(self) -> None:
        while not self.is_closed:
            self.pump()
            try:
                async with asyncio.timeout(self._config.poll_interval_s):
                    await self._wake.wait()
            except TimeoutError:
                pass
            self._wake.clear()
            self.changed.notify()

    async def _watchdog_loop(self, on_watch: Callable[[], Awaitable[None]]) -> None:
        while not self.is_closed:
            await self._clock.sleep(self._config.watchdog_interval_s)
            await on_watch()

    def _serve(self, link: WorkerLink) -> None:
        self._scope.start(link.send_loop())
        self._scope.start(link.collect_loop())

    # -- what the loops bring

    def _landed(self, request: EpisodeRequest, record: EpisodeRecord) -> None:
        if request.is_eval:
            self.parts.desk.landed(record)
        else:
            self.parts.breaker.note(record.fault)
            complete = self.parts.assembly.ended(request, record)
            if complete is not None:
                self.parts.fleet.forget_group(complete.group_id)
        self._wake.set()
        self.changed.notify()

    def _late(self, record: EpisodeRecord) -> None:
        if not record.is_eval:
            self.parts.assembly.late([record])

    def _died(self, link: WorkerLink, reason: str) -> None:
        self.parts.fleet.lose(link, reason)
        if not self.is_closed:
            self._hooks.on_worker_lost(link.name)
        self._wake.set()
