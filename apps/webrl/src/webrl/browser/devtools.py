"""A small client of the DevTools protocol, for the calls of every step.

Playwright starts browsers and owns contexts, pages and their events. Scripts, clicks and
screenshots of a step go straight to the browser over a web socket instead: that saves a quarter
of the processor time of an episode, because no second process copies each message.

Invariants:

* answers are matched by number, so calls of any number of sessions are under way at one moment;
* a closed socket fails every pending and later call with `browser_lost`;
* a call that missed its deadline is forgotten; its late answer is dropped;
* on a shared socket it has numbers and a session of its own;
* nothing that a page says closes the socket, broken Unicode included: all pages share it.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple, TypeAlias

import aiohttp
import msgspec

from webrl.errors import BrowserFault

logger = logging.getLogger(__name__)

Parameters: TypeAlias = Mapping[str, object]


class _Message(msgspec.Struct):
    id: int | None = None
    result: dict[str, Any] | None = None
    error: dict[str, Any] | None = None
    method: str | None = None
    sessionId: str | None = None
    params: dict[str, Any] | None = None


class _Pending(NamedTuple):
    session: str | None
    future: asyncio.Future[dict[str, Any]]


class DevTools:
    """One web socket to one browser."""

    def __init__(
        self,
        http: aiohttp.ClientSession,
        socket: aiohttp.ClientWebSocketResponse,
        first_id: int = 0,
    ) -> None:
        """Wrap an open socket; use `connect`."""
        self._http = http
        self._socket = socket
        self._pending: dict[int, _Pending] = {}
        self._listeners: dict[tuple[str | None, str], Callable[[dict[str, Any]], None]] = {}
        self._last_id = first_id
        self._root: str | None = None
        self._encoder = msgspec.json.Encoder()
        self._decoder = msgspec.json.Decoder(_Message)

    @classmethod
    async def connect(cls, url: str, *, first_id: int = 0) -> DevTools:
        """Open the socket at `url` (`ws://...`). Someone must then run `read`.

        Args:
            first_id: Above it calls are numbered.

        Raises:
            BrowserFault: Nobody answers there (`browser_lost`).
        """
        http = aiohttp.ClientSession(trust_env=False)
        try:
            socket = await http.ws_connect(url, max_msg_size=0, compress=0, autoping=True)
        except aiohttp.ClientError as error:
            await http.close()
            raise BrowserFault("browser_lost", f"DevTools socket: {error}") from error
        except BaseException:  # a cancelled connect too: nobody else closes the session
            await http.close()
            raise
        return cls(http, socket, first_id)

    async def enter_own_session(self, deadline_s: float) -> None:
        """Make all calls of the browser, and hear its events, in a session of one's own.

        Raises:
            BrowserFault: The browser is gone, or does not answer.
        """
        method = "Target.attachToBrowserTarget"
        self._root = (await self.call(None, method, {}, deadline_s=deadline_s))["sessionId"]

    @property
    def is_open(self) -> bool:
        """Return whether calls can still be made."""
        return not self._socket.closed

    def listen(self, event: str, listener: Callable[[dict[str, Any]], None]) -> None:
        """Call `listener` with the parameters of each `event` of the browser, as they arrive."""
        self._listeners[None, event] = listener

    @contextmanager
    def collecting(self, session: str, event: str) -> Generator[list[dict[str, Any]]]:
        """Yield a list to which the parameters of each `event` of `session` are added."""
        seen: list[dict[str, Any]] = []
        self._listeners[session, event] = seen.append
        try:
            yield seen
        finally:
            self._listeners.pop((session, event), None)

    async def read(self) -> None:
        """Deliver answers until the socket closes. Consumes the socket, unblocks every caller."""
        try:
            async for message in self._socket:
                if message.type in (aiohttp.WSMsgType.TEXT, aiohttp.WSMsgType.BINARY):
                    self._deliver(message.data)
        except (aiohttp.ClientError, OSError) as error:
            logger.warning("DevTools socket: %s", error)
        finally:
            pending, self._pending = self._pending, {}
            for waiting in pending.values():
                _set_fault(waiting.future, BrowserFault("browser_lost", "DevTools socket closed"))
            await self._socket.close()
            await self._http.close()

    def _deliver(self, data: str | bytes) -> None:
        try:
            message = self._decode(data)
        except (ValueError, msgspec.MsgspecError) as error:
            logger.warning("DevTools message: %s", error)
            return
        if message.method is not None:
            session = None if message.sessionId == self._root else message.sessionId
            listener = self._listeners.get((session, message.method))
            if listener is not None:
                listener(message.params or {})
        waiting = self._pending.pop(message.id, None) if message.id is not None else None
        if waiting is None or waiting.future.done():
            return
        if message.error is not None:
            _set_fault(waiting.future, _as_fault(str(message.error.get("message", ""))))
        else:
            waiting.future.set_result(message.result or {})

    def _decode(self, data: str | bytes) -> _Message:
        try:
            return self._decoder.decode(data)
        except msgspec.DecodeError:
            # A page's text may hold half of a surrogate pair, which only the standard parser takes.
            text = json.dumps(json.loads(data), ensure_ascii=False)
            return self._decoder.decode(text.encode("utf-8", "replace"))

    def fail(self, session: str, fault: BrowserFault) -> None:
        """Fail every pending call of `session` with `fault`."""
        for number, waiting in tuple(self._pending.items()):
            if waiting.session == session:
                del self._pending[number]
                _set_fault(waiting.future, fault)

    async def call(
        self, session: str | None, method: str, parameters: Parameters, *, deadline_s: float
    ) -> dict[str, Any]:
        """Return the result of one method.

        Args:
            session: Session of a page, or `None` for the browser.
            method: Name such as `Page.captureScreenshot`.
            deadline_s: Longest time to wait.

        Raises:
            BrowserFault: The method failed, the browser is gone, or the deadline was missed.
        """
        return (await self.call_all(session, [(method, parameters)], deadline_s=deadline_s))[0]

    async def post(
        self,
        session: str,
        method: str,
        parameters: Parameters,
        take: Callable[[dict[str, Any]], None],
    ) -> None:
        """Send one call and wait for nothing; `take` gets its result, should one come.

        Raises:
            BrowserFault: The browser is gone.
        """
        number = self._last_id = self._last_id + 1
        answer: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
        answer.add_done_callback(lambda done: None if done.exception() else take(done.result()))
        self._pending[number] = _Pending(session, answer)
        await self._send(number, session, method, parameters)

    async def call_all(
        self,
        session: str | None,
        calls: Sequence[tuple[str, Parameters]],
        *,
        deadline_s: float,
    ) -> list[dict[str, Any]]:
        """Send several calls at once and return their results in order.

        Raises:
            BrowserFault: A call failed, the browser is gone, or the deadline was missed.
        """
        answers: dict[int, asyncio.Future[dict[str, Any]]] = {}
        try:
            async with asyncio.timeout(deadline_s):
                for method, parameters in calls:
                    number = self._last_id = self._last_id + 1
                    answers[number] = asyncio.get_running_loop().create_future()
                    self._pending[number] = _Pending(session, answers[number])
                    await self._send(number, session, method, parameters)
                return [await answer for answer in answers.values()]
        except TimeoutError:
            what = calls[-1][0]
            raise BrowserFault("timeout", f"{what} took more than {deadline_s:g} s") from None
        finally:
            for number in answers:
                self._pending.pop(number, None)

    async def _send(
        self, number: int, session: str | None, method: str, parameters: Parameters
    ) -> None:
        message: dict[str, object] = {"id": number, "method": method, "params": parameters}
        if (session or self._root) is not None:
            message["sessionId"] = session or self._root
        if self._socket.closed:
            raise BrowserFault("browser_lost", f"{method}: DevTools socket closed")
        try:
            await self._socket.send_str(self._encoder.encode(message).decode())
        except (aiohttp.ClientError, OSError) as error:
            raise BrowserFault("browser_lost", f"{method}: {error}") from error

    async def aclose(self) -> None:
        """Close the socket; `read` then ends."""
        await self._socket.close()


def _set_fault(future: asyncio.Future[dict[str, Any]], fault: BrowserFault) -> None:
    if not future.done():
        future.set_exception(BrowserFault(fault.kind, fault.detail))
        future.exception()  # retrieved: the caller may be gone


def _as_fault(text: str) -> BrowserFault:
    if "Target crashed" in text or text == "Internal error":
        return BrowserFault("page_crashed", text)
    if "Session with given id not found" in text or "Target closed" in text:
        return BrowserFault("page_crashed", f"page is gone: {text}")
    return BrowserFault("page_error", text[:300])
