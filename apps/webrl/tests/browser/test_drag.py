"""A drag does on every page what the mouse of Playwright does there."""

from __future__ import annotations

import asyncio

import pytest
from aiohttp import web
from playwright.async_api import Page
from webrl.actions import Drag, to_pixels
from webrl.browser import BrowserConfig, BrowserPool
from webrl.tasks import Task, TaskServer, Viewport

pytestmark = pytest.mark.browser

_DRAGGABLE = "<div id=a draggable=true HANDLER>a</div><div id=z>z</div>"
_BODIES = {
    "draggable": _DRAGGABLE,
    "with data": _DRAGGABLE.replace(
        "HANDLER", """ondragstart="event.dataTransfer.setData('text/plain', 'x')" """
    ),
    "that may only be moved": _DRAGGABLE.replace(
        "HANDLER", """ondragstart="event.dataTransfer.effectAllowed = 'move'" """
    ),
    "that may go nowhere": _DRAGGABLE.replace(
        "HANDLER", """ondragstart="event.dataTransfer.effectAllowed = 'none'" """
    ),
    "that the page refuses": _DRAGGABLE.replace("HANDLER", 'ondragstart="return false"'),
    "that goes away": _DRAGGABLE.replace("HANDLER", 'ondragstart="this.remove()"'),
    "link": "<a id=a href=#there>a</a><div id=z>z</div>",
    "image": """<img id=a src='data:image/svg+xml,<svg xmlns="http://www.w3.org/2000/svg"/>'>
        <div id=z>z</div>""",
    "place that takes nothing": "<div id=a draggable=true>a</div><div id=y>y</div>",
    "mouse events": "<div id=a>a</div><div id=z>z</div>",
    "canvas": "<canvas id=a></canvas><div id=z>z</div>",
    "slider": "<input id=a type=range><div id=z>z</div>",
    "text field": "<input id=a value='some words'><div id=z>z</div>",
}
_PAGE = """<!doctype html><style>body{margin:0}
#a,#y,#z{position:absolute;left:20px;top:20px;width:60px;height:60px;background:#ccc;margin:0}
#y,#z{left:200px;top:100px}</style>BODY<script>
window.seen = [];
const types = ['mousedown', 'mouseup', 'dragstart', 'dragenter', 'dragleave', 'drop', 'dragend',
  'pointercancel', 'input', 'change'];
for (const type of types) addEventListener(type, (event) =>
  seen.push(`${type} ${event.target.id || event.target.localName}`), true);
for (const type of ['mousemove', 'dragover']) addEventListener(type, (event) => {
  const what = `${type} ${event.target.id || event.target.localName}`;
  if (!seen.includes(what) && event.target.id) seen.push(what);
}, true);
addEventListener('dragover', (event) => { if (event.target.id !== 'y') event.preventDefault(); });
addEventListener('drop', (event) => {
  event.preventDefault();
  seen.push(event.dataTransfer.getData('text/plain').slice(-6));
});
</script>"""
_SIZE = {"width": 320, "height": 200}
_DRAG = Drag(150, 250, 700, 650)


@pytest.fixture(scope="module")
def seen() -> dict[str, list[list[str]]]:
    """Return the events of each page: by the mouse of Playwright, and by the action."""
    names = list(_BODIES)

    async def show(request: web.BaseRequest) -> web.StreamResponse:
        body = _BODIES[names[int(request.path[1:])]]
        return web.Response(text=_PAGE.replace("BODY", body), content_type="text/html")

    async def by_mouse(page: Page, url: str) -> list[str]:
        await page.goto(url)
        await page.mouse.move(*to_pixels(_DRAG.x, _DRAG.y, **_SIZE))
        await page.mouse.down()
        await page.mouse.move(*to_pixels(_DRAG.to_x, _DRAG.to_y, **_SIZE), steps=5)
        await page.mouse.up()
        return await page.evaluate("new Promise((done) => setTimeout(() => done(seen)))")

    async def main() -> dict[str, list[list[str]]]:
        found: dict[str, list[list[str]]] = {}
        async with (
            TaskServer(routes={f"/{i}": show for i in range(len(names))}) as site,
            BrowserPool(BrowserConfig(num_slots=1), server=site) as pool,
            await pool.session() as session,
        ):
            tasks = [
                Task(
                    suite="web",
                    name=name,
                    url=f"/{i}",
                    goal="Drag.",
                    answer="done",
                    viewport=Viewport(**_SIZE),
                    reset="reload",
                )
                for i, name in enumerate(names)
            ]
            await session.reset(tasks[0], 0)
            page = await (await pool.browser()).browser.new_page(viewport=_SIZE)  # type: ignore[arg-type]
            for i, task in enumerate(tasks):
                await session.reset(task, 0)
                await session.step(_DRAG)
                ours = await session.evaluate("new Promise((done) => setTimeout(() => done(seen)))")
                assert isinstance(ours, list)
                found[task.name] = [await by_mouse(page, f"{site.base_url}/{i}"), ours]
        return found

    return asyncio.run(main())


@pytest.mark.parametrize("name", _BODIES)
def test_a_drag_does_what_a_mouse_does(name: str, seen: dict[str, list[list[str]]]) -> None:
    expected, events = seen[name]
    assert events == expected
    assert "mousedown a" in events
    if name in ("draggable", "with data", "that may only be moved", "link", "image"):
        assert [e for e in events if e in ("dragstart a", "drop z", "dragend a")] == [
            "dragstart a",
            "drop z",
            "dragend a",
        ]
