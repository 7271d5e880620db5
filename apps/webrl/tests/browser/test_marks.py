"""Set of marks on a real page: numbers are on the screenshot only, and actions meet their elements."""

from __future__ import annotations

import asyncio
import io
from collections.abc import Awaitable, Callable
from typing import TypeVar

import numpy as np
import pytest
from aiohttp import web
from PIL import Image
from webrl.actions import ClickMark, DoubleClickMark, DragMark, HoverMark, ScrollMark, TypeText
from webrl.browser import BrowserConfig, BrowserPool, BrowserSession, Mark
from webrl.tasks import Task, TaskServer, Viewport

pytestmark = pytest.mark.browser
_T = TypeVar("_T")

_PAGE = """<!doctype html><style>
body{margin:0;background:#fff}
body>*{position:fixed;width:80px;height:40px;margin:0;padding:0;border:0;background:#eee}
</style>
<button style="left:0;top:0" onclick="log('click')" ondblclick="log('double')">Buy</button>
<a href="#there" style="left:100px;top:0">a link</a>
<input style="left:200px;top:0" placeholder="name" onfocus="log('focus')">
<button style="left:0;top:60px" onmouseover="log('over')">Hover</button>
<div role=button style="left:100px;top:60px" onmousedown="log('down')">From</div>
<div role=button style="left:200px;top:60px" onmouseup="log('up')">To</div>
<button style="left:0;top:120px">covered</button>
<div style="left:0;top:120px;background:#ccc"></div>
<button style="left:100px;top:120px;display:none">hidden</button>
<p style="left:200px;top:120px">no button</p>
<div style="position:static;width:1px;height:3000px"></div>
<script>window.seen = []; const log = (what) => seen.push(what);
window.state = () => ({done: seen.includes('done'), reward: 1, reason: null});</script>"""

_TASK = Task(
    suite="web",
    name="marks",
    url="/",
    goal="Do it.",
    viewport=Viewport(320, 200),
    state_script="state()",
    max_steps=20,
)


async def _site(_: web.BaseRequest) -> web.StreamResponse:
    return web.Response(text=_PAGE, content_type="text/html")


def _run(body: Callable[[BrowserSession], Awaitable[_T]], *, is_marked: bool = True) -> _T:
    async def main() -> _T:
        async with (
            TaskServer(routes={"/": _site}) as site,
            BrowserPool(BrowserConfig(num_slots=1, is_marked=is_marked), server=site) as pool,
            await pool.session() as session,
        ):
            return await body(session)

    return asyncio.run(main())


def _pixels(screenshot: bytes) -> np.ndarray:
    return np.asarray(Image.open(io.BytesIO(screenshot)).convert("RGB")).astype(int)


def test_what_can_be_clicked_is_numbered_in_reading_order() -> None:
    async def body(session: BrowserSession) -> tuple[Mark, ...]:
        return (await session.reset(_TASK, 0)).marks

    marks = _run(body)
    assert [f"{mark.number} {mark.text}" for mark in marks] == [
        "1 button: Buy",
        "2 a: a link",
        "3 input: name",
        "4 button: Hover",
        "5 div: From",
        "6 div: To",
    ]
    assert [(mark.x, mark.y) for mark in marks][:2] == [(40, 20), (140, 20)]


def test_the_numbers_are_drawn_on_the_screenshot_and_nowhere_else() -> None:
    async def body(session: BrowserSession) -> tuple[bytes, object]:
        screenshot = (await session.reset(_TASK, 0)).screenshot
        return screenshot, await session.evaluate("document.querySelector('awrl-marks')")

    (marked, left), (plain, _) = _run(body), _run(body, is_marked=False)
    assert left is None
    changed = np.abs(_pixels(marked) - _pixels(plain)).sum(axis=2) > 100
    boxes = [(0, 0), (100, 0), (200, 0), (0, 60), (100, 60), (200, 60)]
    for x, y in boxes:
        assert changed[y : y + 40, x].all(), "the left edge of a box"
        assert changed[y + 1 : y + 9, x + 1 : x + 6].any(), "its number"
        changed[y : y + 40, x : x + 80] = False
    assert not changed.any()


def test_every_action_on_a_mark_meets_its_element() -> None:
    async def body(session: BrowserSession) -> list[object]:
        await session.reset(_TASK, 0)
        seen: list[object] = []
        actions = (HoverMark(4), DragMark(5, 6), DoubleClickMark(1), ClickMark(3), TypeText("Ada"))
        for action in actions:
            outcome = await session.step(action)
            assert not outcome.events
        seen += [await session.evaluate("seen"), await session.evaluate("innerHeight")]
        seen.append(await session.evaluate("document.querySelector('input').value"))
        for action in (ScrollMark(0, 0, 500), ScrollMark(1, 0, 500), ClickMark(2)):
            await session.step(action)
        seen.append(await session.evaluate("[scrollY, location.hash]"))
        return seen

    events, height, typed, place = _run(body)
    assert events == ["over", "down", "up", "click", "click", "double", "focus"]
    assert (height, typed) == (200, "Ada")
    assert place == [200, "#there"]


def test_a_mark_that_is_not_there_does_nothing_and_is_said() -> None:
    async def body(session: BrowserSession) -> list[str]:
        await session.reset(_TASK, 0)
        events: list[str] = []
        for action in (ClickMark(99), DragMark(5, 98), ScrollMark(97, 0, 100)):
            events += [str(event) for event in (await session.step(action)).events]
        assert await session.evaluate("[seen.length, scrollY]") == [0, 0]
        return events

    assert _run(body) == [f"no_effect: there is no mark {number}" for number in (99, 98, 97)]
