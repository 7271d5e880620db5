"""What came when a page was opened or an action may have opened one: its end, an error, a robot check.

Invariants:

* a page for robots (bot detection) in place of what was asked for is the site's decision, not the
  policy's failure: the episode is `blocked` and earns nothing, good or bad;
* waits are for the document, never for the network: a page with an open stream or a timer is never
  idle.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable

from webrl.browser.page import LivePage
from webrl.errors import BrowserFault

_REFUSING_STATUS = frozenset({401, 403, 429, 451})
"""The site will not serve this visitor: without a login, at this rate, from here, or at all."""
_BOT_DETECTION_TEXT = re.compile(
    r"just a moment|attention required|access denied|verify (that )?you are (a )?human|are you a "
    r"robot|unusual traffic|captcha|security check|bot detection|too many requests",
    re.IGNORECASE,
)
_LOOK = "document.title + '\\n' + (document.body ? document.body.innerText.slice(0, 2000) : '')"


async def check_arrival(page: LivePage, status: int | None) -> None:
    """Check that the site gave its page, and not an error or a page for robots.

    Args:
        page: Where the episode is to start.
        status: HTTP status of the page, if it came over HTTP.

    Raises:
        BrowserFault: `blocked` for a site that will not serve this visitor, `navigation_error` for
            any other error: nobody can do the task on such a page.
    """
    if status is None or status < 400:
        return
    text = str(await page.evaluate(_LOOK)).strip()
    if status in _REFUSING_STATUS or _BOT_DETECTION_TEXT.search(text):
        raise BrowserFault("blocked", f"status {status}: {text[:100]!r}")
    raise BrowserFault(
        "navigation_error", f"the site answered with status {status}: {text[:100]!r}"
    )


FIRST_PAUSE_S = 0.1
"""What a click needs to start a navigation; before it, the document still says `complete`."""
PAUSE_S = 0.05
"""Between two looks."""


async def wait_until_loaded(
    page: LivePage,
    longest_s: float,
    *,
    sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
) -> None:
    """Wait until the document of `page` is complete, at most `longest_s` seconds.

    A page that is between two documents counts as loading. One that does not answer is told to
    stop: while a navigation waits for its first byte, neither scripts nor screenshots work.

    Args:
        longest_s: Longest wait, in seconds; 0 does not wait at all.

    Raises:
        BrowserFault: The page does not even stop.
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
