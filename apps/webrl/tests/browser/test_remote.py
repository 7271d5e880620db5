"""Episodes in browsers that somebody else runs: real ones, killed, stopped, started again."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
from collections.abc import AsyncGenerator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager

import aiohttp
import pytest
from aiohttp import web
from remote_chromium import RemoteChromium
from webrl.actions import LeftClick
from webrl.browser import BrowserConfig, BrowserPool, BrowserSession, Deadlines
from webrl.endings import ending_of
from webrl.errors import BrowserFault, PreflightError
from webrl.tasks import Task, TaskServer, load_task

pytestmark = pytest.mark.browser

TASK = load_task("miniwob/click-test-2")
PLAIN = Task(suite="web", name="plain", url="/miniwob/click-test.html", goal="g", answer="x")
MISS = LeftClick(990, 990)
LIMITS = Deadlines(
    launch_s=10.0, close_s=1.0, evaluate_s=2.0, input_s=2.0, screenshot_s=2.0, create_s=5.0
)


def _config(*addresses: str, num_slots: int = 2, health_check_s: float = 10.0) -> BrowserConfig:
    return BrowserConfig(
        num_slots=num_slots, remotes=addresses, deadlines=LIMITS, health_check_s=health_check_s
    )


@asynccontextmanager
async def _sessions(pool: BrowserPool, count: int) -> AsyncGenerator[list[BrowserSession]]:
    async with pool, AsyncExitStack() as stack:
        yield [await stack.enter_async_context(await pool.session()) for _ in range(count)]


async def _places(pool: BrowserPool, count: int) -> list[int]:
    """Return the number of the browser of each slot."""
    return [(await pool.browser(slot)).number for slot in range(count)]


@pytest.mark.parametrize("is_socket", [False, True])
def test_episodes_run_in_a_browser_that_was_there_before_and_is_there_after(
    is_socket: bool,
) -> None:
    async def main() -> tuple[bool, bool, int]:
        async with RemoteChromium() as remote:
            address = await _socket(remote) if is_socket else remote.address
            async with _sessions(BrowserPool(_config(address)), 2) as sessions:
                for task in (TASK, PLAIN):
                    for session in sessions:
                        observation = await session.reset(task, 1)
                        assert observation.screenshot
                        await session.step(MISS)
            await _until_pages(remote, 0)
            return is_socket, await _answers(remote), len(await _pages(remote))

    assert asyncio.run(main())[1:] == (True, 0)


async def _turn() -> None:
    """Let everything else go on."""
    await asyncio.to_thread(lambda: None)


async def _version(remote: RemoteChromium, path: str) -> object:
    async with (
        aiohttp.ClientSession(trust_env=False) as http,
        http.get(f"{remote.address}/json/{path}") as answer,
    ):
        return await answer.json(content_type=None)


async def _socket(remote: RemoteChromium) -> str:
    version = await _version(remote, "version")
    assert isinstance(version, Mapping)
    return str(version["webSocketDebuggerUrl"])


async def _answers(remote: RemoteChromium) -> bool:
    return bool(await _version(remote, "version"))


async def _pages(remote: RemoteChromium) -> list[str]:
    found = await _version(remote, "list")
    assert isinstance(found, list)
    return [page["url"] for page in found if page["url"].startswith("http")]


async def _until_pages(remote: RemoteChromium, count: int) -> None:
    async with asyncio.timeout(10):
        while len(await _pages(remote)) != count:
            pass


def test_a_killed_browser_costs_its_own_episodes_and_comes_back() -> None:
    async def main() -> None:
        async with RemoteChromium() as one, RemoteChromium() as other:
            pool = BrowserPool(_config(one.address, other.address, num_slots=4))
            async with _sessions(pool, 4) as sessions:
                for session in sessions:
                    await session.reset(TASK, 1)
                before = await _places(pool, 4)
                assert sorted(before.count(number) for number in set(before)) == [2, 2]
                await one.kill()
                lost: list[BrowserFault] = []
                for session in sessions:
                    try:
                        await session.step(MISS)
                    except BrowserFault as fault:
                        lost.append(fault)
                assert [fault.kind for fault in lost] == ["browser_lost"] * 2
                assert {ending_of(fault).name for fault in lost} == {"browser_lost"}
                for session in sessions:  # the other one takes over
                    await session.reset(TASK, 1)
                    await session.step(MISS)
                await one.start()
                async with asyncio.timeout(30):
                    while len(set(after := await _places(pool, 4))) < 2:
                        await sessions[0].reset(TASK, 1)
                assert sorted(after.count(number) for number in set(after)) == [2, 2]
                for session in sessions:
                    await session.reset(TASK, 1)
                    await session.step(MISS)
                assert pool.statistics().num_driver_starts == 1

    asyncio.run(main())


def test_an_episode_waits_while_the_only_browser_starts_again() -> None:
    async def main() -> None:
        async with (
            RemoteChromium() as remote,
            _sessions(BrowserPool(_config(remote.address)), 1) as (session,),
        ):
            await session.reset(TASK, 1)
            await remote.kill()
            async with asyncio.TaskGroup() as group:
                waiting = group.create_task(session.reset(TASK, 1))
                await remote.start()
            assert waiting.result().screenshot

    asyncio.run(main())


def test_a_browser_that_hangs_is_found_out_between_episodes(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def main() -> tuple[bool, bool]:
        async with RemoteChromium() as remote:
            pool = BrowserPool(_config(remote.address, health_check_s=0.1))
            async with _sessions(pool, 1) as (session,):
                await session.reset(TASK, 1)
                browser = await pool.browser()
                os.kill(remote.pid, signal.SIGSTOP)
                async with asyncio.timeout(30):
                    while browser.is_alive:
                        await _turn()
                os.kill(remote.pid, signal.SIGCONT)
                await session.reset(TASK, 1)
                return browser.is_alive, (await pool.browser()).is_alive

    assert asyncio.run(main()) == (False, True)
    assert "does not answer" in caplog.text


def test_the_guard_stands_before_a_browser_elsewhere_too() -> None:
    reached: list[str] = []

    async def answer(request: web.BaseRequest) -> web.StreamResponse:
        reached.append(request.path)
        return web.Response(text="private", content_type="text/html")

    async def main() -> int:
        async with RemoteChromium() as remote, TaskServer(routes={"/": answer}) as private:
            pool = BrowserPool(_config(remote.address))
            async with _sessions(pool, 1) as (session,):
                await session.reset(PLAIN, 1)
                secret = f"fetch('{private.base_url}/secret', {{mode: 'no-cors'}})"
                await session.evaluate(f"{secret}.then(() => 0, () => 0)")
                return pool.statistics().num_refused_requests

    assert asyncio.run(main()) >= 1
    assert reached == []


def test_two_pools_share_a_browser_and_do_not_answer_each_others_dialogs() -> None:
    async def main() -> tuple[object, object]:
        async with RemoteChromium() as remote:
            first, second = (BrowserPool(_config(remote.address)) for _ in range(2))
            async with _sessions(first, 1) as (one,), _sessions(second, 1) as (two,):
                await one.reset(PLAIN, 1)
                await two.reset(PLAIN, 1)
                # Whoever else hears of a dialog dismisses it: the answer would be false.
                script = "window.name = String(confirm('sure?'))"
                return await one.evaluate(script), await two.evaluate(script)

    assert asyncio.run(main()) == ("true", "true")


def test_what_a_browser_lacks_is_said_once(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        async with RemoteChromium(()) as remote, BrowserPool(_config(remote.address)) as pool:
            await pool.browser()
            await pool.browser()

    with caplog.at_level(logging.WARNING, "webrl.browser.live_browser"):
        asyncio.run(main())
    warnings = [r.message for r in caplog.records if "may send UDP around the guard" in r.message]
    assert len(warnings) == 1


class Gate:
    """What a provider puts before its browsers: a web socket that a token opens."""

    def __init__(self, remote: RemoteChromium, token: str) -> None:
        self._remote = remote
        self._token = token
        self.num_refused = 0

    async def __call__(self, request: web.BaseRequest) -> web.StreamResponse:
        if request.query.get("token") != self._token:
            self.num_refused += 1
            return web.Response(status=401)
        client = web.WebSocketResponse(max_msg_size=0)
        await client.prepare(request)
        async with (
            aiohttp.ClientSession(trust_env=False) as http,
            http.ws_connect(await _socket(self._remote), max_msg_size=0) as browser,
            asyncio.TaskGroup() as group,
        ):
            back = group.create_task(self._copy(browser, client))
            await self._copy(client, browser)
            back.cancel()
        return client

    async def _copy(
        self,
        source: aiohttp.ClientWebSocketResponse | web.WebSocketResponse,
        sink: aiohttp.ClientWebSocketResponse | web.WebSocketResponse,
    ) -> None:
        async for message in source:
            await sink.send_str(message.data)


def test_a_token_opens_a_browser_and_stands_in_no_message(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> tuple[str, int]:
        async with RemoteChromium() as remote:
            gate = Gate(remote, "the right & only word")
            async with TaskServer(routes={"/": gate}) as server:
                address = server.base_url.replace("http", "ws") + "/?token={BROWSER_TOKEN}"
                monkeypatch.setenv("BROWSER_TOKEN", "the right & only word")
                async with _sessions(BrowserPool(_config(address)), 1) as (session,):
                    await session.reset(TASK, 1)
                    await session.step(MISS)
                monkeypatch.setenv("BROWSER_TOKEN", "a wrong word")
                limits = Deadlines(launch_s=3.0)
                config = BrowserConfig(num_slots=1, remotes=(address,), deadlines=limits)
                async with BrowserPool(config) as pool:
                    with pytest.raises(BrowserFault) as caught:
                        await pool.browser()
                return f"{caught.value} {caught.value.__cause__}", gate.num_refused

    with caplog.at_level(logging.DEBUG):
        text, num_refused = asyncio.run(main())
    assert "answered with status 401" in text
    assert "{BROWSER_TOKEN}" in text
    assert num_refused >= 1
    logged = "\n".join(r.getMessage() for r in caplog.records if r.name.startswith("webrl"))
    assert "word" not in text + logged


def test_a_token_that_is_not_set_is_named() -> None:
    async def main() -> None:
        async with BrowserPool(_config("ws://127.0.0.1:9/?token={A_TOKEN_OF_NOBODY}")) as pool:
            await pool.browser()

    with pytest.raises(PreflightError, match="A_TOKEN_OF_NOBODY must be set for the browser"):
        asyncio.run(main())
