"""The DevTools client against a socket that misbehaves."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import msgspec
import pytest
from aiohttp import WSMsgType, web
from webrl.browser.devtools import DevTools
from webrl.errors import BrowserFault

_T = TypeVar("_T")
_Server = Callable[[web.WebSocketResponse, dict[str, Any]], Awaitable[None]]


def _run(server: _Server, body: Callable[[DevTools], Awaitable[_T]]) -> _T:
    """Run `body` with a client of a socket that answers each message by `server`."""

    async def handle(request: web.BaseRequest) -> web.StreamResponse:
        socket = web.WebSocketResponse()
        await socket.prepare(request)
        async for message in socket:
            if message.type is WSMsgType.TEXT:
                await server(socket, msgspec.json.decode(message.data))
        return socket

    async def main() -> _T:
        runner = web.ServerRunner(web.Server(handle))
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        host, port = runner.addresses[0][:2]
        devtools = await DevTools.connect(f"ws://{host}:{port}/")
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(devtools.read())
            try:
                return await body(devtools)
            finally:
                await devtools.aclose()
                await runner.cleanup()

    return asyncio.run(main())


async def _echo(socket: web.WebSocketResponse, message: dict[str, Any]) -> None:
    await socket.send_json({"id": message["id"], "result": {"echo": message["params"]}})


async def _never(socket: web.WebSocketResponse, message: dict[str, Any]) -> None:
    return None


def test_answers_are_matched_by_number_whatever_their_order() -> None:
    held: list[dict[str, Any]] = []

    async def backwards(socket: web.WebSocketResponse, message: dict[str, Any]) -> None:
        held.append(message)
        if len(held) == 3:
            for each in reversed(held):
                await _echo(socket, each)

    async def body(devtools: DevTools) -> list[object]:
        calls = [("m", {"n": n}) for n in range(3)]
        return [
            answer["echo"]["n"] for answer in await devtools.call_all("s", calls, deadline_s=30)
        ]

    assert _run(backwards, body) == [0, 1, 2]


def test_an_error_is_a_fault_of_the_page() -> None:
    async def fail(socket: web.WebSocketResponse, message: dict[str, Any]) -> None:
        await socket.send_json({"id": message["id"], "error": {"message": message["method"]}})

    async def body(devtools: DevTools) -> list[str]:
        kinds: list[str] = []
        for method in ("Target crashed", "Session with given id not found", "anything"):
            with pytest.raises(BrowserFault) as caught:
                await devtools.call(None, method, {}, deadline_s=30)
            kinds.append(caught.value.kind)
        return kinds

    assert _run(fail, body) == ["page_crashed", "page_crashed", "page_error"]


def test_a_missed_deadline_is_forgotten_with_its_late_answer() -> None:
    messages: list[dict[str, Any]] = []

    async def late(socket: web.WebSocketResponse, message: dict[str, Any]) -> None:
        messages.append(message)
        if len(messages) == 2:
            for each in messages:
                await _echo(socket, each)

    async def body(devtools: DevTools) -> dict[str, Any]:
        with pytest.raises(BrowserFault, match=r"slow took more than 0.05 s"):
            await devtools.call(None, "slow", {"n": 1}, deadline_s=0.05)
        return await devtools.call(None, "next", {"n": 2}, deadline_s=30)

    assert _run(late, body) == {"echo": {"n": 2}}


def test_a_closed_socket_fails_what_is_pending_and_what_comes_later() -> None:
    async def close(socket: web.WebSocketResponse, message: dict[str, Any]) -> None:
        await socket.close()

    async def body(devtools: DevTools) -> list[str]:
        kinds: list[str] = []
        for _ in range(2):
            with pytest.raises(BrowserFault) as caught:
                await devtools.call(None, "m", {}, deadline_s=30)
            kinds.append(caught.value.kind)
        assert not devtools.is_open
        return kinds

    assert _run(close, body) == ["browser_lost", "browser_lost"]


def test_events_reach_their_listener_in_order() -> None:
    async def burst(socket: web.WebSocketResponse, message: dict[str, Any]) -> None:
        for n in range(3):
            await socket.send_json({"method": "Event", "params": {"n": n}})
        await socket.send_json({"method": "Unknown", "params": {}})
        await _echo(socket, message)

    async def body(devtools: DevTools) -> list[int]:
        seen: list[int] = []
        devtools.listen("Event", lambda event: seen.append(event["n"]))
        await devtools.call(None, "m", {}, deadline_s=30)
        return seen

    assert _run(burst, body) == [0, 1, 2]


def test_a_cancelled_call_leaves_the_socket_usable() -> None:
    # playwright-python#2581: cancellation must not corrupt what other callers wait for.
    count = 0

    async def second_only(socket: web.WebSocketResponse, message: dict[str, Any]) -> None:
        nonlocal count
        count += 1
        if message["method"] == "answer":
            await _echo(socket, message)

    async def body(devtools: DevTools) -> dict[str, Any]:
        for _ in range(20):
            async with asyncio.TaskGroup() as tasks:
                hung = tasks.create_task(devtools.call(None, "hang", {}, deadline_s=30))
                await asyncio.sleep(0)
                hung.cancel()
        return await devtools.call(None, "answer", {"n": 1}, deadline_s=30)

    assert _run(second_only, body) == {"echo": {"n": 1}}


def test_nobody_at_the_address_is_a_lost_browser() -> None:
    async def main() -> None:
        await DevTools.connect("ws://127.0.0.1:1/")

    with pytest.raises(BrowserFault) as caught:
        asyncio.run(main())
    assert caught.value.kind == "browser_lost"


def test_a_socket_that_never_answers_misses_the_deadline_only() -> None:
    async def body(devtools: DevTools) -> tuple[str, bool]:
        with pytest.raises(BrowserFault) as caught:
            await devtools.call(None, "m", {}, deadline_s=0.05)
        return caught.value.kind, devtools.is_open

    assert _run(_never, body) == ("timeout", True)
