"""What a site is told of the browser."""

from __future__ import annotations

import asyncio

import pytest
from aiohttp import web
from webrl.browser import BrowserConfig, BrowserPool
from webrl.tasks import Task, Viewport

pytestmark = pytest.mark.browser


def headers_of(config: BrowserConfig) -> dict[str, str]:
    """Return the headers of the first request of a browser."""
    seen: list[dict[str, str]] = []

    async def answer(request: web.BaseRequest) -> web.StreamResponse:
        seen.append(dict(request.headers))
        return web.Response(text="<!doctype html>fine", content_type="text/html")

    async def main() -> None:
        runner = web.ServerRunner(web.Server(answer))
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        url = f"http://127.0.0.1:{runner.addresses[0][1]}/"
        task = Task(
            suite="web",
            name="site",
            url=url,
            goal="g",
            answer="yes",
            viewport=Viewport(400, 300),
            allow_private=True,
        )
        async with BrowserPool(config) as pool:
            session = await pool.session()
            await session.reset(task, 0)
            await session.aclose()
        await runner.cleanup()

    asyncio.run(main())
    return seen[0]


def test_a_site_is_told_the_truth_unless_another_name_and_language_are_given() -> None:
    plain = headers_of(BrowserConfig(num_slots=1))
    assert "HeadlessChrome/" in plain["User-Agent"]
    assert plain["Accept-Language"].startswith("en-US")
    given = headers_of(BrowserConfig(num_slots=1, user_agent="lamp-study/1.0", locale="de-DE"))
    assert given["User-Agent"] == "lamp-study/1.0"
    assert given["Accept-Language"].startswith("de-DE")
