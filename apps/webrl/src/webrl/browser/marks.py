"""Screenshots with numbered elements, for policies that choose among them (set of marks).

Invariants:

* the numbers are drawn for the screenshot only: no action ever meets them;
* a mark's point belongs to its element when the screenshot is taken, and is covered by nothing;
* a number that is not on the screenshot clicks nothing.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

import msgspec

from webrl.actions import ClickMark, LeftClick, to_grid
from webrl.browser.errors import BrowserFault
from webrl.browser.outcome import Mark
from webrl.browser.page import LivePage


@cache
def _script() -> str:
    return Path(__file__).with_name("marks.js").read_text(encoding="utf-8")


async def marked_screenshot(page: LivePage) -> tuple[bytes, tuple[Mark, ...]]:
    """Return the encoded viewport with its elements numbered, and the numbers.

    Raises:
        BrowserFault: the page did not answer.
    """
    found = await page.evaluate(_script().replace("CLEAR", "false"))
    screenshot = await page.screenshot()
    await page.evaluate(_script().replace("CLEAR", "true"))
    try:
        return screenshot, tuple(msgspec.convert(found, list[Mark]))
    except msgspec.ValidationError as error:
        raise BrowserFault("page_error", f"marks are no marks: {error}") from error


def as_click(page: LivePage, action: ClickMark, marks: tuple[Mark, ...]) -> LeftClick | None:
    """Return the click that `action` stands for, or `None` when there is no such mark."""
    for mark in marks:
        if mark.number == action.mark:
            width, height = page.viewport.width, page.viewport.height
            return LeftClick(*to_grid(mark.x, mark.y, width=width, height=height))
    return None
