"""The workers of one controller: who has a free slot, and which episode runs where.

Invariants:
* an episode is assigned to one live worker; it completes exactly once, with a record or as a fault
  of its dead worker or of its deadline; later records of it are counted and ignored;
* a lost answer costs one poll interval, never a record: records are acknowledged one call later;
* once dead, a worker is said to be so once, and its proxy never speaks to it again.

Loops, two per worker, children of the controller's TaskScope:
* send: consumes the outbox, produces `worker.submit` and `worker.cancel` calls; unblocked by
  `assign`, `ask_to_cancel` and death.
* collect: consumes the worker's records, produces completions; waits for a notification (the
  callback) or the poll interval (the safety net), only while episodes are assigned.

This is the package's named boundary `worker`: any exception or missed deadline of a worker's
method is the death of that worker, not of the run.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import NamedTuple, ParamSpec, Protocol, TypeVar, runtime_checkable

import msgspec

from awrl_rollout.clock import Clock
from awrl_rollout.concurrency import raise_if_ending, text_of
from awrl_rollout.episode import EpisodeRecord, EpisodeRequest, Fault, FaultKind, record_of
from awrl_rollout.executor import ExecutorStatistics

logger = logging.getLogger(__name__)

ParamsT = ParamSpec("ParamsT")
ResultT = TypeVar("ResultT")

MAX_GIVEN_UP = 10_000
"""Given-up ids whose late records are still told; an id is a few dozen bytes."""


class Worker(Protocol):
    """Runs episodes in slots and keeps their records until they are acknowledged."""

    @property
    def name(self) -> str:
        """Unique among the controller's workers."""
        ...

    @property
    def num_slots(self) -> int:
        """Episodes that it runs at once."""
        ...

    async def submit(self, requests: Sequence[EpisodeRequest]) -> None:
        """Accept requests; must return without waiting for them to run."""
        ...

    async def take_finished(self, acknowledged: Sequence[str]) -> list[EpisodeRecord]:
        """Forget the acknowledged records and return all others, without waiting for more."""
        ...

    async def cancel(self, episode_ids: Sequence[str]) -> None:
        """End these episodes as faults; ids that are unknown or ended are ignored."""
        ...

    async def pause(self) -> None:
        """Stop generating: send no request to an inference server."""
        ...

    async def resume(self) -> None:
        """Generate again."""
        ...

    async def statistics(self) -> ExecutorStatistics:
        """Return what its slots do now."""
        ...


@runtime_checkable
class NotifyingWorker(Protocol):
    """A worker in the controller's own loop that can tell of records without HTTP."""

    def subscribe(self, on_completion: Callable[[str], None]) -> None:
        """Call `on_completion(name)` whenever there are records to take."""
        ...


