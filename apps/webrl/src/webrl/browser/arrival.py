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
from collections.abc import Awaitable, Callable, Mapping

from webrl.browser.guard import Trouble
from webrl.browser.page import LivePage
from webrl.errors import BrowserFault, BrowserFaultKind

_REFUSING_STATUS = frozenset({401, 403, 429, 451})
"""The site will not serve this visitor: without a login, at this rate, from here, or at all."""
_BOT_DETECTION_TEXT = re.compile(
    r"just a moment|attention required|access denied|verify (that )?you are (a )?human|are you a "
    r"robot|unusual traffic|captcha|security check|bot detection|too many requests",
    re.IGNORECASE,
)
_MOST_OF_A_WALL = 600
"""Characters: a page for robots that comes as status 200 says that and nothing else."""
_MISSING_STATUS = frozenset({404, 410})
_ELEMENTS_OF_A_WALL = 300
"""A document with more of them is no wall, and laying it out to read it can cost too much."""
_LOOK = "document.title + '\\n' + (document.body ? document.body.innerText.slice(0, 2000) : '')"
_COUNT = "document.querySelectorAll('*').length"
_REFUSED = (
    "{} must be at a public address, got a private one. Give the task allow_private = true when "
    "its site is one of your own."
)
_OF_TEXT: Mapping[str, BrowserFaultKind] = {
    "net::ERR_NAME_NOT_RESOLVED": "name_not_resolved",
    "net::ERR_CONNECTION_REFUSED": "connection_refused",
    "net::ERR_INTERNET_DISCONNECTED": "network_down",
    "net::ERR_NETWORK_CHANGED": "network_down",
    "Download is starting": "no_page",
    "net::ERR_CERT_": "bad_certificate",
    "net::ERR_SSL_": "bad_certificate",
}
"""What the browser says of a navigation that failed, where that tells more than that it did."""


def start_fault(fault: BrowserFault, known: tuple[str, Trouble] | None) -> BrowserFault:
    """Return why an episode could not start, as precisely as that is known.

    Args:
        fault: What the navigation or the page it led to was found to be.
        known: An address that was asked for and what the guard met there, if it met anything.
    """
    if known is not None and known[1] == "refused":
        return BrowserFault("refused", _REFUSED.format(known[0]))
    if fault.kind != "navigation_error":
        return fault
    if known is not None:
        return BrowserFault(known[1], fault.detail)
    for text, kind in _OF_TEXT.items():
        if text in fault.detail:
            return BrowserFault(kind, fault.detail)
    return fault


async def check_arrival(page: LivePage, status: int | None) -> None:
    """Check that the site gave its page, and not an error.

    Args:
        page: Where the episode is to start.
        status: HTTP status of the page, if it came over HTTP.

    Raises:
        BrowserFault: `blocked` for a site that will not serve this visitor, `no_page` for one that
            has no such page, `navigation_error` for any other error: nobody can do the task there.
    """
    if status is None or status < 400:
        return
    text = str(await page.evaluate(_LOOK)).strip()
    if status in _REFUSING_STATUS or _BOT_DETECTION_TEXT.search(text):
        raise BrowserFault("blocked", f"status {status}: {text[:100]!r}")
    kind: BrowserFaultKind = "no_page" if status in _MISSING_STATUS else "navigation_error"
    raise BrowserFault(kind, f"the site answered with status {status}: {text[:100]!r}")


async def check_wall(page: LivePage) -> None:
    """Check that a page which came as a good one is not a page for robots and nothing else.

    Asked after the first screenshot: until then a page that can not be drawn is the browser's.

    Raises:
        BrowserFault: `blocked`: the site wants to be convinced first; or the page does not answer.
    """
    if int(await page.evaluate(_COUNT)) > _ELEMENTS_OF_A_WALL:
        return
    text = str(await page.evaluate(_LOOK)).strip()
    if len(text) < _MOST_OF_A_WALL and _BOT_DETECTION_TEXT.search(text):
        raise BrowserFault("blocked", f"a wall: {text[:100]!r}")


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
