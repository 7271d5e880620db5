"""First screenshots, shared by the episodes of one seed.

Invariants:

* only pages that show the same pixels for the same seed are shared, and only within one browser;
* each screenshot is taken once, by whoever comes first; the others wait for it;
* when taking it fails, each waiter takes its own: a fault is never shared.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Hashable


class FirstScreenshots:
    """The newest `capacity` first screenshots by key."""

    def __init__(self, capacity: int) -> None:
        """Keep at most `capacity` screenshots."""
        self._capacity = capacity
        self._frames: OrderedDict[Hashable, asyncio.Future[bytes | None]] = OrderedDict()
        self.num_shared = 0

    async def get(self, key: Hashable, take: Callable[[], Awaitable[bytes]]) -> bytes:
        """Return the screenshot of `key`, taken by `take` when nobody has it.

        Args:
            key: Names page, seed and browser.
            take: Takes the screenshot; its errors reach only this caller.
        """
        known = self._frames.get(key)
        if known is not None:
            shared = await asyncio.shield(known)
            if shared is not None:
                self.num_shared += 1
                return shared
        own: asyncio.Future[bytes | None] = asyncio.get_running_loop().create_future()
        self._frames[key] = own
        self._frames.move_to_end(key)
        while len(self._frames) > self._capacity:
            self._frames.popitem(last=False)
        try:
            frame = await take()
        except BaseException:  # a cancelled caller too: the waiters would wait forever
            own.set_result(None)
            if self._frames.get(key) is own:
                del self._frames[key]
            raise
        own.set_result(frame)
        return frame