class WorkerProxy:
    """Assigns episodes to one worker and brings their records back.

    Args:
        poll_interval_s: Longest time between two looks at its records.
        on_death: Called once, with a reason.

    Raises:
        ValueError: The worker's slots are not a whole number above 0.
    """

    def __init__(
        self,
        worker: Worker,
        *,
        poll_interval_s: float,
        call_deadline_s: float,
        on_records: Callable[[Sequence[EpisodeRecord]], None],
        on_death: Callable[[WorkerProxy, str], None],
    ) -> None:
        self.name = worker.name
        self.num_slots = worker.num_slots
        if type(self.num_slots) is not int or self.num_slots < 1:
            raise ValueError(
                f"num_slots of worker {self.name!r} must be a whole number above 0, got "
                f"{self.num_slots!r}. One slot runs one episode."
            )
        self.assigned: dict[str, EpisodeRequest] = {}
        self.is_dead = False
        self.is_paused = False
        """Set before the loops start: the worker is paused first."""
        self._worker = worker
        self._poll_interval_s = poll_interval_s
        self._call_deadline_s = call_deadline_s
        self._on_records = on_records
        self._on_death = on_death
        self._outbox: list[EpisodeRequest] = []
        self._acknowledged: list[str] = []
        self._to_cancel: list[str] = []
        self._has_outbox = asyncio.Event()
        self._has_assigned = asyncio.Event()
        self._has_news = asyncio.Event()

    @property
    def num_free(self) -> int:
        """Slots that no assigned episode holds."""
        return 0 if self.is_dead else self.num_slots - len(self.assigned)

    def assign(self, request: EpisodeRequest) -> None:
        """Assign an episode to this worker."""
        self.assigned[request.episode_id] = request
        self._outbox.append(request)
        self._has_outbox.set()
        self._has_assigned.set()

    def release(self, episode_id: str) -> None:
        """Forget an episode whose record arrived."""
        self.assigned.pop(episode_id, None)
        if not self.assigned:
            self._has_assigned.clear()

    def ask_to_cancel(self, episode_id: str) -> None:
        """Have an episode cancelled that was completed here already, to free its slot."""
        num_before = len(self._outbox)
        self._outbox = [item for item in self._outbox if item.episode_id != episode_id]
        if len(self._outbox) == num_before:  # else it was never sent
            self._to_cancel.append(episode_id)
            self._has_outbox.set()

    def notify(self) -> None:
        """Look at the worker's records now."""
        self._has_news.set()

    async def send_loop(self) -> None:
        """Submit what `assign` put into the outbox, until the worker dies."""
        if self.is_paused:
            await self.pause()
        while not self.is_dead:
            await self._has_outbox.wait()
            self._has_outbox.clear()
            # Cancelling comes first: it frees the slots that the requests were assigned to.
            episode_ids, self._to_cancel = self._to_cancel, []
            if episode_ids:
                await self._call_or_mark_dead(self._worker.cancel, episode_ids)
            requests, self._outbox = self._outbox, []
            if requests and not self.is_dead:
                await self._call_or_mark_dead(self._worker.submit, requests)

    async def collect_loop(self) -> None:
        """Bring records back, until the worker dies."""
        while not self.is_dead:
            await self._has_assigned.wait()
            try:
                async with asyncio.timeout(self._poll_interval_s):
                    await self._has_news.wait()
            except TimeoutError:
                pass
            self._has_news.clear()
            if not self.is_dead:
                await self._collect()

    async def _collect(self) -> None:
        acknowledged, self._acknowledged = self._acknowledged, []
        records = await self._call_or_mark_dead(self._take, acknowledged)
        if records:
            self._acknowledged = [record.episode_id for record in records]
            self._on_records(records)

    async def _take(self, acknowledged: Sequence[str]) -> list[EpisodeRecord]:
        records = await self._worker.take_finished(acknowledged)
        return msgspec.convert(records, list[EpisodeRecord])

    async def _ask(self) -> ExecutorStatistics:
        return msgspec.convert(await self._worker.statistics(), ExecutorStatistics)

    async def pause(self) -> None:
        """Pause the worker's generation."""
        self.is_paused = True
        await self._call_or_mark_dead(self._worker.pause)

    async def resume(self) -> None:
        """Resume the worker's generation."""
        self.is_paused = False
        await self._call_or_mark_dead(self._worker.resume)

    async def cancel(self, episode_ids: Sequence[str]) -> None:
        """Cancel episodes on the worker."""
        await self._call_or_mark_dead(self._worker.cancel, episode_ids)

    async def statistics(self) -> ExecutorStatistics | None:
        """Return what the worker does now, None when it is dead."""
        return await self._call_or_mark_dead(self._ask)

    async def _call_or_mark_dead(
        self,
        call: Callable[ParamsT, Awaitable[ResultT]],
        *args: ParamsT.args,
        **kwargs: ParamsT.kwargs,
    ) -> ResultT | None:
        """Await one call of the worker; None when it died of it."""
        try:
            async with asyncio.timeout(self._call_deadline_s):
                return await call(*args, **kwargs)
        except BaseException as error:  # noqa: BLE001 - the boundary `worker`: `_die` logs it
            raise_if_ending(error)
            self._die(error)
        return None

    def _die(self, error: BaseException) -> None:
        """Mark the worker as dead, once."""
        logger.warning("worker %r is dead", self.name, exc_info=error)
        if not self.is_dead:
            self.is_dead = True
            self._has_outbox.set()
            self._has_assigned.set()
            self._has_news.set()
            self._on_death(self, f"{type(error).__name__}: {text_of(error)}")


class Assignment(NamedTuple):
    """One episode between its start on a worker and its completion."""

    request: EpisodeRequest
    proxy: WorkerProxy
    started_s: float


