"""The only way from a page to the network: a proxy on loopback that refuses private addresses.

Invariants:

* every request of a page but those to the task server comes through here; the address that is
  checked is the address that is connected to, so a name can not resolve to something else later;
* an address is reached only when it is global: loopback, private networks, link-local addresses
  (cloud metadata) and reserved ones are refused with 403;
* nothing is read of an encrypted connection, nothing is kept of any;
* a connection to a site ends with the page's side of it, and all end with the proxy;
* with an upstream proxy the same holds: that proxy is asked for the checked address, not for the
  name, unless it is told to look names up itself, when only addresses and the form of names are
  checked;
* each plain request has a connection of its own: the page is told that it closes, whatever the site
  says, since a second request on it would never be checked.
"""

from __future__ import annotations

import asyncio
import errno
import ipaddress
import logging
import re
import socket
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Literal, TypeAlias
from urllib.parse import urlsplit

from awrl_rollout import UnwrappedTaskGroup

from webrl.browser.upstream import Stream, UnreachedError, UpstreamError, UpstreamProxy

if TYPE_CHECKING:
    from types import TracebackType

logger = logging.getLogger(__name__)
_CHUNK = 1 << 16
_MAX_HEAD = 1 << 16
_END_OF_HEAD = b"\r\n\r\n"
_WARNING_EVERY_S = 60.0
"""A proxy that is gone fails each connection of each page."""
_KEPT_HOSTS = 256
_BROKEN = (OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError)
"""How a connection fails: an error of the network, or an end or a length that HTTP does not allow."""
_REFUSED = (
    b"HTTP/1.1 403 Forbidden\r\nContent-Length: 16\r\nConnection: close\r\n\r\naddress refused\n"
)
_UNREACHED = b"HTTP/1.1 502 Bad Gateway\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
_BAD = b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
_OPEN = b"HTTP/1.1 200 Connection established\r\n\r\n"

Trouble: TypeAlias = Literal["refused", "name_not_resolved", "connection_refused", "network_down"]
"""Why nothing of a host could be reached, where that is known."""

_NO_SUCH_NAME = frozenset({socket.EAI_NONAME, socket.EAI_NODATA})
"""A name server has answered that there is no such name; every other error is its own."""

_NO_WAY_OUT = frozenset({errno.ENETUNREACH, errno.ENETDOWN})

Resolver = Callable[[str, int], Awaitable[Sequence[str]]]
"""Gives the addresses of a host name."""


def is_public(address: str) -> bool:
    """Return whether `address` (IPv4 or IPv6) may be reached by a page."""
    try:
        parsed = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return False
    if isinstance(parsed, ipaddress.IPv6Address):
        embedded = parsed.ipv4_mapped or parsed.sixtofour
        if embedded is not None:
            return is_public(str(embedded))
        if parsed in ipaddress.ip_network("64:ff9b::/96"):
            return is_public(str(ipaddress.IPv4Address(int(parsed) & 0xFFFFFFFF)))
    return parsed.is_global and not parsed.is_multicast


_PRIVATE_ENDINGS = frozenset({"local", "localhost", "internal", "lan", "intranet", "corp", "home"})
"""Last labels of names that are looked up within a network only."""


def is_public_name(host: str) -> bool:
    """Return whether `host`, a name that others look up, has the form of one of the public network."""
    labels = host.lower().rstrip(".").split(".")
    last = labels[-1]
    is_number = last.isdigit() or last.startswith("0x")
    return len(labels) > 1 and not is_number and last not in _PRIVATE_ENDINGS | {"arpa"}


async def resolve(host: str, port: int) -> Sequence[str]:
    """Return the addresses of `host`, as the system resolves it."""
    found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return [str(entry[4][0]) for entry in found]


