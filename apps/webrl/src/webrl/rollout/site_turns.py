"""Takes turns on a site: so many episodes of a worker at once, openings so far apart."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from awrl_rollout import Clock, RealClock


@dataclass(kw_only=True, slots=True)
class _Site:
    num_inside: int = 0
    next_s: float = 0.0
    waiting: int = 0
    left: asyncio.Condition = field(default_factory=asyncio.Condition)


class SiteTurns:
    """The turns of one worker; a site without a name is nobody else's and never waits.

    Args:
        most_at_once: Episodes on one site at one moment; any number when None.
        interval_s: Least time between two openings of one site, in seconds.
        clock: Sleeps and tells the time.
    """

    def __init__(
        self, *, most_at_once: int | None, interval_s: float, clock: Clock | None = None
    ) -> None:
        self._most = most_at_once
        self._interval_s = interval_s
        self._clock = clock or RealClock()
        self._sites: dict[str, _Site] = {}

    @property
    def num_sites(self) -> int:
        """Return the sites that somebody visits, waits for or has just left."""
        return len(self._sites)

    @asynccontextmanager
    async def turn(self, name: str) -> AsyncGenerator[None]:
        """Wait until the site may be opened, and hold a place on it for the block."""
        if not name or (self._most is None and not self._interval_s):
            yield
            return
        site = self._sites.setdefault(name, _Site())
        site.waiting += 1
        try:
            async with site.left:
                await site.left.wait_for(lambda: self._most is None or site.num_inside < self._most)
                site.num_inside += 1
        finally:
            site.waiting -= 1
        try:
            opened_s = max(self._clock.time(), site.next_s)
            site.next_s = opened_s + self._interval_s
            if (wait_s := opened_s - self._clock.time()) > 0:
                await self._clock.sleep(wait_s)
            yield
        finally:
            async with site.left:
                site.num_inside -= 1
                site.left.notify()
            if not site.waiting and not site.num_inside and self._clock.time() >= site.next_s:
                self._sites.pop(name, None)
