"""Which pages end the browser that shows them, so that they are not opened again: pure bookkeeping.

Invariants:

* a page is blamed for a death of a browser in which it was being used, once for each browser;
* each use that ends well takes a part of the blame back: a page that merely stood beside is cleared
  by its next steps, one that ends the browser every other time is found out all the same;
* a page that is found out is refused for a while, and then on trial again.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

import msgspec

from webrl.errors import BrowserFault

logger = logging.getLogger(__name__)
LIMIT = 1.5
"""Blame at which a page is refused: two deaths with hardly a good use between."""
_FORGIVEN = 0.25
"""Deaths that one good use makes up for."""


class _Record(msgspec.Struct):
    blame: float = 0.0
    last_browser: int = 0
    refused_until_s: float = 0.0


class DeadlyPages:
    """What is known of pages that were being used when a browser ended.

    Args:
        refused_s: How long a page that was found out is not opened, in seconds.
        clock: Seconds.
    """

    def __init__(self, refused_s: float, clock: Callable[[], float]) -> None:
        self._refused_s = refused_s
        self._clock = clock
        self._records: dict[str, _Record] = {}

    def check(self, address: str) -> None:
        """Check that the page at `address` may be opened.

        Raises:
            BrowserFault: It has ended browsers, and is refused for a while.
        """
        record = self._records.get(address)
        if record is not None and self._clock() < record.refused_until_s:
            raise BrowserFault(
                "deadly_page",
                f"{address} is not opened for {self._refused_s:g} s: it ended the browser each time",
            )

    def ended_well(self, address: str) -> None:
        """Take a part of the blame from the page at `address`."""
        record = self._records.get(address)
        if record is None:
            return
        record.blame -= _FORGIVEN
        if record.blame <= 0:
            del self._records[address]

    def ended_browser(self, address: str, browser: int) -> bool:
        """Blame the page at `address` for the end of `browser`; return whether it is now found out.

        Args:
            browser: Names the browser; a second report of the same one changes nothing.
        """
        record = self._records.setdefault(address, _Record())
        if record.last_browser == browser:
            return False
        record.last_browser = browser
        record.blame += 1.0
        if record.blame < LIMIT:
            return False
        record.blame = LIMIT - 1.0  # on trial: one more death is enough
        record.refused_until_s = self._clock() + self._refused_s
        logger.warning(
            "%s ended the browser again and is not opened for %g s", address, self._refused_s
        )
        return True
