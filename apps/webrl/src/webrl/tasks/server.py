"""The task pages over HTTP on loopback.

Invariants:

* listens on loopback only, on a port that the system chose, with a backlog of 1024: a pool that
  opens all its pages at one moment must not lose a connection attempt (with the usual backlog of
  5 a page load took up to 30 s);
* serves files of the package folder and pages of `extra` only, never a path outside them;
* files are read once and answered from memory.
"""

from __future__ import annotations

import mimetypes
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from aiohttp import web

from webrl.tasks.fault_site import PREFIX, answer_fault
from webrl.tasks.miniwob import html_root

if TYPE_CHECKING:
    from types import TracebackType

BACKLOG = 1024
"""Connections that may wait to be accepted; the kernel caps it at `net.core.somaxconn`."""
_SHUTDOWN_S = 1.0
"""For answers under way when the server closes; the browsers that wait for them are gone by then."""

Handler: TypeAlias = Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]
"""Answers requests below one path prefix."""


class TaskServer:
    """Serves the pages inside the running event loop. Used as `async with TaskServer() as s:`.

    Args:
        root: Folder with the static pages; that of MiniWoB++ when `None`.
        routes: Handlers by path prefix; the hostile pages of FaultWoB when `None`.
        host: Loopback address to listen on.
        port: Port, or 0 for a free one.
    """

    def __init__(
        self,
        *,
        root: Path | None = None,
        routes: Mapping[str, Handler] | None = None,
        host: str = "127.0.0.1",
        port: int = 0,
    ) -> None:
        """Prepare the server; nothing listens yet."""
        self._root = (html_root() if root is None else root).resolve()
        self._routes = dict({PREFIX: answer_fault} if routes is None else routes)
        self._host = host
        self._port = port
        self._cache: dict[str, tuple[bytes, str]] = {}
        self._runner: web.ServerRunner | None = None

    @property
    def base_url(self) -> str:
        """Return the address without a final slash, such as `http://127.0.0.1:41234`."""
        if self._runner is None:
            raise RuntimeError("base_url must be read while the server runs. Enter it first.")
        host, port = self._runner.addresses[0][:2]
        return f"http://{host}:{port}"

    async def __aenter__(self) -> TaskServer:
        """Start to listen."""
        # A page that went away ends its request, also one that is never answered.
        server = web.Server(self._answer, handler_cancellation=True)
        runner = web.ServerRunner(server, shutdown_timeout=_SHUTDOWN_S)
        await runner.setup()
        await web.TCPSite(runner, self._host, self._port, backlog=BACKLOG).start()
        self._runner = runner
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Stop to listen and close every connection."""
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None

    async def _answer(self, request: web.BaseRequest) -> web.StreamResponse:
        path = request.path
        for prefix, handler in self._routes.items():
            if path.startswith(prefix):
                return await handler(request)
        if request.method not in ("GET", "HEAD"):
            return web.Response(status=405)
        found = self._read(path)
        if found is None:
            return web.Response(status=404, text="no such page")
        body, content_type = found
        return web.Response(
            body=body, content_type=content_type, headers={"Cache-Control": "max-age=86400"}
        )

    def _read(self, path: str) -> tuple[bytes, str] | None:
        if path not in self._cache:
            file = (self._root / path.lstrip("/")).resolve()
            if not file.is_relative_to(self._root) or not file.is_file():
                return None
            kind = mimetypes.guess_type(file.name)[0] or "application/octet-stream"
            self._cache[path] = (file.read_bytes(), kind)
        return self._cache[path]
