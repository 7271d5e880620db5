"""One slot: runs one episode at a time and turns whatever happens into one record.

This is the package's named boundary `workflow`: the only place where any exception of user code is
caught. Cancelling the slot itself passes through untouched; a `CancelledError` that the workflow
brought up by itself is a fault like any other. Whether the episode was cancelled or ran past its
deadline is asked before the kind of an error, so that a clean-up that fails does not hide it.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable
from typing import cast

import msgspec

from awrl_rollout.clock import Clock
from awrl_rollout.concurrency import deadline, raise_if_ending, require_limit, text_of
from awrl_rollout.episode import (
    EpisodeRecord,
    EpisodeRequest,
    EpisodeResult,
    Fault,
    FaultKind,
    record_of,
)
from awrl_rollout.errors import EpisodeFaultError, ServerUnavailableError
from awrl_rollout.retry import RetryPolicy

logger = logging.getLogger(__name__)

NEVER_RETRIED: frozenset[FaultKind] = frozenset(
    {
        *(kind for kind in FaultKind if kind.is_permanent),
        FaultKind.TIMEOUT,
        FaultKind.JUDGE_ERROR,
        FaultKind.CANCELLED,
        FaultKind.WORKER_LOST,
    }
)
"""Kinds that a second run in the same slot cannot help, or that already cost a whole deadline."""


class EpisodeContext:
    """What a workflow may use of its slot; valid during one run.

    Attributes:
        slot: Index of the slot, 0 to `num_slots - 1`; a browser session can be bound to it.
        worker: Name of the worker.
        attempt: 0 for the first run in this slot.
        clock: Source of time.
    """

    def __init__(
        self,
        *,
        slot: int,
        worker: str,
        attempt: int,
        clock: Clock,
        release: Callable[[], bool] = lambda: False,
    ) -> None:
        self._release = release
        self.slot = slot
        self.worker = worker
        self.attempt = attempt
        self.clock = clock
        self.stage = "start"
        self.site = ""
        self.stage_since_s = clock.time()

    def enter(self, stage: str, *, site: str = "") -> None:
        """Tell the watchdog what the episode does from now on."""
        self.stage = stage
        self.site = site
        self.stage_since_s = self.clock.time()

    def release_slot(self) -> bool:
        """Give the slot to the next episode while this one goes on, waiting for a verdict for example.

        Call it once the episode needs nothing that belongs to the slot any more. From then on its run
        has no deadline: what follows has limits of its own.

        Returns:
            Whether the slot was given up, and a fault is not run again. False where no further
            episode may go on without a slot; then it keeps the slot.
        """
        return self._release()


Workflow = Callable[[EpisodeRequest, EpisodeContext], Awaitable[EpisodeResult | None]]
"""Runs one episode; None filters it out, an exception is a fault."""


class SlotView(msgspec.Struct, frozen=True, kw_only=True):
    """What one busy slot does now, for the watchdog."""

    slot: int
    episode_id: str
    stage: str
    """The workflow's own word, for example `navigate`; `start` before the first one."""
    site: str
    """Where, for example a host name; may be empty."""
    for_s: float
    """Seconds in this stage."""


class SlotTime(msgspec.Struct, frozen=True, kw_only=True):
    """How well slots were used."""

    busy_s: float
    """Seconds inside episodes, summed over slots."""
    alive_s: float
    """Seconds since the slots started, summed over slots."""

    @property
    def idle_share(self) -> float:
        """Share of slot time without an episode, 0 to 1."""
        return max(0.0, 1.0 - self.busy_s / self.alive_s) if self.alive_s > 0 else 0.0


class _RepeatableFaultError(Exception):
    """Carries a fault through the retry loop."""

    def __init__(self, fault: Fault) -> None:
        super().__init__(fault.describe())
        self.fault = fault


class SlotPlan(msgspec.Struct, frozen=True, kw_only=True):
    """What all slots of one worker share.

    Raises:
        ValueError: `num_slots` is below 1, or the limit is not a number.
    """

    workflow: Workflow
    num_slots: int
    worker: str
    deadline_s: float | None
    """Limit for one run of the workflow; None for none."""
    retry: RetryPolicy
    """How often a faulted run is repeated."""
    clock: Clock
    rng: random.Random
    """Source of the retry jitter."""

    def __post_init__(self) -> None:
        """Check that there is a slot."""
        if self.num_slots < 1:
            raise ValueError(
                f"num_slots must be at least 1, got {self.num_slots}. One slot runs one episode."
            )
        require_limit(self.deadline_s)


