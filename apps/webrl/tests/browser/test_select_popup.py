"""The list of a <select> behaves as the browser's own list does, and can be clicked besides."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import NamedTuple, TypeAlias
from urllib.parse import quote

import pytest
import webrl.browser
from playwright.async_api import Page, async_playwright
from webrl.browser.chromium import find_chromium

pytestmark = pytest.mark.browser

_SCRIPT = Path(webrl.browser.__file__).with_name("select_popup.js")
_OPTIONS = """<option>one<option>two<option selected>three<option disabled>four
<optgroup label=Fruit><option label=Apple style="color:red;font-weight:bold">five<option>six</optgroup>
<optgroup label=Off disabled><option>seven</optgroup><option hidden>eight<option>nine"""
_PLAIN = f"<select id=s>{_OPTIONS}</select>"
_PAGE = """<!doctype html><body style="margin:10px;font:13px Arial">
<div id=place></div><button id=after style="position:fixed;right:0;top:0">after</button><script>
const types = ['mousedown', 'mouseup', 'click', 'focus', 'blur', 'focusin', 'focusout', 'input',
  'change', 'keydown'];
for (const type of types) addEventListener(type, (event) =>
  seen.push(type + ' ' + (event.target.id || event.target.localName)), true);
window.start = (body) => {
  document.activeElement.blur();
  place.innerHTML = body;
  window.select = document.getElementById('s');
  window.seen = [];
};
window.state = () => [select.value, [...select.selectedOptions].map((o) => o.text).join(),
  select.isConnected && select.matches(':open'), document.activeElement.closest('[id]')?.id,
  seen.join(', ')];
</script>"""

_Act: TypeAlias = Callable[[Page], Awaitable[object]]


def _keys(*keys: str) -> _Act:
    async def act(page: Page) -> None:
        for key in keys:
            await page.keyboard.press(key)

    return act


async def _click(page: Page, place: str) -> None:
    box = await page.evaluate(
        f"(() => {{ const r = {place}.getBoundingClientRect();"
        " return [r.x + 6, r.y + Math.min(r.height / 2, 8), r.width * r.height]; })()"
    )
    assert box[2] > 0, f"{place} is not there"
    await page.mouse.click(box[0], box[1])


def _clicks(*places: str) -> _Act:
    async def act(page: Page) -> None:
        for place in places:
            await _click(page, place)

    return act


def _runs(script: str) -> _Act:
    return lambda page: page.evaluate(script)


class _Case(NamedTuple):
    act: _Act
    """What is done once the list was opened by a click."""
    body: str = _PLAIN
    reference: _Act | None = None
    """What leads to the same in the browser's own list; the same when `None`."""
    is_opened: bool = True


