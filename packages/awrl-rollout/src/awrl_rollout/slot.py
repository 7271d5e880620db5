"""One slot: runs one episode at a time and turns whatever happens into one record.

This is the package's named boundary `workflow`: the only place where any exception of user code
is caught. Cancelling the slot itself passes through untouched.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable

import msgspec

from awrl_rollout.clock import Clock
from awrl_rollout.episode import (
    EpisodeRecord,
    EpisodeRequest,
    EpisodeResult,
    Measured,
    record_fault,
    record_result,
)
from awrl_rollout.errors import EpisodeFaultError
from awrl_rollout.faults import Fault, FaultKind, cancelled
from awrl_rollout.retry import RetryPolicy
from awrl_rollout.statistics import SlotView

logger = logging.getLogger(__name__)


class EpisodeContext:
    """What a workflow may use of its slot; valid during one run.

    Attributes:
        slot: Index of the slot, 0 to `num_slots - 1`; a browser session can be bound to it.
        worker: Name of the worker.
        attempt: 0 for the first run in this slot.
        clock: Source of time.
    """

    def __init__(self, *, slot: int, worker: str, attempt: int, clock: Clock) -> None:
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


Workflow = Callable[[EpisodeRequest, EpisodeContext], Awaitable[EpisodeResult | None]]
"""Runs one episode; None filters it out, an exception is a fault."""


class SlotRunner:
    """Runs requests one after another.

    Args:
        workflow: The user's coroutine function.
        index: Index of the slot.
        worker: Name of the worker.
        deadline_s: Limit for one run; None for none.
        retry: How often a faulted run is repeated.
        clock: Source of time.
        rng: Source of the retry jitter.
    """

    def __init__(
        self,
        workflow: Workflow,
        *,
        index: int,
        worker: str,
        deadline_s: float | None,
        retry: RetryPolicy,
        clock: Clock,
        rng: random.Random,
    ) -> None:
        self.index = index
        self.busy_s = 0.0
        self.request: EpisodeRequest | None = None
        self.started_s = 0.0
        self._workflow = workflow
        self._worker = worker
        self._deadline_s = deadline_s
        self._retry = retry
        self._clock = clock
        self._rng = rng
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
            is_eval=self.request.is_eval,
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
            answer = cancelled(
                "was cancelled", boundary="executor", num_attempts=self._num_attempts
            )
        finally:
            ended_s = self._clock.time()
            self.busy_s += ended_s - self.started_s
            self.request = self._context = self._cancel_scope = None
        measured = Measured(
            worker=self._worker,
            num_attempts=self._num_attempts,
            started_s=self.started_s,
            ended_s=ended_s,
        )
        if isinstance(answer, Fault):
            return record_fault(request, answer, measured)
        return record_result(request, answer, measured)

    async def _run_with_retries(self, request: EpisodeRequest) -> EpisodeResult | Fault | None:
        while True:
            answer = await self._run_once(request)
            self._num_attempts += 1
            if not isinstance(answer, Fault):
                return answer
            if not self._retry.should_retry(answer.kind, self._num_attempts):
                return msgspec.structs.replace(answer, num_attempts=self._num_attempts)
            delay_s = self._retry.delay_s(self._num_attempts, self._rng)
            logger.info("retrying in %.1f s after %s", delay_s, answer.describe())
            if self._context is not None:
                self._context.enter("retry wait")
            await self._clock.sleep(delay_s)

    async def _run_once(self, request: EpisodeRequest) -> EpisodeResult | Fault | None:
        context = EpisodeContext(
            slot=self.index, worker=self._worker, attempt=self._num_attempts, clock=self._clock
        )
        self._context = context
        deadline = asyncio.timeout(self._deadline_s)
        try:
            async with deadline:
                return await self._workflow(request, context)
        except EpisodeFaultError as error:
            return _fault(error.kind, error.boundary, error)
        except TimeoutError as error:
            if not deadline.expired():
                return _fault(FaultKind.TIMEOUT, "workflow", error)
            return Fault(
                kind=FaultKind.TIMEOUT,
                boundary="executor",
                error_type="TimeoutError",
                message=f"no end within {self._deadline_s} s, last in {context.stage!r}",
            )
        except Exception as error:
            logger.warning("episode %s failed", request.episode_id, exc_info=error)
            return _fault(FaultKind.WORKFLOW_ERROR, "workflow", error)


def _fault(kind: FaultKind, boundary: str, error: BaseException) -> Fault:
    return Fault(kind=kind, boundary=boundary, error_type=type(error).__name__, message=str(error))


def check_num_slots(num_slots: int) -> None:
    """Raise unless there is at least one slot.

    Raises:
        ValueError: There is none.
    """
    if num_slots < 1:
        raise ValueError(
            f"num_slots must be at least 1, got {num_slots}. One slot runs one episode."
        )
