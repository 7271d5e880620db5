"""How long to look away after an action on a page that may load something.

Invariant: waits for the document, never for the network: a page with an open stream or a timer
is never idle.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from webrl.browser.page import LivePage
from webrl.errors import BrowserFault

FIRST_PAUSE_S = 0.1
"""What a click needs to start a navigation; before it, the document still says `complete`."""
PAUSE_S = 0.05
"""Between two looks."""


async def settle(
    page: LivePage,
    longest_s: float,
    *,
    sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
) -> None:
    """Wait until the document of `page` is complete, at most `longest_s` seconds.

    A page that is between two documents counts as loading. One that does not answer is told to
    stop: while a navigation waits for its first byte, neither scripts nor screenshots work.

    Args:
        page: The active page.
        longest_s: Longest wait, in seconds; 0 does not wait at all.
        sleep: Waits.

    Raises:
        BrowserFault: the page does not even stop.
    """
    if longest_s <= 0:
        return
    await sleep(min(FIRST_PAUSE_S, longest_s))
    waited = FIRST_PAUSE_S
    while waited < longest_s:
        try:
            if await page.evaluate("document.readyState") == "complete":
                return
        except BrowserFault as fault:
            if fault.kind == "timeout":
                await page.stop_loading()
            if fault.kind != "page_error":
                return
        await sleep(PAUSE_S)
        waited += PAUSE_S
