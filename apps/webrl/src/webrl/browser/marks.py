"""Screenshots with numbered elements, for policies that choose among them (set of marks).

Invariants:

* the numbers are drawn for the screenshot only: no action ever meets them;
* a click on a mark meets its element, or what belongs to it, as the page is when the screenshot is
  taken: the point is tried where the action will go, through shadow roots and frames of the same
  site;
* nothing that a page shows as dots, nor a one-time code or the data of a card, is in a mark's text;
* a number that is not on the screenshot does nothing.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import msgspec

from webrl.actions import (
    GRID_SIZE,
    Action,
    ClickMark,
    DoubleClick,
    DoubleClickMark,
    Drag,
    DragMark,
    Hover,
    HoverMark,
    LeftClick,
    MarkAction,
    Scroll,
    ScrollMark,
    to_grid,
)
from webrl.browser.outcome import Mark
from webrl.browser.page import LivePage
from webrl.errors import BrowserFault
from webrl.tasks import Viewport, points_script

logger = logging.getLogger(__name__)
_MIDDLE = (GRID_SIZE // 2, GRID_SIZE // 2)
"""Where the mark 0 is: nowhere in particular."""


@cache
def _script(clear: str) -> str:
    script = Path(__file__).with_name("marks.js").read_text(encoding="utf-8")
    parts = {"POINTS": points_script(), "GRID": str(GRID_SIZE), "CLEAR": clear}
    return re.sub(r"\b(POINTS|GRID|CLEAR)\b", lambda found: parts[found[0]], script)


async def marked_screenshot(page: LivePage) -> tuple[bytes, tuple[Mark, ...]]:
    """Return the encoded viewport with its elements numbered, and the numbers.

    A page that has broken its own JavaScript has none.

    Raises:
        BrowserFault: The page did not answer.
    """
    marks, is_drawn = tuple[Mark, ...](), False
    try:
        found = await page.evaluate(_script("false"), sees_listeners=True)
        is_drawn = True
        marks = tuple(msgspec.convert(found, list[Mark]))
    except msgspec.ValidationError as error:
        logger.warning("no marks on %s: %s", page.page.url, error)
    except BrowserFault as fault:
        if fault.kind != "page_error":
            raise
        logger.warning("no marks on %s: %s", page.page.url, fault)
    screenshot = await page.screenshot()
    if is_drawn:
        await page.evaluate(_script("true"))
    return screenshot, marks


def on_page(action: MarkAction, marks: Sequence[Mark], viewport: Viewport) -> Action | int:
    """Return the same action by position, or the first of its marks that is not there.

    Args:
        marks: Numbers of the screenshot that it saw.
        viewport: Size of the page.
    """
    points = {
        mark.number: to_grid(mark.x, mark.y, width=viewport.width, height=viewport.height)
        for mark in marks
    }
    if isinstance(action, ScrollMark):
        point = _MIDDLE if action.mark == 0 else points.get(action.mark)
        return action.mark if point is None else Scroll(*point, action.dx, action.dy)
    point = points.get(action.mark)
    if point is None:
        return action.mark
    match action:
        case ClickMark():
            return LeftClick(*point)
        case DoubleClickMark():
            return DoubleClick(*point)
        case HoverMark():
            return Hover(*point)
        case DragMark(to_mark=number):
            target = points.get(number)
            return number if target is None else Drag(*point, *target)
