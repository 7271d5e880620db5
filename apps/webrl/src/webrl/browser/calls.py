"""Every await on Playwright goes through here.

Invariants:

* every call has a deadline of its own: most of Playwright's calls have none;
* a call is never cancelled inside Playwright (that corrupts its futures): whoever waited is
  released at once, the call runs on in the owner's task group;
* what an abandoned call creates later is disposed of by that call, so nothing is left unowned;
* Playwright's errors leave as typed faults.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar

from playwright.async_api import Error as PlaywrightError

from webrl.errors import BrowserFault, BrowserFaultKind

logger = logging.getLogger(__name__)
_T = TypeVar("_T")

_DRIVER_GONE = "Connection closed while reading from the driver"
_LOST_TEXTS = (
    "Target page, context or browser has been closed",
    "Browser has been closed",
    "Browser closed",
    "browser has disconnected",
)


class Calls:
    """Runs Playwright calls with deadlines, inside one task group."""

    def __init__(self, tasks: asyncio.TaskGroup) -> None:
        """Run calls in `tasks`, which must outlive every caller."""
        self._tasks = tasks
        self._running: set[asyncio.Task[None]] = set()

    @property
    def num_running(self) -> int:
        """Return how many calls run, those that nobody waits for any more included."""
        return len(self._running)

    async def run(
        self,
        call: Awaitable[_T],
        deadline_s: float,
        what: str,
        *,
        dispose: Callable[[_T], Awaitable[object]] | None = None,
    ) -> _T:
        """Return what `call` gives.

        Args:
            call: A Playwright coroutine that has not started.
            deadline_s: Longest time to wait for it.
            what: Names the call in faults.
            dispose: Undoes the call when it ends after nobody waits for it any more.

        Raises:
            BrowserFault: The call failed, or missed its deadline (`timeout`).
        """
        result: asyncio.Future[_T] = asyncio.get_running_loop().create_future()
        task = self._tasks.create_task(self._settle(call, result, what, dispose))
        self._running.add(task)
        task.add_done_callback(self._running.discard)
        try:
            async with asyncio.timeout(deadline_s):
                return await result
        except TimeoutError:
            raise BrowserFault("timeout", f"{what} took more than {deadline_s:g} s") from None

    def cancel_all(self) -> None:
        """Cancel what still runs; only for the end, when driver and browser are gone."""
        for task in tuple(self._running):
            task.cancel()

    async def _settle(
        self,
        call: Awaitable[_T],
        result: asyncio.Future[_T],
        what: str,
        dispose: Callable[[_T], Awaitable[object]] | None,
    ) -> None:
        try:
            value = await call
        except Exception as error:  # noqa: BLE001 -- boundary: Playwright raises bare exceptions
            if not result.done():
                result.set_exception(as_fault(error, what))
            else:
                logger.debug("%s failed after its deadline: %s", what, error)
            return
        if not result.done():
            result.set_result(value)
        elif dispose is not None:
            try:
                await dispose(value)
            except Exception as error:  # noqa: BLE001 -- same boundary
                logger.debug("undoing %s failed: %s", what, error)


def as_fault(error: Exception, what: str) -> BrowserFault:
    """Return `error` as a typed fault, chained by the caller's `raise`."""
    if isinstance(error, BrowserFault):
        return error
    text = str(error).partition("\n")[0]
    fault = BrowserFault(_kind(error, text), f"{what}: {text[:300]}")
    fault.__cause__ = error
    return fault


def _kind(error: Exception, text: str) -> BrowserFaultKind:
    if _DRIVER_GONE in text:
        return "driver_lost"
    if any(part in text for part in _LOST_TEXTS):
        return "browser_lost"
    if "crashed" in text:
        return "page_crashed"
    if "net::ERR" in text or "interrupted by another navigation" in text:
        return "navigation_error"
    if "Timeout" in text:
        return "timeout"
    return "page_error" if isinstance(error, PlaywrightError) else "driver_lost"


async def quietly(call: Coroutine[Any, Any, object], what: str) -> bool:
    """Run a clean-up call; return whether it worked, and only log when it did not."""
    try:
        await call
    except BrowserFault as fault:
        logger.debug("%s: %s", what, fault)
        return False
    return True