class GuardProxy:
    """An HTTP proxy for one pool. Used as `async with GuardProxy() as proxy:`.

    Args:
        resolver: Gives the addresses of a name.
        allow: Whether an address may be reached.
        connect_s: Longest time to reach one, in seconds.
        upstream: Proxy through which sites are reached; none when `None`.
    """

    def __init__(
        self,
        *,
        resolver: Resolver = resolve,
        allow: Callable[[str], bool] = is_public,
        connect_s: float = 10.0,
        upstream: UpstreamProxy | None = None,
    ) -> None:
        """Prepare the proxy; nothing listens yet."""
        self._upstream = upstream
        self.num_upstream_failures = 0
        """Connections that failed because the upstream proxy did."""
        self.last_upstream_failure = ""
        """What was wrong with it, the last time."""
        self._next_warning_s = 0.0
        self._resolver = resolver
        self._allow = allow
        self._connect_s = connect_s
        self._server: asyncio.Server | None = None
        self._serving: set[asyncio.Task[object]] = set()
        self._idle = asyncio.Event()
        self._idle.set()
        self._troubles: dict[str, Trouble] = {}
        self._num_refused = 0

    @property
    def url(self) -> str:
        """Return the proxy's address, such as `http://127.0.0.1:41235`."""
        if self._server is None:
            raise RuntimeError("url must be read while the proxy runs. Enter it first.")
        return f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    @property
    def num_refused(self) -> int:
        """Return how many requests were refused."""
        return self._num_refused

    def trouble_of(self, host: str) -> Trouble | None:
        """Return why `host` was not reached when it was asked for last, `None` where it was."""
        return self._troubles.get(host)

    async def __aenter__(self) -> GuardProxy:
        """Start to listen on loopback."""
        self._server = await asyncio.start_server(
            self._serve, "127.0.0.1", 0, backlog=1024, limit=_MAX_HEAD
        )
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Stop to listen and drop every connection."""
        if self._server is not None:
            self._server.close()
            self._server = None
        for serving in self._serving:
            serving.cancel()
        await self._idle.wait()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        serving = asyncio.current_task()
        assert serving is not None  # a server calls this in a task of its own
        self._serving.add(serving)
        self._idle.clear()
        serving.add_done_callback(self._served)
        try:
            await self._forward(reader, writer)
        except _BROKEN as error:
            logger.debug("proxied connection broke: %s", error)
        finally:
            writer.close()

    def _served(self, serving: asyncio.Task[object]) -> None:
        self._serving.discard(serving)
        if not self._serving:
            self._idle.set()

    async def _forward(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(_END_OF_HEAD)
        request = _parse(head)
        if request is None:
            writer.write(_BAD)
            return
        host, port, onward = request
        self._troubles.pop(host, None)
        addresses = await self._public_addresses(host, port)
        if addresses is None:
            self._num_refused += 1
            self._note(host, "refused")
            logger.debug("refused %s:%d", host, port)
            writer.write(_REFUSED)
            return
        try:
            far, first = await self._reach(host, addresses, port, onward)
            if far is None:
                writer.write(_UNREACHED)
                return
            check = None if self._upstream is None else self._upstream.check
            await _join(reader, writer, *far, first=first, check=check)
        except UpstreamError as error:
            self._note_upstream(error)
            if onward is None:
                writer.write(_UNREACHED)  # else the end alone: a page is no place for this answer

    async def _reach(
        self, host: str, addresses: Sequence[str], port: int, onward: bytes | None
    ) -> tuple[Stream | None, bytes | None]:
        """Return a connection towards the site, and what to send first there.

        Raises:
            UpstreamError: The upstream proxy is gone, or refuses the credentials.
        """
        upstream = self._upstream
        if upstream is None:
            return await self._connect(host, addresses, port), onward
        if upstream.resolves_names and onward is not None:
            line, _, rest = onward.partition(b"\r\n")
            method, path, version = line.decode("latin-1").split(" ")
            return await upstream.open(), upstream.request(method, host, port, path, version) + rest
        for address in addresses:
            try:
                return await upstream.tunnel(address, port), onward
            except UnreachedError as error:
                logger.debug("%s", error)
        return None, onward

    def _note_upstream(self, error: UpstreamError) -> None:
        self.num_upstream_failures += 1
        self.last_upstream_failure = str(error)
        now_s = asyncio.get_running_loop().time()
        if now_s >= self._next_warning_s:
            self._next_warning_s = now_s + _WARNING_EVERY_S
            logger.warning("%s", error)

    def _note(self, host: str, trouble: Trouble) -> None:
        self._troubles[host] = trouble
        if len(self._troubles) > _KEPT_HOSTS:
            del self._troubles[next(iter(self._troubles))]

    async def _public_addresses(self, host: str, port: int) -> Sequence[str] | None:
        """Return the addresses, `None` when one of them is refused; none when there are none."""
        if self._upstream is not None and self._upstream.resolves_names:
            is_allowed = self._allow(host) if _is_address(host) else is_public_name(host)
            return [host] if is_allowed else None
        try:
            async with asyncio.timeout(self._connect_s):
                addresses = await self._resolver(host, port)
        except (OSError, UnicodeError, TimeoutError) as error:
            self._note(host, _trouble_of_name(error))
            return []
        return addresses if all(map(self._allow, addresses)) else None

    async def _connect(self, host: str, addresses: Sequence[str], port: int) -> Stream | None:
        errors: list[Exception] = []
        for address in addresses:
            try:
                async with asyncio.timeout(self._connect_s):
                    return await asyncio.open_connection(address, port)
            except (OSError, TimeoutError) as error:
                logger.debug("%s port %d: %s", address, port, error)
                errors.append(error)
        # One family of addresses may have no way out where the other one has.
        if any(isinstance(error, ConnectionRefusedError) for error in errors):
            self._note(host, "connection_refused")
        elif errors and all(getattr(error, "errno", None) in _NO_WAY_OUT for error in errors):
            self._note(host, "network_down")
        return None


def _trouble_of_name(error: Exception) -> Trouble:
    """Return what a name that was not resolved says: of the site, or of who should resolve it."""
    is_of_name = isinstance(error, UnicodeError) or (
        isinstance(error, socket.gaierror) and error.errno in _NO_SUCH_NAME
    )
    return "name_not_resolved" if is_of_name else "network_down"


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return False
    return True


def _parse(head: bytes) -> tuple[str, int, bytes | None] | None:
    """Return host, port and the bytes to send on; `None` bytes for a tunnel."""
    line, _, rest = head.partition(b"\r\n")
    try:
        method, target, version = line.decode("latin-1").split(" ")
        if method == "CONNECT":
            host, _, port = target.rpartition(":")
            return host.strip("[]"), int(port), None
        parts = urlsplit(target)
        host, port_number = parts.hostname, parts.port or 80
    except ValueError:
        return None
    if parts.scheme != "http" or not host:
        return None
    path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    kept = [
        header
        for header in rest.split(b"\r\n")
        if header and not header.lower().startswith((b"proxy-", b"connection:"))
    ]
    onward = [f"{method} {path} {version}".encode("latin-1"), *kept, b"Connection: close"]
    return host, port_number, b"\r\n".join(onward) + b"\r\n\r\n"


async def _join(
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
    far_reader: asyncio.StreamReader,
    far_writer: asyncio.StreamWriter,
    *,
    first: bytes | None,
    check: Callable[[bytes], None] | None = None,
) -> None:
    """Copy both ways until either side ends.

    Args:
        first: What the far side gets first; `None` for a tunnel.
        check: Raises where the head of a plain answer is not to be handed on.
    """
    ended = asyncio.Event()

    async def run(way: Awaitable[None]) -> None:
        try:
            await way
        except _BROKEN as error:
            logger.debug("proxied connection broke: %s", error)
        finally:
            ended.set()

    async def back() -> None:
        if first is not None:
            head = await _closing_head(far_reader)
            if check is not None:
                check(head)
            writer.write(head)
        await _copy(far_reader, writer)

    if first is None:
        writer.write(_OPEN)
    else:
        far_writer.write(first)
    try:
        async with UnwrappedTaskGroup() as group:
            ways = [group.create_task(run(way)) for way in (_copy(reader, far_writer), back())]
            await ended.wait()
            for way in ways:
                way.cancel()
    finally:
        far_writer.close()


async def _closing_head(reader: asyncio.StreamReader) -> bytes:
    """Return the head of an answer, and of those before it (1xx), which says that it closes."""
    heads = b""
    while True:
        head = await reader.readuntil(_END_OF_HEAD)
        status, *headers = head.removesuffix(_END_OF_HEAD).split(b"\r\n")
        if re.match(rb"\S+ 1\d\d ", status):
            heads += head
            continue
        kept = [h for h in headers if not h.lower().startswith((b"connection:", b"keep-alive:"))]
        return heads + b"\r\n".join([status, *kept, b"Connection: close"]) + _END_OF_HEAD


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while chunk := await reader.read(_CHUNK):
        writer.write(chunk)
        await writer.drain()
