"""What is old, large or much used is replaced, between episodes."""

from __future__ import annotations

import asyncio

import psutil
import pytest
from aiohttp import web
from webrl.actions import GoBack, Wait
from webrl.browser import BrowserConfig, BrowserPool, StepOutcome
from webrl.tasks import Task, TaskServer, load_task, load_tasks

pytestmark = pytest.mark.browser

TASK = load_task("miniwob/click-test-2")
CLEAN = Task(suite="web", name="clean", url="/miniwob/click-test.html", goal="g", answer="x")


def _pool(**changes: object) -> BrowserPool:
    return BrowserPool(BrowserConfig(num_slots=2, **changes))  # type: ignore[arg-type]


def test_contexts_are_recycled_by_count() -> None:
    async def main() -> int:
        async with _pool(recycle_context_every=2) as pool, await pool.session() as session:
            for seed in range(6):
                await session.reset(TASK, seed)
            return pool.statistics().num_contexts

    assert asyncio.run(main()) == 3


def test_a_slot_with_more_tasks_than_pages_leads_the_pages_it_has() -> None:
    names = ["click-test-2", "click-pie", "enter-text", "simon-says", "click-dialog"]
    tasks = load_tasks([f"miniwob/{name}" for name in names])

    async def main() -> tuple[int, list[object], list[str]]:
        async with _pool(pages_per_session=2) as pool, await pool.session() as session:
            for task in tasks[:2]:
                await session.reset(task, 0)
            opened: list[object] = []
            sizes: list[object] = []
            events: list[str] = []
            (await pool.browser()).browser.contexts[0].on("page", lambda page: opened.append(page))
            for task in [*tasks, *tasks]:
                observation = await session.reset(task, 1)
                sizes.append(await session.evaluate("[innerWidth, innerHeight]"))
                assert observation.url.endswith(task.url)
                outcome = await session.step(GoBack())  # to no page of another episode
                events += [event.kind for event in outcome.events]
                assert outcome.observation is None or outcome.observation.url == observation.url
        return len(opened), sizes, events

    num_opened, sizes, events = asyncio.run(main())
    assert num_opened == 0
    assert sizes == 2 * [[task.viewport.width, task.viewport.height] for task in tasks]
    assert events == 10 * ["no_effect"]


def test_old_browsers_and_drivers_are_replaced_between_episodes() -> None:
    async def main() -> tuple[int, int, int]:
        async with _pool(recycle_browser_every=2, recycle_driver_every=4) as pool:
            async with await pool.session() as session:
                for seed in range(8):
                    await session.reset(CLEAN, seed)
            live = [p for p in psutil.Process().children() if "run-driver" in p.cmdline()]
            statistics = pool.statistics()
            return statistics.num_browser_launches, statistics.num_driver_starts, len(live)

    launches, drivers, live = asyncio.run(main())
    assert launches >= 3
    assert drivers >= 2
    assert live == 1


def test_age_retires_a_browser() -> None:
    async def main() -> int:
        async with _pool(max_browser_age_s=1e-3) as pool, await pool.session() as session:
            for seed in range(4):
                await session.reset(CLEAN, seed)
            return pool.statistics().num_browser_launches

    assert asyncio.run(main()) >= 2


_HOG = """<!doctype html>grows<script>
window.kept = []
setInterval(() => kept.push(new Uint8Array(32 << 20).fill(1)), 50)</script>"""


def test_a_page_that_fills_the_memory_is_ended_by_name_and_its_neighbour_goes_on() -> None:
    async def site(request: web.BaseRequest) -> web.StreamResponse:
        text = _HOG if request.path == "/hog" else "<!doctype html>fine"
        return web.Response(text=text, content_type="text/html")

    async def main() -> tuple[StepOutcome, bool]:
        async with (
            TaskServer(routes={"/": site}) as server,
            _pool(max_browser_pss_bytes=700 << 20, memory_check_s=0.5) as pool,
            await pool.session() as hog,
            await pool.session() as neighbour,
        ):
            fine, grows = (
                Task(
                    suite="web",
                    name="t",
                    url=url,
                    goal="g",
                    answer="x",
                    allow_private=True,
                    max_steps=999,
                )
                for url in (server.base_url + "/fine", server.base_url + "/hog")
            )
            await neighbour.reset(fine, 0)
            await hog.reset(grows, 0)
            browser = await pool.browser()

            async with asyncio.timeout(60):
                while not (outcome := await hog.step(Wait())).is_done:
                    pass
            await neighbour.step(Wait())
            return outcome, browser.is_retired

    outcome, is_retired = asyncio.run(main())
    assert (outcome.end_reason, outcome.reward) == ("page_crashed", 0.0)
    assert any("/hog ended: the browser holds" in event.detail for event in outcome.events)
    assert is_retired


def test_a_kept_page_that_an_episode_left_or_disturbed_is_loaded_again() -> None:
    tricks = [
        "location.hash = '#left'",
        "history.pushState({}, '', '/miniwob/other.html')",
        "void setTimeout(() => location.assign('/miniwob/click-tab.html'))",
        "void setTimeout(() => alert('hello'))",
        "void setTimeout(() => open('/miniwob/click-tab.html'))",
    ]

    async def main() -> list[object]:
        marks: list[object] = []
        async with _pool() as pool, await pool.session() as session:
            for trick in ("0", *tricks):
                await session.reset(TASK, 0)
                marks.append(await session.evaluate("window.mark || null"))
                await session.evaluate("window.mark = 1")
                await session.evaluate(trick)
                await asyncio.sleep(0.3)  # what the browser tells of comes after what it does
            await session.reset(TASK, 0)
            return [*marks, await session.evaluate("window.mark || null")]

    assert asyncio.run(main()) == [None, 1, None, None, None, None, None]