_UP_TO_TWO = _keys("ArrowUp", "Enter")
_CASES = {
    "opens": _Case(_keys()),
    "enter": _Case(_keys("Enter")),
    "escape": _Case(_keys("Escape")),
    "tab": _Case(_keys("Tab")),
    "arrow, enter": _Case(_keys("ArrowUp", "Enter")),
    "arrow, tab": _Case(_keys("ArrowUp", "Tab")),
    "arrow over what is disabled": _Case(_keys("ArrowDown", "Enter")),
    "arrow past the end": _Case(_keys("ArrowDown", "ArrowDown", "ArrowDown", "ArrowDown", "Enter")),
    "home": _Case(_keys("Home", "Enter")),
    "end": _Case(_keys("End", "Enter")),
    "page up": _Case(_keys("PageUp", "Enter")),
    "page down": _Case(_keys("PageDown", "Enter")),
    "letters": _Case(_keys("s", "i", "Enter")),
    "letters of a label": _Case(_keys("A", "Enter")),
    "a click outside": _Case(_clicks("after")),
    "a click outside after an arrow": _Case(_clicks("after"), reference=_clicks("after")),
    "a second click": _Case(_clicks("select")),
    "removed": _Case(_runs("select.remove()")),
    "option removed": _Case(_runs("select.options[0].remove()")),
    "keys on a closed list": _Case(_keys("ArrowUp", "n"), is_opened=False),
    "label": _Case(_clicks("l"), f"<label id=l for=s>name</label> {_PLAIN}", is_opened=False),
    "around it a label": _Case(_UP_TO_TWO, f"<label>name {_PLAIN}</label>"),
    "disabled": _Case(_keys(), f"<select id=s disabled>{_OPTIONS}</select>"),
    "empty": _Case(_keys(), "<select id=s></select>"),
    "all disabled": _Case(_keys(), "<select id=s><option disabled>one</select>"),
    "multiple": _Case(_clicks("select.options[1]"), f"<select id=s multiple>{_OPTIONS}</select>"),
    "multiple keys": _Case(_keys("ArrowDown"), f"<select id=s multiple>{_OPTIONS}</select>"),
    "size 3": _Case(_clicks("select.options[0]"), f"<select id=s size=3>{_OPTIONS}</select>"),
    "size 1": _Case(_UP_TO_TWO, f"<select id=s size=1>{_OPTIONS}</select>"),
    "a widget of the page's own": _Case(_keys(), f'<div onmousedown="return false">{_PLAIN}</div>'),
    "click on an option": _Case(_clicks("select.options[1]"), reference=_UP_TO_TWO),
    "click on the chosen option": _Case(_clicks("select.options[2]"), reference=_keys("Enter")),
    "click on an option of a group": _Case(
        _clicks("select.options[4]"), reference=_keys("ArrowDown", "Enter")
    ),
    "click on what is disabled": _Case(_clicks("select.options[3]"), reference=_keys()),
    "click on a disabled group": _Case(_clicks("select.options[6]"), reference=_keys()),
    "click on a group's label": _Case(
        _clicks("select.querySelector('optgroup')"), reference=_keys()
    ),
}


_DECIDED: dict[str, tuple[_Act, str]] = {
    "space": (_keys("ArrowUp", " "), "two"),
    "escape": (_keys("ArrowUp", "Escape"), "three"),
}
_PLACES = {
    "modal dialog": "<dialog id=d>BODY</dialog><script>d.showModal()</script>",
    "popover": "<div popover id=d>BODY</div><script>d.showPopover()</script>",
    "clipped": "<div style='overflow:hidden;height:24px;transform:scale(0.9)'>BODY</div>",
    "foot of the page": "<div style='position:fixed;bottom:2px'>BODY</div>",
    "page that scrolls by itself": """<div id=d style="height:24px;overflow:auto">BODY
        <p style="height:9000px"></div><div style="height:9000px"></div>
        <script>setInterval(() => { scrollBy(0, 0.1); d.scrollTop = 1 - d.scrollTop }, 5)</script>""",
    "page without styles": """<meta http-equiv=Content-Security-Policy content="style-src 'none'">BODY""",
    "styled page": """<style>* { all: revert; font: 30px serif } option { padding: 40px }
        select { appearance: none !important; border: 0; width: 90px }</style>BODY""",
    "open shadow root": "<div id=h></div>SHADOW<script>fill(h.attachShadow({mode: 'open'}))</script>",
    "closed shadow root": "<div id=h></div>SHADOW<script>fill(h.attachShadow({mode: 'closed'}))</script>",
    "frame": '<iframe srcdoc="BODY"></iframe>',
    "low frame": '<iframe height=26 srcdoc="BODY"></iframe>',
    "written frame": """<iframe id=f></iframe><script>f.contentDocument.open();
        f.contentDocument.write(`BODY`); f.contentDocument.close()</script>""",
    "list opened by a script": """BODY<script>s.onmousedown = (event) => {
        event.preventDefault(); s.showPicker() }</script>""",
    "page that removes what loses focus": "BODY<script>s.onblur = () => s.remove()</script>",
}
_TYPED = {
    "date": ("12/24/2026", "2026-12-24"),
    "time": ("10:30 PM", "22:30"),
    "week": ("Week 12, 2026", "2026-W12"),
}
"""Kinds of fields that have a calendar, what is typed, and the field's value."""
_FILL = "<script>const fill = (r) => { r.innerHTML = `BODY`; window.inner = r.getElementById('s') }</script>"


