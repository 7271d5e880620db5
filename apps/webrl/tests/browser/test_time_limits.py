"""What each limit of time ends: a navigation, the wait after an action, an action, on a slow site."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import pytest
from aiohttp import web
from webrl.actions import LeftClick, Navigate
from webrl.browser import BrowserConfig, BrowserPool, BrowserSession, Deadlines
from webrl.config import load_config
from webrl.errors import BrowserFault
from webrl.launch import component_configs, run_tasks
from webrl.tasks import Task, TaskServer

pytestmark = pytest.mark.browser

PAGES = {
    "/hang": "<body onclick='for(;;){}' style='height:100vh'>hangs when it is clicked</body>",
    "/waits": "<body onclick='fetch(\"/clicked\")' style='height:100vh'><img src='/late'></body>",
    "/never": "<body style='height:100vh'><img src='/slow'></body>",
}


class SlowSite:
    """Answers a path below `/slow` never, one below `/late` after a click, and others at once."""

    def __init__(self) -> None:
        self._is_clicked = asyncio.Event()

    async def __call__(self, request: web.BaseRequest) -> web.StreamResponse:
        if request.path.startswith("/slow"):
            await asyncio.Event().wait()
        if request.path.startswith("/late"):
            await self._is_clicked.wait()
        if request.path == "/clicked":
            self._is_clicked.set()
        return web.Response(text=PAGES.get(request.path, "a page"), content_type="text/html")


def _task(server: TaskServer, path: str, settle_s: float = 0.0) -> Task:
    url = server.base_url + path
    return Task(
        suite="web",
        name=path.strip("/"),
        url=url,
        goal="g",
        answer="x",
        settle_s=settle_s,
        allow_private=True,
    )


@asynccontextmanager
async def _session(**deadlines: float) -> AsyncGenerator[tuple[BrowserSession, TaskServer]]:
    config = BrowserConfig(num_slots=1, deadlines=Deadlines(**deadlines))
    async with (
        TaskServer(routes={"/": SlowSite()}) as server,
        BrowserPool(config, server=server) as pool,
        await pool.session() as session,
    ):
        yield session, server


def test_a_start_page_that_does_not_come_is_given_up_at_the_navigation_limit() -> None:
    async def main() -> BrowserFault:
        async with _session(navigate_s=0.5) as (session, server):
            with pytest.raises(BrowserFault) as caught:
                await session.reset(_task(server, "/slow"), 0)
            return caught.value

    fault = asyncio.run(main())
    assert fault.kind == "navigation_error"
    assert "0.5 s" in fault.detail or "500ms" in fault.detail


def test_an_address_that_does_not_come_is_an_event_and_the_episode_goes_on() -> None:
    async def main() -> list[str]:
        async with _session(navigate_s=0.5) as (session, server):
            await session.reset(_task(server, "/"), 0)
            outcome = await session.step(Navigate(server.base_url + "/slow"))
            assert not outcome.is_done
            return [event.kind for event in outcome.events]

    assert asyncio.run(main()) == ["navigation_error"]


@pytest.mark.parametrize(
    ("path", "settle_s", "state"),
    [("/waits", 60.0, "complete"), ("/never", 0.3, "interactive"), ("/never", 0.0, "interactive")],
)
def test_an_action_is_over_when_the_page_has_loaded_or_at_the_settle_limit(
    path: str, settle_s: float, state: str
) -> None:
    async def main() -> object:
        async with _session() as (session, server):
            await session.reset(_task(server, path, settle_s), 0)
            outcome = await session.step(LeftClick(500, 500))
            assert not outcome.is_done
            return await session.evaluate("document.readyState")

    assert asyncio.run(main()) == state


def test_a_page_that_an_action_hangs_ends_the_episode_at_the_action_limit() -> None:
    async def main() -> str | None:
        limit_s = 1.0
        async with _session(input_s=limit_s, evaluate_s=limit_s, screenshot_s=limit_s) as opened:
            session, server = opened
            await session.reset(_task(server, "/hang"), 0)
            return (await session.step(LeftClick(500, 500))).end_reason

    assert asyncio.run(main()) == "page_hung"


def test_the_keys_of_the_configuration_are_these_limits() -> None:
    settings = (
        "env.action_timeout_s=3",
        "env.navigation_timeout_s=4",
        "env.settle_timeout_s=5",
        "env.headless=new",
    )
    config = load_config("laptop", settings).config
    tasks = run_tasks.train_tasks(config)
    servers = component_configs.server_spec(config, "policy")
    browser = component_configs.worker_spec(
        config, servers, tasks, num_slots=1, temperature=1.0, is_synchronous=False
    ).browser
    limits = browser.deadlines
    assert (limits.input_s, limits.evaluate_s, limits.screenshot_s) == (3.0, 3.0, 3.0)
    assert (limits.navigate_s, browser.headless) == (4.0, "new")
    assert {task.settle_s for task in tasks} == {5.0}
