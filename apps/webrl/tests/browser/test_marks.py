"""Set of marks on real pages: what can be clicked is numbered, and actions meet their elements.

The numbers are on the screenshot only.
"""

from __future__ import annotations

import asyncio
import io
import json
from collections.abc import Awaitable, Callable
from typing import TypeVar

import msgspec
import numpy as np
import pytest
from aiohttp import web
from PIL import Image
from webrl.actions import (
    ClickMark,
    DoubleClickMark,
    DragMark,
    HoverMark,
    ScrollMark,
    TypeText,
    to_grid,
    to_pixels,
)
from webrl.browser import BrowserConfig, BrowserPool, BrowserSession, Mark
from webrl.tasks import Task, TaskServer, Viewport, points_script

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


def _run(
    body: Callable[[BrowserSession], Awaitable[_T]], *, is_marked: bool = True, page: str = _PAGE
) -> _T:
    async def show(_: web.BaseRequest) -> web.StreamResponse:
        return web.Response(text=page, content_type="text/html")

    async def main() -> _T:
        async with (
            TaskServer(routes={"/": show}) as site,
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


_SECRETS = """<!doctype html><style>body * { display: block; margin: 2px }</style>
<input type=password value=hunter2 placeholder=Password>
<label>PIN <input type=password value=hunter2></label>
<input type=password value=hunter2 aria-labelledby=name><span id=name>Secret word</span>
<input value=hunter2 style="-webkit-text-security:disc" placeholder=Hidden>
<input value=hunter2 autocomplete="section-a one-time-code" placeholder=Code>
<input value=hunter2 autocomplete=cc-number placeholder=Card>
<input value=hunter2 autocomplete="new-password" placeholder=New>
<textarea autocomplete=current-password placeholder=Area>hunter2</textarea>
<select autocomplete=cc-exp-month title=Month><option>hunter2</select>
<div contenteditable title=Editor style="-webkit-text-security:circle">hunter2</div>
<div role=button title=Around>a <i style="-webkit-text-security:disc">hunter2</i></div>
<input value=ada autocomplete=username placeholder=User>
<textarea placeholder=Area>written</textarea>
<select><option>red<option selected>green</select>
<label><input type=checkbox value=on> Agree</label>
<button><img alt=Search width=9 height=9></button>"""
_ALL_AT_ONCE = """<!doctype html><body style="margin:0"><div id=app style="height:200px">
<button style="all:revert" onclick="document.querySelector('dialog').showModal()">open</button>
<div style="overflow:auto;height:40px"><a href=#>in a list that scrolls</a><p>1<p>2<p>3</div>
<div role=button id=odd>odd</div><form onclick="0" style="height:20px"><input type=hidden name=matches>
</form><button>after what is odd</button></div>
<dialog style="inset:50px auto auto 50px;margin:0;padding:9px"><select><option>one<option>two</select>
</dialog><script>
document.getElementById('app').addEventListener('click', () => 0);
Object.defineProperty(document.getElementById('odd'), 'getClientRects', {get() { throw 1 }});
</script>"""

_CELLS = {
    "link around a block": "<a class=t href=#><div>block</div></a>",
    "link that starts empty": "<a class=t href=#><span></span>text</a>",
    "link that starts with a line break": "<a class=t href=#><br>text</a>",
    "link around a float": "<a class=t href=#><img style=float:left width=30 height=20></a>",
    "link around a positioned block": """<a class=t href=#>
        <div style="position:absolute;width:30px;height:20px"></div></a>""",
    "link on two lines": "<div style=width:60px>aaaaa <a class=t href=#>bb ccccccc</a></div>",
    "link on two lines, the first covered": """<div style=width:60px>aaaaa <a class=t href=#>bb
        ccccccc</a></div><i style="position:absolute;left:0;top:0;width:60px;height:15px"></i>""",
    "link stretched over a card": """<div style="position:relative;width:60px;height:40px">card
        <a class="t stretched" href=#></a></div>""",
    "display: contents": "<a class=t href=# style=display:contents><b>con</b>tents</a>",
    "display: contents of a text": "<button class=t style=display:contents>text</button>",
    "rectangle of an image": """<img usemap=#m width=60 height=40><map name=m>
        <area class=t shape=rect coords=10,10,40,30 href=#></map>""",
    "circle of an image": """<img usemap=#n width=60 height=40><map name=n>
        <area class=t shape=circle coords=30,20,10 href=#></map>""",
    "polygon of an image": """<img usemap=#o width=60 height=40><map name=o>
        <area class=t shape=poly coords=0,0,50,0,0,40 href=#></map>""",
    "label of a hidden input": "<label class=t><input type=checkbox hidden>check</label>",
    "label of an input that is not displayed": """<input type=radio id=r style=display:none>
        <label class=t for=r>radio</label>""",
    "label that draws its input": """<label class=t><input type=checkbox style="position:absolute;
        opacity:0;width:1px;height:1px"><span style="float:left;width:20px;height:20px"></span></label>""",
    "summary": "<details><summary class=t>sum</summary>x</details>",
    "contenteditable": "<div class=t contenteditable>edit</div>",
    "plain text contenteditable": "<div class=t contenteditable=plaintext-only>edit</div>",
    "role": "<div class=t role=menuitemcheckbox>item</div>",
    "tabindex": "<div class=t tabindex=0>tab</div>",
    "listener": "<div class=t data-listens=click>listens</div>",
    "listener for presses": "<div class=t data-listens=pointerdown>listens</div>",
    "handler property": "<div class=t data-handles=1>handles</div>",
    "card around a link": """<div class=t data-listens=click style="width:80px;height:40px;
        text-align:center"><a class=inner href=#>in</a></div>""",
    "entry of a list that listens": "<ul data-listens=click style=margin:0><li class=t>entry</ul>",
    "cell of a table that listens": "<table data-listens=mousedown><tr><td class=t>cell</table>",
    "draggable": "<div class=t draggable=true>drag</div>",
    "svg link": "<svg width=60 height=30><a class=t href=#><rect width=30 height=20 /></a></svg>",
    "svg listener": "<svg width=60 height=30><circle class=t data-listens=click cx=15 cy=15 r=8 /></svg>",
    "canvas": "<canvas class=t width=50 height=30 data-listens=mousedown></canvas>",
    "video": "<video class=t width=60 height=40></video>",
    "text that scrolls": "<div class=t style=overflow:auto;height:30px><p>one<p>two<p>three</div>",
    "tiny": '<button class=t style="width:3px;height:3px;padding:0;border:0"></button>',
    "covered but for an edge": """<button class=t style="width:60px;height:30px">edge</button>
        <i style="position:absolute;left:0;top:0;width:54px;height:30px"></i>""",
    "clipped but for an edge": """<div style="width:9px;overflow:hidden">
        <button class=t style="width:900px">edge</button></div>""",
    "open shadow root": '<div data-shadow="<button class=t>in</button>"></div>',
    "shadow root in a shadow root": """<div data-shadow="<div data-shadow='<button class=t>in</button>'></div>"></div>""",
    "closed shadow root": '<div data-mode=closed data-shadow="<button class=t>in</button>"></div>',
    "slot": '<div data-shadow="<button class=t><slot></slot></button>">slotted</div>',
    "frame": '<iframe srcdoc="<button class=t>in</button>"></iframe>',
    "frame with borders, smaller": """<iframe style="border:4px solid;padding:5px;transform:scale(0.7)"
        srcdoc="<button class=t>in</button>"></iframe>""",
    "frame, larger": """<iframe style="width:50px;height:28px;zoom:2"
        srcdoc="<body style=margin:0><button class=t>in</button>"></iframe>""",
    "frame that stands askew": """<iframe class=t style="transform:rotate(30deg)"
        srcdoc="<button>in</button>"></iframe>""",
    "frame scrolled down": """<iframe data-scrolled=1 srcdoc="<p style=height:200px></p>
        <button class=t>in</button><p style=height:400px></p>"></iframe>""",
    "frame that is clipped": """<div style="width:30px;height:40px;overflow:hidden"><iframe
        srcdoc="<button class=t style=width:90px>in</button>"></iframe></div>""",
    "frame in a frame": """<iframe srcdoc="<body style=margin:2px><iframe width=80 height=40
        srcdoc='<button class=t>in</button>'></iframe>"></iframe>""",
    "shadow root in a frame": """<iframe srcdoc="<div data-shadow='<button class=t>in</button>'></div>"></iframe>""",
    "frame of another site": '<iframe class=t sandbox srcdoc="<button>in</button>"></iframe>',
}
_GRID_PAGE = """<!doctype html><style>body { margin: 0 } .stretched::after { content: ''; inset: 0;
  position: absolute } iframe { width: 96px; height: 50px; border: 2px solid }
  .cell { position: absolute; width: 110px; height: 60px; overflow: hidden; font: 13px Arial }
</style>CELLS<script>
let seen = null;
const wire = (root) => {
  for (const e of root.querySelectorAll('*')) {
    if (e.dataset.shadow) {
      const inner = e.attachShadow({mode: e.dataset.mode || 'open'});
      inner.innerHTML = e.dataset.shadow;
      wire(inner);
    }
    if (e.dataset.scrolled) e.contentWindow.scrollTo(0, 200);
    if (e.dataset.listens) e.addEventListener(e.dataset.listens, () => 0);
    if (e.dataset.handles) e.onclick = () => 0;
    if (e.localName === 'iframe' && e.contentDocument) wire(e.contentDocument);
  }
  root.addEventListener('click', (event) => { for (const e of event.composedPath())
    if (e.matches && e.matches('.t, .inner')) { seen = e.getAttribute('class').split(' ')[0]; return; }
  }, true);
};
addEventListener('blur', () => { const e = document.activeElement;
  if (e.matches('iframe.t')) seen = 't'; });
onload = () => { wire(document); window.isReady = true; };
const all = (root) => [...root.querySelectorAll('*')].flatMap((e) => [e,
  ...e.shadowRoot ? all(e.shadowRoot) : [],
  ...e.localName === 'iframe' && e.contentDocument ? all(e.contentDocument) : []]);
</script>"""


@pytest.fixture(scope="module")
def reached() -> dict[str, list[str]]:
    """Return what the clicks on the marks of each cell met, and what has no point."""
    width, columns = 1000, 9
    cells = "".join(
        f'<div class=cell style="left:{i % columns * 111}px;top:{i // columns * 70}px">{html}</div>'
        for i, html in enumerate(_CELLS.values())
    )
    size = {"width": width, "height": (len(_CELLS) // columns + 1) * 70}
    task = msgspec.structs.replace(_TASK, viewport=Viewport(**size), state_script=None, answer="x")
    names = list(_CELLS)

    async def body(pool: BrowserPool, session: BrowserSession) -> dict[str, list[str]]:
        await session.reset(task, 0)
        page = (await pool.browser()).browser.contexts[-1].pages[0]
        await page.wait_for_function("window.isReady")
        observation = (await session.step(HoverMark(99))).observation
        assert observation is not None
        found: dict[str, list[str]] = {name: [] for name in names}
        found["without a point"] = await page.evaluate(
            f"(() => {{ {points_script()} return [...everything()].filter(([e, view]) =>"
            " e.matches('.t') && !point(e, view)).map(([e]) => e.outerHTML); })()"
        )
        for mark in observation.marks:
            cell = names[int(mark.y // 70) * columns + int(mark.x // 111)]
            await page.evaluate("seen = null; document.activeElement.blur(); window.focus()")
            await page.mouse.click(*to_pixels(*to_grid(mark.x, mark.y, **size), **size))
            found[cell].append(await page.evaluate("seen"))
        return found

    async def show(_: web.BaseRequest) -> web.StreamResponse:
        text = _GRID_PAGE.replace("CELLS", cells)
        return web.Response(text=text, content_type="text/html")

    async def main() -> dict[str, list[str]]:
        async with (
            TaskServer(routes={"/": show}) as site,
            BrowserPool(BrowserConfig(num_slots=1, is_marked=True), server=site) as pool,
            await pool.session() as session,
        ):
            return await body(pool, session)

    return asyncio.run(main())


@pytest.mark.parametrize("name", _CELLS)
def test_what_a_person_can_click_has_one_number_that_meets_it(
    name: str, reached: dict[str, list[str]]
) -> None:
    assert sorted(reached[name]) == (["inner", "t"] if "class=inner" in _CELLS[name] else ["t"])


def test_an_oracle_finds_a_point_of_whatever_a_person_can_click(
    reached: dict[str, list[str]],
) -> None:
    assert reached["without a point"] == []


def test_no_password_code_or_card_is_told() -> None:
    async def body(session: BrowserSession) -> list[str]:
        task = msgspec.structs.replace(
            _TASK, viewport=Viewport(320, 500), state_script=None, answer="x"
        )
        return [mark.text for mark in (await session.reset(task, 0)).marks]

    assert _run(body, page=_SECRETS) == [
        "input: Password",
        "label: PIN",
        "input: PIN",
        "input: Secret word",
        "input: Hidden",
        "input: Code",
        "input: Card",
        "input: New",
        "textarea: Area",
        "select: Month",
        "div: Editor",
        "div: Around",
        "input: ada",
        "textarea: written",
        "select: green",
        "label: Agree",
        "input: Agree",
        "button: Search",
    ]


def test_a_list_in_a_dialog_is_chosen_from_by_marks() -> None:
    async def body(session: BrowserSession) -> list[object]:
        task = msgspec.structs.replace(_TASK, state_script=None, answer="x")
        seen: list[object] = []
        screenshots: list[bytes] = []
        marks = (await session.reset(task, 0)).marks
        for wanted in ("button: open", "select: one", "option: two"):
            seen.append([mark.text for mark in marks])
            number = next(mark.number for mark in marks if mark.text == wanted)
            observation = (await session.step(ClickMark(number))).observation
            assert observation is not None
            screenshots.append(observation.screenshot)
            marks = observation.marks
        box = await session.evaluate(
            "(() => { const r = document.querySelector('select').getBoundingClientRect();"
            " return [r.x, r.y, document.querySelector('select').value]; })()"
        )
        assert isinstance(box, list)
        left, top, value = box
        pixels = _pixels(screenshots[0])
        return [*seen, value, (pixels[int(top) + 2, int(left)] == (0xDD, 0, 0)).all()]

    closed, opened, listed, value, is_drawn = _run(body, page=_ALL_AT_ONCE)
    # What listens for the whole page, and what scrolls around a number, need no number.
    assert closed == [
        "button: open",
        "a: in a list that scrolls",
        "button: after what is odd",
    ]
    assert (opened, listed) == (["select: one"], ["select: one", "option: one", "option: two"])
    assert (value, is_drawn) == ("two", True)


def test_an_odd_page_is_numbered_as_far_as_it_goes() -> None:
    pages = {
        "<body onclick='0'>click anywhere": ["body: click anywhere"],
        "<iframe id=f></iframe><script>f.contentDocument.designMode = 'on'</script>": ["iframe: "],
        "<button>x</button><script>Array.prototype.map = null</script>": [],
    }

    async def body(session: BrowserSession) -> list[list[str]]:
        await session.reset(msgspec.structs.replace(_TASK, state_script=None, answer="x"), 0)
        found: list[list[str]] = []
        for page in pages:
            await session.evaluate(f"document.write({json.dumps(page)}); document.close()")
            observation = (await session.step(HoverMark(99))).observation
            assert observation is not None
            found.append([mark.text for mark in observation.marks])
        return found

    assert _run(body, page="<!doctype html>") == list(pages.values())