@pytest.fixture(scope="module")
def results() -> dict[str, list[str]]:
    """Return what each case led to, in the browser's own list and in ours."""
    found: dict[str, list[str]] = {}

    async def play(page: Page, case: _Case, act: _Act, *, is_own: bool = False) -> list[str]:
        await page.evaluate("(body) => start(body)", case.body)
        if case.is_opened:
            await _click(page, "select")
        else:
            await page.evaluate("select.focus()")
        if is_own:
            await page.screenshot()  # it takes keys once it is drawn
        await act(page)
        return await page.evaluate("new Promise((done) => setTimeout(() => done(state())))")

    async def main() -> None:
        async with async_playwright() as playwright:
            browser = await playwright.chromium.launch(executable_path=str(find_chromium()))
            own, ours = [await browser.new_page() for _ in range(2)]
            await ours.add_init_script(path=_SCRIPT)
            for page in (own, ours):
                await page.goto("data:text/html," + quote(_PAGE))
            for name, case in _CASES.items():
                found[f"own {name}"] = await play(
                    own, case, case.reference or case.act, is_own=True
                )
                found[name] = await play(ours, case, case.act)
            for name, (act, _) in _DECIDED.items():
                found[f"decided {name}"] = await play(ours, _Case(act), act)
            for kind, (text, _) in _TYPED.items():
                found[kind] = await _type_at_both_ends(ours, kind, text)
            for name, body in _PLACES.items():
                found[name] = await _choose(ours, body)

    asyncio.run(main())
    return found


async def _type_at_both_ends(page: Page, kind: str, text: str) -> list[str]:
    """Return the field's value after a click on its first part, and on its calendar's button."""
    values: list[str] = []
    for side in ("left + 6", "right - 12"):
        await page.evaluate("(body) => start(body)", f"<input id=s type={kind} style=width:300px>")
        box = (
            f"(() => {{ const r = select.getBoundingClientRect(); return [r.{side}, r.y + 9]; }})()"
        )
        await page.mouse.click(*await page.evaluate(box))
        await page.keyboard.type(text)
        values.append(await page.evaluate("select.value"))
    return values


async def _choose(page: Page, body: str) -> list[str]:
    """Return what is chosen by a click on the list and one on its second option."""
    plain = "<select id=s><option>one<option>two</select>"
    body = body.replace("SHADOW", _FILL).replace("BODY", plain)
    script = """<script>window.seen = []; const where = (find) => {
      const frame = document.querySelector('iframe'), doc = frame ? frame.contentDocument : document;
      const inner = window.inner || doc.getElementById('s'), place = find(inner);
      for (const type of ['input', 'change']) inner['on' + type] = () => seen.push(type);
      window.select = inner;
      const r = place.getBoundingClientRect(), f = frame && frame.getBoundingClientRect();
      return [r.x + 5 + (f ? f.x + frame.clientLeft : 0), r.y + 8 + (f ? f.y + frame.clientTop : 0)];
    }</script>"""
    await page.goto("data:text/html," + quote(f"<!doctype html>{body}{script}"))
    await page.mouse.click(*await page.evaluate("where((s) => s)"))
    await asyncio.sleep(0.05)  # frames that a page which moves by itself draws meanwhile
    await page.mouse.click(*await page.evaluate("where((s) => s.options[1])"))
    return await page.evaluate("[select.value, seen.join()]")


@pytest.mark.parametrize("name", _CASES)
def test_a_list_does_what_the_browsers_own_list_does(
    name: str, results: dict[str, list[str]]
) -> None:
    assert results[name] == results[f"own {name}"]


@pytest.mark.parametrize("name", _DECIDED)
def test_space_takes_an_option_and_escape_takes_none(
    name: str, results: dict[str, list[str]]
) -> None:
    value, _, is_open, focus, events = results[f"decided {name}"]
    assert (value, is_open, focus) == (_DECIDED[name][1], False, "s")
    assert ("change s" in events) == (name == "space")


@pytest.mark.parametrize("name", _PLACES)
def test_an_option_can_be_clicked_wherever_its_list_stands(
    name: str, results: dict[str, list[str]]
) -> None:
    assert results[name] == ["two", "input,change"]


@pytest.mark.parametrize("kind", _TYPED)
def test_what_is_typed_goes_to_the_field_and_not_to_its_calendar(
    kind: str, results: dict[str, list[str]]
) -> None:
    assert results[kind] == [_TYPED[kind][1]] * 2
