"""Completion by HTTP: a worker tells the controller that episodes ended.

Invariants:
* a callback carries ids only; records travel by `Worker.take_finished`, so a callback that is
  lost, late, forged or repeated can cost a poll interval and nothing else;
* every request needs the token; comparison takes constant time.

`POST /callback/rollout_complete` with `Authorization: Bearer TOKEN` and JSON
`{"worker": NAME, "episode_ids": [...]}` answers 204, however often it is sent.
"""

from __future__ import annotations

import hmac
import logging
import secrets
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Self

import aiohttp
import msgspec
from aiohttp import web

from awrl_rollout.episode import EpisodeRecord

logger = logging.getLogger(__name__)

CALLBACK_PATH = "/callback/rollout_complete"
"""The one route of the server."""

_MAX_BODY_BYTES = 1 << 20
"""Ids of some ten thousand episodes; a larger body is not a callback."""


class _Completion(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    worker: str
    episode_ids: list[str]


class CallbackServer:
    """Listens for completions; use it as `async with`.

    Args:
        on_completion: Called with the worker's name, once per callback; for example
            `RolloutController.notify`.
        token: Shared secret; None makes one.
        port: Port; 0 picks a free one.

    Raises:
        ValueError: The token is blank.
    """

    def __init__(
        self,
        on_completion: Callable[[str], None],
        *,
        token: str | None = None,
        host: str = "127.0.0.1",
        port: int = 0,
    ) -> None:
        if token is not None and not token.strip():
            raise ValueError("token must not be blank, got ''. Leave it out to have one made.")
        self.token = secrets.token_urlsafe(32) if token is None else token
        self.num_accepted = 0
        self.num_refused = 0
        self._on_completion = on_completion
        self._host = host
        self._port = port
        self._runner: web.AppRunner | None = None

    @property
    def url(self) -> str:
        """Where to post; known once the server runs."""
        host = f"[{self._host}]" if ":" in self._host else self._host
        return f"http://{host}:{self._port}{CALLBACK_PATH}"

    async def __aenter__(self) -> Self:
        """Start to listen."""
        app = web.Application(client_max_size=_MAX_BODY_BYTES)
        app.router.add_post(CALLBACK_PATH, self._complete)
        self._runner = web.AppRunner(app, access_log=None)
        try:
            await self._runner.setup()
            await web.TCPSite(self._runner, self._host, self._port).start()
        except BaseException:
            await self.aclose()
            raise
        host, port = self._runner.addresses[0][:2]
        self._host, self._port = str(host), int(port)
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Stop to listen."""
        await self.aclose()

    async def aclose(self) -> None:
        """Stop to listen; harmless if repeated."""
        runner, self._runner = self._runner, None
        if runner is not None:
            await runner.cleanup()

    async def _complete(self, request: web.Request) -> web.Response:
        given = request.headers.get("Authorization", "")
        if not hmac.compare_digest(given.encode(errors="replace"), f"Bearer {self.token}".encode()):
            self.num_refused += 1
            return web.Response(status=401, text="the token is wrong or missing")
        try:
            completion = msgspec.json.decode(await request.read(), type=_Completion)
        except msgspec.DecodeError as error:
            self.num_refused += 1
            return web.Response(status=400, text=str(error))
        self.num_accepted += 1
        self._on_completion(completion.worker)
        return web.Response(status=204)


class CallbackNotifier:
    """Tells a `CallbackServer` of records; what an executor takes as `on_finished`.

    It raises nothing: a callback that fails is logged, and the controller's polling finds the
    records.
    """

    def __init__(self, url: str, *, token: str, worker: str, timeout_s: float = 5.0) -> None:
        self.num_failed = 0
        self._url = url
        self._headers = {"Authorization": f"Bearer {token}"}
        self._worker = worker
        self._timeout = aiohttp.ClientTimeout(total=timeout_s)
        self._session: aiohttp.ClientSession | None = None

    async def __call__(self, records: Sequence[EpisodeRecord]) -> None:
        """Post one callback for these records."""
        body = _Completion(self._worker, [record.episode_id for record in records])
        if self._session is None:
            self._session = aiohttp.ClientSession(timeout=self._timeout, headers=self._headers)
        try:
            async with self._session.post(self._url, data=msgspec.json.encode(body)) as answer:
                answer.raise_for_status()
        except (aiohttp.ClientError, OSError, ValueError) as error:
            self.num_failed += 1
            logger.info("callback of %r failed, polling will find it: %s", self._worker, error)

    async def aclose(self) -> None:
        """Close the connection; harmless if repeated."""
        session, self._session = self._session, None
        if session is not None:
            await session.close()
