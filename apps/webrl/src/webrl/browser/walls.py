"""Pages that a site shows to robots instead of what was asked for.

Invariant: a wall is the site's decision, not the policy's failure: the episode is `blocked` and
earns nothing, good or bad.
"""

from __future__ import annotations

import re

from webrl.browser.page import LivePage
from webrl.errors import BrowserFault

_WALL_STATUS = frozenset({401, 403, 429, 503})
_WALL_TEXT = re.compile(
    r"just a moment|attention required|access denied|verify (that )?you are (a )?human|are you a "
    r"robot|unusual traffic|captcha|security check|bot detection|too many requests",
    re.IGNORECASE,
)
_LOOK = "document.title + '\\n' + (document.body ? document.body.innerText.slice(0, 2000) : '')"


async def check_arrival(page: LivePage, status: int | None) -> None:
    """Check that the site gave its page, and not an error or a wall.

    Args:
        page: Where the episode is to start.
        status: HTTP status of the page, if it came over HTTP.

    Raises:
        BrowserFault: `blocked` for a wall, `navigation_error` for a site that is down.
    """
    if status is None or status < 400:
        return
    text = str(await page.evaluate(_LOOK))
    if status in _WALL_STATUS and _WALL_TEXT.search(text):
        raise BrowserFault("blocked", f"status {status}: {text.strip()[:100]!r}")
    if status >= 500:
        raise BrowserFault("navigation_error", f"the site answered with status {status}")
