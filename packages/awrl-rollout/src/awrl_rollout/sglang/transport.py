"""HTTP calls to one SGLang server: one deadline each, bounded repeats, errors turned into ours.

Holds the settings of the client too.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Mapping
from typing import Final, Literal

import aiohttp
import msgspec

from awrl_rollout.errors import ServerRefusedError, ServerUnavailableError
from awrl_rollout.retry import RetryPolicy, Sleep
from awrl_rollout.sglang.wire import Reply, refusal_text

_HEADERS: Final = {"Content-Type": "application/json"}
_KEEPALIVE_S: Final = 4.0
"""Idle connections are closed before SGLang closes them (5 s), so that no call meets a dead one."""

SENT_ONCE: Final = RetryPolicy(max_retries=0)
"""For calls that must not happen twice."""

PauseMode = Literal["abort", "in_place", "retract"]
"""`abort` ends requests with what they have, each under one version: exact, the default of a run.
`in_place` freezes them with their KV cache, so later tokens attend to keys of earlier weights;
`retract` puts them back and recomputes their KV cache on continue. Both need `use_stream`, a server
without prefix cache, and `flush_cache=False`: a flush while requests wait or run kills SGLang."""


class SGLangClientConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Limits and conventions of one client.

    Raises:
        ValueError: A field breaks its rule; the message names it.
    """

    generate_deadline_s: float = 300.0
    """Seconds for one attempt of generation, the time that the server is paused included."""
    control_deadline_s: float = 60.0
    """Seconds for every other call; group and weight calls take their own argument."""
    connect_deadline_s: float = 10.0
    """Seconds for opening a connection."""
    retry: RetryPolicy = RetryPolicy(max_retries=2, base_delay_s=0.1, jitter=0.0)
    """Repeats of a call that may safely happen twice, after an error that may pass."""
    initial_version: int = 0
    """What SGLang's start label `default` means as a version number."""
    use_stream: bool = False
    """Ask for a stream and stamp each chunk by itself; exact across updates in `in_place` mode."""

    def __post_init__(self) -> None:
        for name in ("generate_deadline_s", "control_deadline_s", "connect_deadline_s"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name} must be > 0, got {getattr(self, name)}. Give seconds.")


class SGLangTransport:
    """Connections to one server; opened at the first call, closed by `aclose`.

    Args:
        base_url: `http://host:port` of the server.
        token: Sent as `Authorization: Bearer`; nothing is sent when None.

    Raises:
        ValueError: The address is not http.
    """

    def __init__(
        self,
        base_url: str,
        config: SGLangClientConfig,
        *,
        token: str | None = None,
        sleep: Sleep = asyncio.sleep,
    ) -> None:
        if not base_url.startswith(("http://", "https://")):
            raise ValueError(f"base_url must start with http://, got {base_url!r}. Add the scheme.")
        self.base_url = base_url.rstrip("/")
        self.config = config
        self._headers = (
            _HEADERS if token is None else _HEADERS | {"Authorization": f"Bearer {token}"}
        )
        self._sleep = sleep
        self._rng = random.Random(0)
        self._session: aiohttp.ClientSession | None = None

    async def aclose(self) -> None:
        """Close all connections; a second call is harmless."""
        session, self._session = self._session, None
        if session is not None:
            await session.close()

    async def get_json(self, path: str) -> dict[str, object]:
        """Return the JSON object that a GET answers."""
        reply = await self.call(
            "GET",
            path,
            None,
            deadline_s=self.config.control_deadline_s,
            retry=self.config.retry,
        )
        return msgspec.json.decode(reply.body, type=dict[str, object])

    async def post(
        self,
        path: str,
        body: Mapping[str, object],
        *,
        deadline_s: float | None = None,
        is_idempotent: bool = False,
    ) -> Reply:
        """Send a JSON body and return the good answer; errors as in `call`.

        `deadline_s` is a limit over all repeats. A call that is idempotent may happen twice, so it is
        repeated after errors that may pass.
        """
        return await self.call(
            "POST",
            path,
            msgspec.json.encode(body),
            deadline_s=self.config.control_deadline_s if deadline_s is None else deadline_s,
            retry=self.config.retry if is_idempotent else SENT_ONCE,
        )

    async def call(
        self,
        method: str,
        path: str,
        body: bytes | None,
        *,
        deadline_s: float,
        retry: RetryPolicy = SENT_ONCE,
    ) -> Reply:
        """Send one request, and again after errors that may pass, all within the deadline.

        Raises:
            ServerRefusedError: HTTP 4xx.
            ServerUnavailableError: No connection, no answer within `deadline_s`, HTTP 5xx or 429.
        """
        try:
            async with asyncio.timeout(deadline_s):
                return await retry.call(
                    lambda: self._once(method, path, body),
                    repeats=ServerUnavailableError,
                    sleep=self._sleep,
                    rng=self._rng,
                )
        except TimeoutError as error:
            raise ServerUnavailableError(
                f"{self.base_url}{path} must answer within {deadline_s:g} s, got no answer. "
                "The server hangs, is overloaded, or stays paused."
            ) from error

    async def _once(self, method: str, path: str, body: bytes | None) -> Reply:
        """Send one request; the boundary where errors of the world become ours."""
        try:
            async with self._open_session().request(
                method, f"{self.base_url}{path}", data=body, headers=self._headers
            ) as response:
                reply = Reply(status=response.status, body=await response.read())
        except (aiohttp.ClientError, OSError) as error:
            raise ServerUnavailableError(
                f"{self.base_url}{path} must be reachable, got {type(error).__name__}: {error}. "
                "The server is down or restarting."
            ) from error
        if reply.status < 400:
            return reply
        text = f"{self.base_url}{path} answered {reply.status}: {refusal_text(reply)}"
        if reply.status >= 500 or reply.status == 429:
            raise ServerUnavailableError(text)
        raise ServerRefusedError(text)

    def _open_session(self) -> aiohttp.ClientSession:
        if self._session is None:
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=_KEEPALIVE_S),
                timeout=aiohttp.ClientTimeout(
                    total=None, sock_connect=self.config.connect_deadline_s
                ),
            )
        return self._session
