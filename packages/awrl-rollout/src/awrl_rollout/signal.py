"""A condition for state that changes synchronously inside one event loop.

`asyncio.Condition` needs an await to notify; here the one who changes the state is often a plain
method. Nothing is lost: a waiter checks its predicate, registers and suspends in one step.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable


class Signal:
    """Wakes every waiter, which then checks its own predicate."""

    def __init__(self) -> None:
        self._waiters: set[asyncio.Future[None]] = set()

    def notify(self) -> None:
        """Wake every waiter; call after each change of the state that they look at."""
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_result(None)

    async def wait_for(
        self, predicate: Callable[[], bool], *, timeout_s: float | None = None
    ) -> None:
        """Return once `predicate()` is true.

        Raises:
            TimeoutError: It was not true within `timeout_s`.
        """
        async with asyncio.timeout(timeout_s):
            while not predicate():
                await self.wait()

    async def wait(self) -> None:
        """Return at the next `notify`."""
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiters.add(waiter)
        try:
            await waiter
        finally:
            self._waiters.discard(waiter)
