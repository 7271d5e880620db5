"""A browser that exits is replaced, never dialled again."""

from __future__ import annotations

import asyncio

import pytest
from webrl.browser import BrowserConfig, BrowserPool
from webrl.browser.live_browser import LiveBrowser
from webrl.tasks import load_task

pytestmark = pytest.mark.browser

TASK = load_task("miniwob/click-test-2")


def test_a_lost_browser_is_a_new_object() -> None:
    async def main() -> tuple[bool, bool]:
        async with BrowserPool(BrowserConfig(num_slots=2)) as pool, await pool.session() as session:
            await session.reset(TASK, 1)
            first: LiveBrowser = await pool.browser()
            first.kill()
            await session.reset(TASK, 1)
            return first.is_alive, (await pool.browser()) is first

    assert asyncio.run(main()) == (False, False)
