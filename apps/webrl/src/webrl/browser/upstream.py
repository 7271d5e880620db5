"""The way on from the guard: a proxy of the network's, or of a provider.

Invariants:

* user and password come from the environment by name; they stand in no message and no log;
* a proxy that can not be reached or refuses the credentials is told apart from a site that the proxy
  can not reach: the one fails every page, the other only its own.
"""

from __future__ import annotations

import asyncio
import base64
import logging
import os
import re
import ssl
from collections.abc import Awaitable, Callable, Mapping
from urllib.parse import urlsplit

import msgspec

from webrl.errors import PreflightError

logger = logging.getLogger(__name__)
_END_OF_HEAD = b"\r\n\r\n"
_WAITS_S = (0.0, 0.2, 1.0)
"""Before each try to reach the proxy: it may just be starting again."""
_PORTS = {"http": 80, "https": 443}

Stream = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class UpstreamConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Which proxy, and what it is told."""

    url: str
    """Address of the proxy, `http://HOST:PORT` or `https://HOST:PORT`."""
    credentials_env: str | None = None
    """Name of the environment variable with `USER:PASSWORD`; none are sent when `None`."""
    resolves_names: bool = False
    """Whether the proxy looks names up, and not this machine."""


class UpstreamError(Exception):
    """The proxy can not be reached, or does not take the credentials."""


class UnreachedError(Exception):
    """The proxy answers and does not reach the site."""


class UpstreamProxy:
    """Opens connections through a proxy.

    Args:
        environment: Environment variables; those of this process when `None`.
        connect_s: Longest time to reach the proxy, and for its answer, in seconds.
        sleep: Waits before another try.

    Raises:
        PreflightError: The environment lacks the credentials, or they are not `USER:PASSWORD`.
    """

    def __init__(
        self,
        config: UpstreamConfig,
        *,
        environment: Mapping[str, str] | None = None,
        connect_s: float = 10.0,
        sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
    ) -> None:
        """Read the credentials; nothing is connected yet."""
        parts = urlsplit(config.url)
        self._host = parts.hostname or ""
        self._port = parts.port or _PORTS[parts.scheme]
        self._tls = ssl.create_default_context() if parts.scheme == "https" else None
        self._connect_s = connect_s
        self._sleep = sleep
        self.resolves_names = config.resolves_names
        self.name = f"{self._host}:{self._port}"
        """What messages call the proxy."""
        environment = os.environ if environment is None else environment
        self._header = _credentials_header(config.credentials_env, environment)

    async def open(self) -> Stream:
        """Return a connection to the proxy itself.

        Raises:
            UpstreamError: It can not be reached.
        """
        reason = ""
        for wait_s in _WAITS_S:
            if wait_s:
                await self._sleep(wait_s)
            try:
                async with asyncio.timeout(self._connect_s):
                    return await asyncio.open_connection(self._host, self._port, ssl=self._tls)
            except (OSError, TimeoutError) as error:
                reason = str(error) or f"no answer within {self._connect_s:g} s"
                logger.debug("proxy %s: %s", self.name, reason)
        raise UpstreamError(f"the proxy {self.name} can not be reached: {reason}")

    async def tunnel(self, host: str, port: int) -> Stream:
        """Return a connection through the proxy to `host`, a name or an address.

        Raises:
            UpstreamError: The proxy can not be reached, or refuses the credentials.
            UnreachedError: It does not reach the site.
        """
        reader, writer = await self.open()
        target = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        try:
            async with asyncio.timeout(self._connect_s):
                head = f"CONNECT {target} HTTP/1.1\r\nHost: {target}\r\n".encode("latin-1")
                writer.write(head + self._header + b"\r\n")
                answer = await reader.readuntil(_END_OF_HEAD)
            self.check(answer)
            if not re.match(rb"HTTP/1\.[01] 2\d\d", answer):
                status = answer.partition(b"\r\n")[0].decode("latin-1")
                raise UnreachedError(f"the proxy {self.name} does not reach {target}: {status}")
        except BaseException as error:  # a cancelled request too: nobody else closes the connection
            writer.close()
            if isinstance(error, TimeoutError):  # what the proxy waits for is the site
                raise UnreachedError(f"the proxy {self.name} does not reach {target}") from error
            if isinstance(error, asyncio.IncompleteReadError | asyncio.LimitOverrunError | OSError):
                message = f"the proxy {self.name} gave no answer to CONNECT"
                raise UpstreamError(message) from error
            raise
        return reader, writer

    def request(self, method: str, host: str, port: int, path: str, version: str) -> bytes:
        """Return the first lines of a plain request that the proxy is to carry out."""
        place = f"[{host}]" if ":" in host else host
        where = place if port == _PORTS["http"] else f"{place}:{port}"
        line = f"{method} http://{where}{path} {version}\r\n".encode("latin-1")
        return line + self._header

    def check(self, head: bytes) -> None:
        """Check that the proxy took the credentials, by the head of its answer.

        Raises:
            UpstreamError: It did not.
        """
        if re.match(rb"HTTP/1\.[01] 407", head):
            what = "refuses the credentials" if self._header else "asks for credentials"
            raise UpstreamError(f"the proxy {self.name} {what} (407)")


def _credentials_header(name: str | None, environment: Mapping[str, str]) -> bytes:
    """Return the header line that opens the proxy; empty without credentials.

    Raises:
        PreflightError: The environment lacks them, or they are not `USER:PASSWORD`.
    """
    if name is None:
        return b""
    value = environment.get(name, "").strip()
    if not re.fullmatch(r"[^:\s]+:\S*", value):
        got = "something else" if value else "nothing"
        raise PreflightError(
            f"the environment variable {name} (env.proxy_credentials_env) must hold USER:PASSWORD "
            f"of the proxy, got {got}. Export it wherever rollout workers start."
        )
    encoded = base64.b64encode(value.encode()).decode("ascii")
    return f"Proxy-Authorization: Basic {encoded}\r\n".encode("ascii")
