"""One web socket to a remote browser, shared on loopback by the driver and by our own client.

A provider starts a browser for each connection, so both have to come by the same one.

Invariants:

* the address of the browser, which may hold a token, is known here only: driver and client get an
  address on loopback, with a path that nobody can guess;
* numbers from `FIRST_OWN_ID` on, and the sessions that our client opened, are our client's; all else
  is the driver's;
* pages of contexts that this connection did not make are kept from the driver: it would answer the
  dialogs of another worker that shares the browser;
* when one of the three sockets closes, all do.
"""

from __future__ import annotations

import asyncio
import json
import logging
import secrets
from contextlib import suppress
from typing import Any

import aiohttp
import msgspec
from aiohttp import web

from webrl.errors import BrowserFault

logger = logging.getLogger(__name__)

FIRST_OWN_ID = 1 << 30
"""The driver counts its calls from 1, and the protocol's numbers have 31 bits."""
_FIRST_RELAY_ID = FIRST_OWN_ID + (1 << 29)
_CLOSE_S = 1.0
_ATTACHED, _DETACHED = "Target.attachedToTarget", "Target.detachedFromTarget"


class _Target(msgspec.Struct):
    type: str = ""
    browserContextId: str | None = None


class _Details(msgspec.Struct):
    """What is looked at of the parameters of an event, or of a result."""

    sessionId: str | None = None
    targetInfo: _Target | None = None
    browserContextId: str | None = None


class _Envelope(msgspec.Struct):
    """What is looked at of a message."""

    id: int | None = None
    sessionId: str | None = None
    method: str | None = None


class _AttachEvent(msgspec.Struct):
    params: _Details


class _Answer(msgspec.Struct):
    result: _Details | None = None


