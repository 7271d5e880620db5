"""What is old, large or much used is replaced, between episodes."""

from __future__ import annotations

import asyncio

import psutil
import pytest
from webrl.browser import BrowserConfig, BrowserPool
from webrl.tasks import Task, load_task

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


def test_memory_retires_a_browser() -> None:
    async def main() -> bool:
        async with _pool(max_browser_pss_bytes=1) as pool, await pool.session() as session:
            await session.reset(TASK, 0)
            browser = await pool.browser()
            for seed in range(600):
                await pool.browser()
                if browser.is_retired:
                    return seed < 600
            return False

    assert asyncio.run(main())
