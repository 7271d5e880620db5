"""A forward proxy on loopback, as networks and providers have them: plain requests and tunnels."""

from __future__ import annotations

import asyncio
import base64
from types import TracebackType

from awrl_rollout import UnwrappedTaskGroup

END = b"\r\n\r\n"


class ForwardProxy:
    """Forwards to wherever the test says. Used as `async with ForwardProxy(...) as proxy:`.

    Args:
        sites: Port on loopback of each place that is asked for, by `HOST:PORT`.
        login: `USER:PASSWORD` that opens it; anyone may when empty.
    """

    def __init__(self, sites: dict[str, int], login: str = "") -> None:
        self.sites = sites
        self.login = login
        self.asked: list[str] = []
        """First lines of the requests that it let through."""
        self.refused: list[str] = []
        """First lines of those that it asked for credentials."""
        self._server: asyncio.Server | None = None
        self._port = 0

    @property
    def url(self) -> str:
        """Return its address."""
        return f"http://127.0.0.1:{self._port}"

    async def __aenter__(self) -> ForwardProxy:
        await self.start()
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.stop()

    async def start(self) -> None:
        """Listen, on the same port as before."""
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self._port)
        self._port = self._server.sockets[0].getsockname()[1]

    def stop(self) -> None:
        """Take no further connection."""
        if self._server is not None:
            self._server.close()
            self._server = None

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = await reader.readuntil(END)
            line = head.partition(b"\r\n")[0].decode()
            if self._opens(head):
                self.asked.append(line)
                await self._carry(line, head, reader, writer)
            else:
                self.refused.append(line)
                writer.write(b"HTTP/1.1 407 Proxy Authentication Required\r\n")
                writer.write(b"Proxy-Authenticate: Basic\r\nContent-Length: 0" + END)
                await writer.drain()
        except (OSError, asyncio.IncompleteReadError):
            pass  # whoever asked is gone
        finally:
            writer.close()

    def _opens(self, head: bytes) -> bool:
        if not self.login:
            return True
        expected = b"Proxy-Authorization: Basic " + base64.b64encode(self.login.encode())
        return expected in head.split(b"\r\n")

    async def _carry(
        self,
        line: str,
        head: bytes,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> None:
        method, target, _ = line.split(" ")
        place = target if method == "CONNECT" else target.split("/")[2]
        port = self.sites.get(place if ":" in place else f"{place}:80")
        if port is None:
            writer.write(b"HTTP/1.1 502 Bad Gateway\r\nContent-Length: 0" + END)
            await writer.drain()
            return
        far_reader, far_writer = await asyncio.open_connection("127.0.0.1", port)
        try:
            if method == "CONNECT":
                writer.write(b"HTTP/1.1 200 Connection established" + END)
            else:
                far_writer.write(head)
            async with UnwrappedTaskGroup() as group:
                forth = group.create_task(_copy(reader, far_writer))
                await _copy(far_reader, writer)
                forth.cancel()
        finally:
            far_writer.close()


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while chunk := await reader.read(1 << 16):
        writer.write(chunk)
        await writer.drain()
