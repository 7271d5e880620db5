"""A browser that exits is replaced, never dialled again."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack

import pytest
from webrl.actions import GoBack, LeftClick, TypeText
from webrl.browser import BrowserConfig, BrowserPool
from webrl.browser.live_browser import LiveBrowser
from webrl.errors import BrowserFault
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


def test_every_slot_of_a_lost_browser_says_that_the_browser_is_lost() -> None:
    async def main() -> list[str]:
        kinds: list[str] = []
        async with BrowserPool(BrowserConfig(num_slots=3)) as pool, AsyncExitStack() as stack:
            sessions = [await stack.enter_async_context(await pool.session()) for _ in range(3)]
            for session in sessions:
                await session.reset(TASK, 1)
            (await pool.browser()).kill()
            await asyncio.sleep(0.2)  # until the driver has told of pages that are closed
            for session, action in zip(
                sessions, (LeftClick(1, 1), TypeText("a"), GoBack()), strict=True
            ):
                with pytest.raises(BrowserFault) as caught:
                    await session.step(action)
                kinds.append(caught.value.kind)
        return kinds

    assert asyncio.run(main()) == ["browser_lost"] * 3