class Relay:
    """Carries messages between a remote browser and the two who use it."""

    def __init__(
        self, http: aiohttp.ClientSession, remote: aiohttp.ClientWebSocketResponse
    ) -> None:
        """Wrap an open socket; use `open`."""
        self._http = http
        self._remote = remote
        self._secret = secrets.token_urlsafe()
        self._runner: web.ServerRunner | None = None
        self._driver: web.WebSocketResponse | None = None
        self._own: web.WebSocketResponse | None = None
        self._own_sessions: set[str] = set()
        self._kept_back: set[str] = set()
        self._contexts: set[str] = set()
        self._last_id = _FIRST_RELAY_ID
        self._envelopes = msgspec.json.Decoder(_Envelope)

    @classmethod
    async def open(cls, endpoint: str, *, name: str, deadline_s: float) -> Relay:
        """Connect to a browser and listen on loopback. Someone must then run `serve`.

        Args:
            endpoint: `ws://` or `wss://` address, which may hold a token.
            name: What messages call the browser.

        Raises:
            BrowserFault: It can not be reached (`browser_lost`).
        """
        http = aiohttp.ClientSession(trust_env=False)
        try:
            async with asyncio.timeout(deadline_s):
                remote = await http.ws_connect(endpoint, max_msg_size=0, compress=0, heartbeat=20.0)
            relay = cls(http, remote)
            await relay._listen()
        except (aiohttp.ClientError, OSError, ValueError) as error:
            await http.close()
            # From None: such an error may hold the whole address.
            raise BrowserFault("browser_lost", f"{name}: {reason_of(error)}") from None
        except BaseException:  # a cancelled connect too: nobody else closes the session
            await http.close()
            raise
        return relay

    @property
    def driver_url(self) -> str:
        """Return where the driver connects."""
        return self._url("driver")

    @property
    def own_url(self) -> str:
        """Return where our own client connects."""
        return self._url("own")

    def _url(self, who: str) -> str:
        assert self._runner is not None  # set by `open`
        host, port = self._runner.addresses[0][:2]
        return f"ws://{host}:{port}/{self._secret}/{who}"

    async def _listen(self) -> None:
        # Without a log of requests: their paths are secret.
        server = web.Server(self._accept, access_log=None)
        self._runner = web.ServerRunner(server, shutdown_timeout=1.0)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0).start()

    async def serve(self) -> None:
        """Carry what the browser says until a socket closes. Consumes it, unblocks both users."""
        try:
            async for message in self._remote:
                if message.type in (aiohttp.WSMsgType.TEXT, aiohttp.WSMsgType.BINARY):
                    await self._hand_on(message.data)
        except (aiohttp.ClientError, OSError) as error:
            logger.debug("remote browser: %s", reason_of(error))
        finally:
            await self.aclose()

    async def aclose(self) -> None:
        """Close all sockets; a second time does nothing."""
        for socket in (self._own, self._driver, self._remote):
            if socket is not None and not socket.closed:
                with suppress(aiohttp.ClientError, OSError, RuntimeError):
                    async with asyncio.timeout(_CLOSE_S):  # a browser that hangs closes nothing
                        await socket.close()
        await self._http.close()
        runner, self._runner = self._runner, None
        if runner is not None:
            await runner.cleanup()

    async def _accept(self, request: web.BaseRequest) -> web.StreamResponse:
        who = request.path.rpartition("/")[2]
        is_taken = (self._driver if who == "driver" else self._own) is not None
        if request.path not in (f"/{self._secret}/driver", f"/{self._secret}/own") or is_taken:
            return web.Response(status=404)
        socket = web.WebSocketResponse(max_msg_size=0, compress=False)
        await socket.prepare(request)
        if who == "driver":
            self._driver = socket
        else:
            self._own = socket
        try:
            async for message in socket:
                if message.type is aiohttp.WSMsgType.TEXT:
                    await self._remote.send_str(message.data)
        except (aiohttp.ClientError, OSError) as error:
            logger.debug("%s of a remote browser: %s", who, reason_of(error))
        finally:
            await self._remote.close()  # `serve` closes the others
        return socket

    async def _hand_on(self, data: str | bytes) -> None:
        """Give one message of the browser to whom it is for."""
        text = data if isinstance(data, str) else data.decode("utf-8", "replace")
        envelope = self._decode(text)
        if envelope.sessionId in self._own_sessions:
            if envelope.method == _ATTACHED:
                self._own_sessions.add(_details_of_event(text).sessionId or "")
            await _send(self._own, text)
        elif envelope.id is not None and envelope.id >= _FIRST_RELAY_ID:
            return
        elif envelope.id is not None and envelope.id >= FIRST_OWN_ID:
            if envelope.sessionId is None and (opened := _details_of_answer(text).sessionId):
                self._own_sessions.add(opened)
            await _send(self._own, text)
        elif envelope.sessionId in self._kept_back:
            return
        elif envelope.sessionId is not None or not await self._is_foreign(envelope, text):
            await _send(self._driver, text)

    async def _is_foreign(self, envelope: _Envelope, text: str) -> bool:
        """Return whether a message of the browser itself is about a page of somebody else."""
        if envelope.id is not None:
            context = _details_of_answer(text).browserContextId
            if context is not None:
                self._contexts.add(context)
            return False
        if envelope.method not in (_ATTACHED, _DETACHED):
            return False
        details = _details_of_event(text)
        session, target = details.sessionId or "", details.targetInfo
        if envelope.method == _DETACHED:
            is_foreign = session in self._kept_back or session in self._own_sessions
            self._kept_back.discard(session)
            self._own_sessions.discard(session)
            return is_foreign
        if target is None or target.type == "browser":
            return session in self._own_sessions
        if target.browserContextId in self._contexts:
            return False
        self._kept_back.add(session)
        # It may wait for whoever was told of it.
        await self._order("Runtime.runIfWaitingForDebugger", {}, session)
        await self._order("Target.detachFromTarget", {"sessionId": session}, None)
        return True

    async def _order(self, method: str, parameters: dict[str, Any], session: str | None) -> None:
        self._last_id += 1
        message: dict[str, Any] = {"id": self._last_id, "method": method, "params": parameters}
        if session is not None:
            message["sessionId"] = session
        await self._remote.send_str(json.dumps(message))

    def _decode(self, text: str) -> _Envelope:
        try:
            return self._envelopes.decode(text)
        except (msgspec.MsgspecError, UnicodeError):
            # A page's text may hold half of a surrogate pair, which only the standard parser takes.
            with suppress(ValueError):
                return msgspec.convert(json.loads(text), _Envelope)
            return _Envelope()


async def _send(socket: web.WebSocketResponse | None, text: str) -> None:
    if socket is not None and not socket.closed:
        with suppress(ConnectionError):
            await socket.send_str(text)


def _details_of_event(text: str) -> _Details:
    return msgspec.convert(json.loads(text), _AttachEvent).params


def _details_of_answer(text: str) -> _Details:
    with suppress(msgspec.MsgspecError, ValueError):
        return msgspec.json.decode(text, type=_Answer).result or _Details()
    return _Details()


def reason_of(error: Exception) -> str:
    """Return what was wrong with a connection, without the address: it may hold a token."""
    if isinstance(error, aiohttp.WSServerHandshakeError | aiohttp.ClientResponseError):
        return f"answered with status {error.status}"
    if isinstance(error, TimeoutError):
        return "did not answer in time"
    if isinstance(error, OSError):
        return error.strerror or type(error).__name__
    return type(error).__name__
