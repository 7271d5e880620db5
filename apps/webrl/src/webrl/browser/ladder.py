"""What to replace next when an episode can not start: a pure decision.

Invariants:

* rungs only go up within one reset, so a reset ends after at most five tries;
* a fault climbs no higher than its kind explains: a site that is down costs a page, not a browser.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum

from webrl.errors import BrowserFaultKind


class Rung(IntEnum):
    """What is replaced before the next try."""

    NOTHING = 0
    PAGE = 1
    CONTEXT = 2
    BROWSER = 3
    DRIVER = 4


HIGHEST: Mapping[BrowserFaultKind, Rung] = {
    "navigation_error": Rung.PAGE,
    "blocked": Rung.NOTHING,
    "page_error": Rung.CONTEXT,
    "page_crashed": Rung.CONTEXT,
    "dialog_storm": Rung.PAGE,
    "timeout": Rung.DRIVER,
    "browser_lost": Rung.DRIVER,
    "driver_lost": Rung.DRIVER,
}
"""The last rung that is worth a try, by kind."""

_FIRST: Mapping[BrowserFaultKind, Rung] = {"browser_lost": Rung.BROWSER, "driver_lost": Rung.DRIVER}
"""The first rung that can help, by kind; `PAGE` for the others."""


def next_rung(kind: BrowserFaultKind, tried: Rung) -> Rung | None:
    """Return what to replace after a fault, or `None` to give up.

    Args:
        kind: Kind of the fault.
        tried: Highest rung of this reset so far.
    """
    rung = max(Rung(min(tried + 1, Rung.DRIVER)), _FIRST.get(kind, Rung.PAGE))
    if tried is Rung.DRIVER or rung > HIGHEST[kind]:
        return None
    return rung
