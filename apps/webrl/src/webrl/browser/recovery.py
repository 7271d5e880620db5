"""What to replace next when an episode can not start: a pure decision.

Invariants:

* levels only go up within one reset, so a reset ends after at most five tries;
* a fault escalates no further than its kind explains: a site that is down costs a page, not a browser.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum

from webrl.errors import BrowserFaultKind


class RecoveryLevel(IntEnum):
    """What is replaced before the next try."""

    NOTHING = 0
    PAGE = 1
    CONTEXT = 2
    BROWSER = 3
    DRIVER = 4


HIGHEST: Mapping[BrowserFaultKind, RecoveryLevel] = {
    "navigation_error": RecoveryLevel.PAGE,
    "blocked": RecoveryLevel.NOTHING,
    "refused": RecoveryLevel.NOTHING,
    "name_not_resolved": RecoveryLevel.NOTHING,
    "connection_refused": RecoveryLevel.NOTHING,
    "bad_certificate": RecoveryLevel.NOTHING,
    "no_page": RecoveryLevel.NOTHING,
    "deadly_page": RecoveryLevel.NOTHING,
    "network_down": RecoveryLevel.NOTHING,
    "proxy_lost": RecoveryLevel.NOTHING,
    "page_error": RecoveryLevel.CONTEXT,
    "page_crashed": RecoveryLevel.CONTEXT,
    "dialog_storm": RecoveryLevel.PAGE,
    "timeout": RecoveryLevel.DRIVER,
    "browser_lost": RecoveryLevel.DRIVER,
    "driver_lost": RecoveryLevel.DRIVER,
}
"""The last level that is worth a try, by kind."""

_FIRST: Mapping[BrowserFaultKind, RecoveryLevel] = {
    "browser_lost": RecoveryLevel.BROWSER,
    "driver_lost": RecoveryLevel.DRIVER,
}
"""The first level that can help, by kind; `PAGE` for the others."""


def escalate(kind: BrowserFaultKind, tried: RecoveryLevel) -> RecoveryLevel | None:
    """Return what to replace after a fault, or `None` to give up.

    Args:
        tried: Highest level of this reset so far.
    """
    level = max(
        RecoveryLevel(min(tried + 1, RecoveryLevel.DRIVER)), _FIRST.get(kind, RecoveryLevel.PAGE)
    )
    if tried is RecoveryLevel.DRIVER or level > HIGHEST[kind]:
        return None
    return level
