"""The deadline wrapper around every Playwright call."""

from __future__ import annotations

import asyncio

import pytest
from playwright.async_api import Error as PlaywrightError
from webrl.browser.calls import Calls, as_fault, quietly
from webrl.errors import BrowserFault


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (Exception("Connection closed while reading from the driver"), "driver_lost"),
        (PlaywrightError("Page.goto: net::ERR_CONNECTION_REFUSED at http://x"), "navigation_error"),
        (PlaywrightError("Page.goto: Timeout 3000ms exceeded.\nCall log:"), "timeout"),
        (PlaywrightError("Page.evaluate: Target crashed"), "page_crashed"),
        (PlaywrightError("Target page, context or browser has been closed"), "browser_lost"),
        (PlaywrightError("Page.title: Execution context was destroyed"), "page_error"),
        (ValueError("invalid state"), "driver_lost"),
    ],
)
def test_errors_become_typed_faults(error: Exception, kind: str) -> None:
    fault = as_fault(error, "a call")
    assert fault.kind == kind
    assert fault.__cause__ is error
    assert "Call log" not in str(fault)


def test_a_missed_deadline_releases_the_caller_and_not_the_call() -> None:
    async def main() -> tuple[str, int, list[str]]:
        gate, ended = asyncio.Event(), list[str]()

        async def call() -> str:
            await gate.wait()
            ended.append("ended")
            return "late"

        async with asyncio.TaskGroup() as tasks:
            calls = Calls(tasks)
            with pytest.raises(BrowserFault, match=r"a call took more than 0.001 s") as caught:
                await calls.run(call(), 0.001, "a call")
            running = calls.num_running
            gate.set()
        return caught.value.kind, running, ended

    assert asyncio.run(main()) == ("timeout", 1, ["ended"])


def test_what_an_abandoned_call_creates_is_disposed_of() -> None:
    async def main() -> list[str]:
        gate, disposed = asyncio.Event(), list[str]()

        async def create() -> str:
            await gate.wait()
            return "page"

        async def dispose(value: str) -> None:
            disposed.append(value)

        async with asyncio.TaskGroup() as tasks:
            calls = Calls(tasks)
            waiter = tasks.create_task(calls.run(create(), 60, "new page", dispose=dispose))
            await asyncio.sleep(0)
            waiter.cancel()
            await asyncio.sleep(0)
            assert waiter.cancelled()
            gate.set()
        return disposed

    assert asyncio.run(main()) == ["page"]


def test_what_is_waited_for_is_not_disposed_of() -> None:
    async def main() -> tuple[str, list[str]]:
        disposed: list[str] = []

        async def create() -> str:
            return "page"

        async def dispose(value: str) -> None:
            disposed.append(value)

        async with asyncio.TaskGroup() as tasks:
            return await Calls(tasks).run(create(), 60, "new page", dispose=dispose), disposed

    assert asyncio.run(main()) == ("page", [])


def test_a_call_that_fails_late_harms_nobody() -> None:
    async def main() -> str:
        gate = asyncio.Event()

        async def fail() -> None:
            await gate.wait()
            raise PlaywrightError("Target closed")

        async with asyncio.TaskGroup() as tasks:
            calls = Calls(tasks)
            with pytest.raises(BrowserFault):
                await calls.run(fail(), 0.001, "a call")
            gate.set()
        return "the task group ended in peace"

    assert asyncio.run(main()).endswith("peace")


def test_clean_up_reports_and_never_raises_a_fault() -> None:
    async def main() -> list[bool]:
        async def good() -> None:
            return None

        async def bad() -> None:
            raise BrowserFault("timeout", "x")

        return [await quietly(good(), "good"), await quietly(bad(), "bad")]

    assert asyncio.run(main()) == [True, False]
