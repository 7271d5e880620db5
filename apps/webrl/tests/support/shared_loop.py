"""One event loop, and what was opened on it, for all tests of a file.

A pool with its Chromium takes most of a second of a core to start and to end: more than most tests.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from typing import Generic, TypeVar

_Opened = TypeVar("_Opened")
_Result = TypeVar("_Result")


class SharedLoop(Generic[_Opened]):
    """Runs one test after the other beside something that stays open.

    Args:
        opening: Makes what the first test opens, and `close` closes.
    """

    def __init__(self, opening: Callable[[], AbstractAsyncContextManager[_Opened]]) -> None:
        self._opening = opening
        self._runner: asyncio.Runner | None = None
        self._keeper: asyncio.Task[None] | None = None
        self._opened: asyncio.Future[_Opened] | None = None
        self._is_over = asyncio.Event()

    def run(self, body: Callable[[_Opened], Awaitable[_Result]]) -> _Result:
        """Return what a body comes to; open first where nothing is open."""
        if self._runner is None:
            self._runner = asyncio.Runner()
            loop = self._runner.get_loop()
            self._opened = loop.create_future()
            self._is_over = asyncio.Event()
            self._keeper = loop.create_task(self._keep(self._opened))
        return self._runner.run(self._run(body))

    def close(self) -> None:
        """Close what is open, if anything is."""
        if self._runner is None:
            return
        with self._runner as runner:
            self._runner = None
            runner.run(self._end())

    async def _run(self, body: Callable[[_Opened], Awaitable[_Result]]) -> _Result:
        assert self._opened is not None
        return await body(await asyncio.shield(self._opened))

    async def _keep(self, opened: asyncio.Future[_Opened]) -> None:
        try:
            async with self._opening() as value:
                opened.set_result(value)
                await self._is_over.wait()
        except Exception as error:
            if opened.done():
                raise
            opened.set_exception(error)

    async def _end(self) -> None:
        assert self._keeper is not None
        self._is_over.set()
        await self._keeper