class WorkerPool:
    """The workers of one controller and the episodes assigned to them.

    Args:
        on_completed: Called once per episode, with its request and its record.
        on_late: Called with the record of an episode that was given up before, once.
    """

    def __init__(
        self,
        clock: Clock,
        on_completed: Callable[[EpisodeRequest, EpisodeRecord], None],
        on_late: Callable[[EpisodeRecord], None],
    ) -> None:
        self.proxies: dict[str, WorkerProxy] = {}
        self.num_duplicates = 0
        self.num_worker_deaths = 0
        self.num_completed = 0
        self.num_faults = 0
        self.last_death: str | None = None
        """Which worker died last, and of what."""
        self._clock = clock
        self._on_completed = on_completed
        self._on_late = on_late
        self._assignments: dict[str, Assignment] = {}
        self._home: dict[str, str] = {}
        """Worker that runs the siblings, by group."""
        self._given_up: dict[str, None] = {}

    @property
    def num_assigned(self) -> int:
        """Episodes at workers."""
        return len(self._assignments)

    @property
    def has_free(self) -> bool:
        """Whether any live worker has a free slot."""
        return any(proxy.num_free > 0 for proxy in self.proxies.values())

    @property
    def live(self) -> list[WorkerProxy]:
        """Proxies whose worker is not dead."""
        return [proxy for proxy in self.proxies.values() if not proxy.is_dead]

    def add(self, proxy: WorkerProxy) -> None:
        """Use one more worker; a dead one of the same name is replaced.

        Raises:
            ValueError: A live worker has this name.
        """
        known = self.proxies.get(proxy.name)
        if known is not None and not known.is_dead:
            raise ValueError(
                f"worker name must be unique, got {proxy.name!r} twice. Rename one of them."
            )
        self.proxies[proxy.name] = proxy

    def assign(self, request: EpisodeRequest) -> None:
        """Start an episode on a free worker, by preference the one that runs its siblings."""
        proxy = self.proxies.get(self._home.get(request.group_id, ""))
        if proxy is None or proxy.num_free <= 0:
            proxy = max(self.proxies.values(), key=lambda proxy: proxy.num_free)
        assert proxy.num_free > 0, "the caller has seen a free slot"
        self._assignments[request.episode_id] = Assignment(request, proxy, self._clock.time())
        if request.group_size > 1:
            self._home[request.group_id] = proxy.name
        proxy.assign(request)

    def forget_group(self, group_id: str) -> None:
        """Forget which worker ran a complete group."""
        self._home.pop(group_id, None)

    def complete(self, records: Sequence[EpisodeRecord]) -> None:
        """Take records; each assignment completes once, the rest are duplicates."""
        for record in records:
            assignment = self._assignments.pop(record.episode_id, None)
            if assignment is None:
                self._late(record)
                continue
            assignment.proxy.release(record.episode_id)
            self.num_completed += 1
            self.num_faults += record.fault is not None
            self._on_completed(assignment.request, record)

    def lose(self, proxy: WorkerProxy, reason: str) -> None:
        """Complete every assignment of a dead worker as a fault."""
        self.num_worker_deaths += 1
        self.last_death = f"worker {proxy.name!r} died of {reason}"
        for request in list(proxy.assigned.values()):
            self._give_up(
                request, FaultKind.WORKER_LOST, f"worker {proxy.name!r} is dead: {reason}"
            )

    def expire(self, deadline_s: float) -> None:
        """Complete every assignment older than `deadline_s` as a fault, and have it cancelled."""
        limit_s = self._clock.time() - deadline_s
        overdue: list[Assignment] = []
        for assignment in self._assignments.values():  # in the order of their start
            if assignment.started_s > limit_s:
                break
            overdue.append(assignment)
        for request, proxy, _ in overdue:
            message = f"no record within {deadline_s} s from worker {proxy.name!r}"
            self._give_up(request, FaultKind.TIMEOUT, message)
            proxy.ask_to_cancel(request.episode_id)

    def give_up_group(self, group_id: str, reason: str) -> None:
        """Complete what runs of a group as cancelled, and have it cancelled."""
        running = [item for item in self._assignments.values() if item.request.group_id == group_id]
        for request, proxy, _ in running:
            self._give_up(request, FaultKind.CANCELLED, reason)
            proxy.ask_to_cancel(request.episode_id)

    def give_up_all(self, reason: str) -> list[Callable[[], None]]:
        """Return one call per assignment, each of which completes it as cancelled."""
        return [
            partial(self._give_up, assignment.request, FaultKind.CANCELLED, reason)
            for assignment in self._assignments.values()
        ]

    def _late(self, record: EpisodeRecord) -> None:
        self.num_duplicates += 1
        if record.episode_id in self._given_up:
            del self._given_up[record.episode_id]
            self._on_late(record)

    def _give_up(self, request: EpisodeRequest, kind: FaultKind, message: str) -> None:
        """Complete an assignment as a fault, though its worker may still send a record."""
        self._given_up[request.episode_id] = None
        if len(self._given_up) > MAX_GIVEN_UP:
            del self._given_up[next(iter(self._given_up))]
        fault = Fault(kind=kind, boundary="controller", message=message)
        self.complete([record_of(request, fault)])
