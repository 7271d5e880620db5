"""The model thread: owns the scheduler, steps it, and does everything else between two steps.

Invariants:

* Only this thread touches the scheduler and the weights. Other threads hand it functions, which
  run between two steps in the order in which they came.
* An error of a forward ends the requests that ran with it, not the thread; an error in a function
  goes to whoever handed it in.
* Answers leave in batches, one hop to the event loop per step.

Loops: one. Consumes functions and the scheduler's requests; produces deliveries; waits, when there
is no work, for a function; unblocked by `call`, `post` and `stop`.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

from webrl.embedded.request import GenerationRequest
from webrl.embedded.scheduler import Delivery, RequestScheduler
from webrl.errors import BadRequestError

logger = logging.getLogger(__name__)

ResultT = TypeVar("ResultT")


class Engine:
    """Runs one scheduler in one thread."""

    def __init__(self, scheduler: RequestScheduler, loop: asyncio.AbstractEventLoop) -> None:
        """Make an engine whose answers arrive in `loop`; `start` starts it."""
        self._scheduler = scheduler
        self._loop = loop
        self._inbox: deque[Callable[[], None]] = deque()
        self._wakeup = threading.Condition()
        self._is_stopping = False
        self._drained: list[Future[None]] = []
        # A thread: forwards block for milliseconds, and the event loop must go on answering.
        self._thread = threading.Thread(  # noqa: TID251
            target=self._run, name="embedded-model", daemon=True
        )

    @property
    def is_alive(self) -> bool:
        """Whether the model thread runs."""
        return self._thread.is_alive()

    def start(self) -> None:
        """Start the model thread."""
        self._thread.start()

    def stop(self, timeout_s: float) -> bool:
        """Ask the thread to end and wait up to `timeout_s`; return whether it ended."""
        with self._wakeup:
            self._is_stopping = True
            self._wakeup.notify()
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def post(self, function: Callable[[], None]) -> None:
        """Run `function` in the model thread, between two steps; nobody waits for it."""
        with self._wakeup:
            self._inbox.append(function)
            self._wakeup.notify()

    def submit(self, request: GenerationRequest) -> None:
        """Hand a request to the scheduler."""
        self.post(lambda: self._submit(request))

    def _submit(self, request: GenerationRequest) -> None:
        try:
            self._scheduler.submit(request)
        except Exception as error:
            # Damaged images raise whatever their decoder raises; no byte of a client ends the thread.
            logger.exception("request %r can not be prepared", request.rid)
            message = f"prompt and images must be readable, got {type(error).__name__}: {error}"
            self._scheduler.reject(request, BadRequestError(message))

    async def call(self, function: Callable[[RequestScheduler], ResultT]) -> ResultT:
        """Run `function` on the scheduler in the model thread and return its result."""
        future: Future[ResultT] = Future()

        def run() -> None:
            if not future.set_running_or_notify_cancel():
                return
            try:
                result = function(self._scheduler)
            except Exception as error:  # noqa: BLE001 - the boundary: it belongs to the caller
                future.set_exception(error)
            else:
                future.set_result(result)

        self.post(run)
        return await asyncio.wrap_future(future)

    async def drain(self) -> None:
        """Return once nothing runs, under a hold on admission; end it with `set_draining`."""
        future: Future[None] = Future()

        def start(scheduler: RequestScheduler) -> None:
            scheduler.set_draining(True)
            self._drained.append(future)

        await self.call(start)
        await asyncio.wrap_future(future)

    def _run(self) -> None:
        while True:
            with self._wakeup:
                while not (self._inbox or self._is_stopping or self._scheduler.has_work):
                    self._wakeup.wait()
                if self._is_stopping:
                    return
                functions = list(self._inbox)
                self._inbox.clear()
            for function in functions:
                function()
            self._step()
            self._release_drains()
            deliveries = self._scheduler.take_deliveries()
            if deliveries:
                self._loop.call_soon_threadsafe(_deliver, deliveries)

    def _step(self) -> None:
        try:
            self._scheduler.step()
        except Exception as error:
            logger.exception("a forward failed; the requests in it fail with it")
            self._scheduler.fail_running(error)

    def _release_drains(self) -> None:
        if self._drained and (self._scheduler.num_running == 0 or self._scheduler.is_paused):
            for future in self._drained:
                if future.set_running_or_notify_cancel():
                    future.set_result(None)
            self._drained.clear()


def _deliver(deliveries: list[Delivery]) -> None:
    for deliver, answer in deliveries:
        deliver(answer)
