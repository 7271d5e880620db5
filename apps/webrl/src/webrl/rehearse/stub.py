"""What the stand-ins of the outside world have in common: an HTTP server that can go down for a while."""

from __future__ import annotations

import asyncio
import random
import time
from abc import ABC, abstractmethod
from types import TracebackType
from typing import Self

from aiohttp import web
from aiohttp.typedefs import Handler, Middleware

_BACKLOG = 1024
"""Connections that may wait to be accepted."""

DOWN_PATH = "/rehearsal/down"
"""`POST` here with `seconds`: every connection is cut for so long."""


class StubServer(ABC):
    """Answers in the running event loop; use it as `async with`.

    Args:
        latency_s: Mean wait before an answer, in seconds.
        latency_cv: Its standard deviation as a share of the mean.
        host: Address to listen on.
        port: Port, or 0 for a free one.
        seed: Seed of latencies, and of what else is drawn.
    """

    def __init__(
        self,
        *,
        latency_s: float,
        latency_cv: float = 1.0,
        host: str = "127.0.0.1",
        port: int = 0,
        seed: int = 0,
    ) -> None:
        self.num_requests = 0
        """Requests that were answered."""
        self.num_cut = 0
        """Connections that were cut while it was down."""
        self._latency_s = latency_s
        self._latency_cv = latency_cv
        self._place = host, port
        self._down_until_s = 0.0
        self._rng = random.Random(seed)
        self._runner: web.AppRunner | None = None

    @property
    def base_url(self) -> str:
        """Return the address without a final slash."""
        if self._runner is None:
            raise RuntimeError("base_url must be read while the server runs. Enter it first.")
        host, port = self._runner.addresses[0][:2]
        return f"http://{host}:{port}"

    def go_down(self, seconds: float) -> None:
        """Cut every connection for so many seconds from now on."""
        self._down_until_s = time.monotonic() + seconds

    @abstractmethod
    def routes(self) -> list[web.RouteDef]:
        """Return what it answers."""

    async def __aenter__(self) -> Self:
        """Start to listen."""
        app = web.Application(client_max_size=1 << 26, middlewares=[self._watch()])
        app.add_routes([*self.routes(), web.post(DOWN_PATH, self._take_down)])
        runner = web.AppRunner(
            app, access_log=None, handler_cancellation=True, shutdown_timeout=0.1
        )
        await runner.setup()
        await web.TCPSite(runner, *self._place, backlog=_BACKLOG).start()
        self._runner = runner
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Stop to listen."""
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None

    async def _take_down(self, request: web.Request) -> web.Response:
        self.go_down(float(request.query["seconds"]))
        return web.Response()

    def _watch(self) -> Middleware:
        @web.middleware
        async def watch(request: web.Request, handler: Handler) -> web.StreamResponse:
            if request.path == DOWN_PATH:
                return await handler(request)
            await asyncio.sleep(self._draw_latency_s())
            if time.monotonic() < self._down_until_s:
                self.num_cut += 1
                if request.transport is not None:
                    request.transport.abort()
                return web.Response()
            self.num_requests += 1
            return await handler(request)

        return watch

    def _draw_latency_s(self) -> float:
        if not self._latency_s:
            return 0.0
        if not self._latency_cv:
            return self._latency_s
        shape = self._latency_cv**-2
        return self._rng.gammavariate(shape, self._latency_s / shape)