class SlotRunner:
    """Runs requests one after another."""

    def __init__(
        self,
        plan: SlotPlan,
        index: int,
        *,
        busy_s: float = 0.0,
        on_release: Callable[[SlotRunner], bool] | None = None,
    ) -> None:
        """Start idle.

        Args:
            busy_s: What the slot worked before.
            on_release: Has another runner take the slot while the episode goes on; returns whether
                it does.
        """
        self.index = index
        self.busy_s = busy_s
        self.is_released = False
        self._on_release = on_release
        self._limit: asyncio.Timeout | None = None
        self.request: EpisodeRequest | None = None
        self.started_s = 0.0
        self._plan = plan
        self._clock = plan.clock
        self._context: EpisodeContext | None = None
        self._cancel_scope: asyncio.Timeout | None = None
        self._num_attempts = 0

    def view(self) -> SlotView | None:
        """Return what the slot does now, None when it is idle."""
        if self.request is None or self._context is None:
            return None
        return SlotView(
            slot=self.index,
            episode_id=self.request.episode_id,
            stage=self._context.stage,
            site=self._context.site,
            for_s=self._clock.time() - self._context.stage_since_s,
        )

    def cancel(self) -> None:
        """End the running episode as cancelled; the slot lives on."""
        if self._cancel_scope is not None and not self._cancel_scope.expired():
            self._cancel_scope.reschedule(asyncio.get_running_loop().time())

    async def run(self, request: EpisodeRequest) -> EpisodeRecord:
        """Run the episode, again if the policy says so, and return its one record."""
        self.request = request
        self.started_s = self._clock.time()
        self._num_attempts = 0
        try:
            async with asyncio.timeout(None) as self._cancel_scope:
                answer = await self._run_with_retries(request)
        except TimeoutError:  # the workflow's own are caught inside: this is `cancel`
            answer = cancelled("was cancelled")
        finally:
            ended_s = self._clock.time()
            if not self.is_released:
                self.busy_s += ended_s - self.started_s
            self.request = self._context = self._cancel_scope = None
        if isinstance(answer, Fault):
            answer = msgspec.structs.replace(answer, num_attempts=self._num_attempts)
        return record_of(
            request,
            answer,
            worker=self._plan.worker,
            num_attempts=self._num_attempts,
            started_s=self.started_s,
            ended_s=ended_s,
            slot=self.index,
        )

    async def _run_with_retries(self, request: EpisodeRequest) -> EpisodeResult | Fault | None:
        async def attempt() -> EpisodeResult | Fault | None:
            try:
                answer = await self._run_once(request)
            finally:
                self._num_attempts += 1
            if self.is_released:
                return answer
            if isinstance(answer, Fault) and answer.kind not in NEVER_RETRIED:
                raise _RepeatableFaultError(answer)
            return answer

        try:
            return await self._plan.retry.call(
                attempt,
                repeats=_RepeatableFaultError,
                sleep=self._wait_to_retry,
                rng=self._plan.rng,
            )
        except _RepeatableFaultError as error:
            return error.fault

    def _release(self) -> bool:
        """Let another runner have the slot, where one may."""
        if self._limit is None or self._limit.expired():
            return False
        self._limit.reschedule(None)
        if self.is_released or self._on_release is None:
            return self.is_released
        worked_s = self._clock.time() - self.started_s
        self.busy_s += worked_s
        self.is_released = self._on_release(self)
        if not self.is_released:
            self.busy_s -= worked_s
        return self.is_released

    async def _wait_to_retry(self, delay_s: float) -> None:
        if self._context is not None:
            self._context.enter("retry wait")
        await self._clock.sleep(delay_s)

    async def _run_once(self, request: EpisodeRequest) -> EpisodeResult | Fault | None:
        context = EpisodeContext(
            slot=self.index,
            worker=self._plan.worker,
            attempt=self._num_attempts,
            clock=self._clock,
            release=self._release,
        )
        self._context = context
        limit = self._limit = deadline(self._plan.deadline_s)
        try:
            async with limit:
                answer = cast("object", await self._plan.workflow(request, context))
        except BaseException as error:  # noqa: BLE001 - the boundary `workflow`
            raise_if_ending(error)
            return self._fault_of(error, request, context, limit)
        if answer is None or isinstance(answer, EpisodeResult):
            return answer
        return Fault(
            kind=FaultKind.WORKFLOW_ERROR,
            boundary="workflow",
            error_type="TypeError",
            message=f"a workflow must return an EpisodeResult or None, got {type(answer).__name__}",
        )

    def _fault_of(
        self,
        error: BaseException,
        request: EpisodeRequest,
        context: EpisodeContext,
        limit: asyncio.Timeout,
    ) -> Fault:
        if self._cancel_scope is not None and self._cancel_scope.expired():
            return cancelled("was cancelled")
        if limit.expired():
            message = f"no end within {self._plan.deadline_s} s, last in {context.stage!r}"
            return Fault(
                kind=FaultKind.TIMEOUT,
                boundary="executor",
                message=message,
                error_type="TimeoutError",
            )
        match error:
            case EpisodeFaultError(kind=FaultKind()):
                kind, boundary = error.kind, error.boundary
            case TimeoutError():
                kind, boundary = FaultKind.TIMEOUT, "workflow"
            case ServerUnavailableError():
                kind, boundary = FaultKind.GENERATION_ERROR, "generation"
            case _:
                logger.warning("episode %s failed", request.episode_id, exc_info=error)
                kind, boundary = FaultKind.WORKFLOW_ERROR, "workflow"
        return Fault(
            kind=kind, boundary=boundary, error_type=type(error).__name__, message=text_of(error)
        )


def cancelled(message: str) -> Fault:
    """Return the fault of an episode that somebody ended on purpose."""
    return Fault(kind=FaultKind.CANCELLED, boundary="executor", message=message)
