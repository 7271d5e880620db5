"""From an action to real, trusted input.

Invariants:

* coordinates go from the grid to the viewport in one place;
* pointer events of one action are sent in one go, in order: the browser queues them;
* an action that the page ignores is no error.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from urllib.parse import urlsplit

from webrl.actions import (
    Action,
    DoubleClick,
    Drag,
    GoBack,
    Hover,
    LeftClick,
    Navigate,
    Press,
    Scroll,
    TypeText,
    Wait,
    to_pixels,
)
from webrl.browser.calls import Calls
from webrl.browser.clipboard import is_paste
from webrl.browser.config import BrowserConfig
from webrl.browser.devtools import Parameters
from webrl.browser.keyboard import chord_calls, text_calls
from webrl.browser.page import MOUSE_EVENT, LivePage
from webrl.errors import BrowserFault

_DRAG_STEPS = 5
_KEYS_AT_ONCE = 400
"""Events that share one deadline: a long text takes as long as the page needs for it."""
_HELD: Parameters = {"button": "left", "buttons": 1}
_MouseCall = tuple[str, Parameters]


class Performer:
    """Performs actions on a page; `Answer` and `InvalidAction` never reach it."""

    def __init__(
        self,
        calls: Calls,
        config: BrowserConfig,
        sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
    ) -> None:
        """Perform with the deadlines of `config`; `sleep` serves the action `wait()`."""
        self._calls = calls
        self._config = config
        self._sleep = sleep

    async def perform(self, page: LivePage, action: Action) -> None:
        """Do `action` on `page`.

        Raises:
            BrowserFault: The page or its browser failed.
        """
        if isinstance(action, Navigate) and (reason := self._refusal(page, action.url)):
            page.events.note("refused", reason)
        elif isinstance(action, Wait):
            await self._sleep(self._config.wait_s)
        elif isinstance(action, TypeText | Press):
            await self._keyboard(page, action)
        elif isinstance(action, Navigate):
            await self._navigate(page, action.url)
        elif isinstance(action, GoBack):
            if not await self.go_back(page):
                page.events.note("no_effect", "there is no page to go back to")
        elif isinstance(action, Drag):
            await self._drag(page, action)
        else:
            await page.send(_pointer_calls(page, action), self._config.deadlines.input_s)

    async def _drag(self, page: LivePage, action: Drag) -> None:
        """Press, move and release; what the page itself drags is carried along and dropped."""
        size = {"width": page.viewport.width, "height": page.viewport.height}
        start = to_pixels(action.x, action.y, **size)
        end = to_pixels(action.to_x, action.to_y, **size)
        path = [
            (start[0] + (end[0] - start[0]) * share, start[1] + (end[1] - start[1]) * share)
            for share in (step / _DRAG_STEPS for step in range(1, _DRAG_STEPS + 1))
        ]
        moves = [(MOUSE_EVENT, {**_mouse("mouseMoved", *point)[1], **_HELD}) for point in path]
        calls: list[_MouseCall] = [
            ("Input.setInterceptDrags", {"enabled": True}),
            _mouse("mouseMoved", *start),
            _mouse("mousePressed", *start, 1),
            moves[0],  # alone: moves of one frame become one, and most drags start at the first
        ]
        deadline_s = self._config.deadlines.input_s
        dragged = await page.send_and_see(calls, "Input.dragIntercepted", deadline_s)
        if not dragged:
            dragged = await page.send_and_see(moves[1:], "Input.dragIntercepted", deadline_s)
        if dragged:
            # From here on no mouse event comes any more, as where the window system drags.
            steps = [
                ("dragEnter", path[0]),
                *(("dragOver", point) for point in path),
                ("drop", end),
            ]
            calls = [_drag_call(kind, *point, dragged[-1]["data"]) for kind, point in steps]
        else:
            calls = [_mouse("mouseReleased", *end, 1)]
        await page.send(calls, deadline_s)

    def _refusal(self, page: LivePage, url: str) -> str | None:
        """Return why `url` may not be opened from `page`."""
        if page.stays_on is not None and not url.startswith(page.stays_on):
            return f"this task stays on {page.stays_on}"
        return refusal(url)

    async def _keyboard(self, page: LivePage, action: TypeText | Press) -> None:
        if isinstance(action, TypeText):
            calls = text_calls(action.text)
        elif (calls := chord_calls(action.key)) is None:
            page.events.note("no_effect", f"there is no key {action.key!r}")
            return
        elif is_paste(action.key):
            await page.prepare_paste()
        for start in range(0, len(calls), _KEYS_AT_ONCE):
            await page.send(calls[start : start + _KEYS_AT_ONCE], self._config.deadlines.input_s)

    async def go_back(self, page: LivePage) -> bool:
        """Go back one page in the history; return whether there was one.

        Raises:
            BrowserFault: The page or its browser failed.
        """
        if not await page.can_go_back():
            return False
        await page.fetch_copied()
        deadline_s = self._config.deadlines.navigate_s
        call = page.page.go_back(wait_until="domcontentloaded", timeout=deadline_s * 1000)
        try:
            await self._calls.run(call, deadline_s + 1.0, "going back")
        except BrowserFault as fault:
            _note_navigation(page, fault)
        return True

    async def _navigate(self, page: LivePage, url: str) -> None:
        await page.fetch_copied()
        try:
            await page.goto(url)
        except BrowserFault as fault:
            _note_navigation(page, fault)


def _note_navigation(page: LivePage, fault: BrowserFault) -> None:
    """Record a failed navigation as an event; anything worse goes on.

    Raises:
        BrowserFault: The page or its browser failed.
    """
    if fault.kind not in ("navigation_error", "page_error", "timeout"):
        raise fault
    page.events.note("navigation_error", fault.detail)


def _pointer_calls(page: LivePage, action: Action) -> list[_MouseCall]:
    width, height = page.viewport.width, page.viewport.height
    assert isinstance(action, LeftClick | DoubleClick | Hover | Scroll)
    x, y = to_pixels(action.x, action.y, width=width, height=height)
    calls = [_mouse("mouseMoved", x, y)]
    if isinstance(action, Scroll):
        dx, dy = action.dx * width / 1000, action.dy * height / 1000
        calls.append(
            (MOUSE_EVENT, {"type": "mouseWheel", "x": x, "y": y, "deltaX": dx, "deltaY": dy})
        )
    elif not isinstance(action, Hover):
        for count in range(1, 3 if isinstance(action, DoubleClick) else 2):
            calls += [_mouse("mousePressed", x, y, count), _mouse("mouseReleased", x, y, count)]
    return calls


def _drag_call(kind: str, x: float, y: float, data: object) -> _MouseCall:
    return "Input.dispatchDragEvent", {"type": kind, "x": x, "y": y, "data": data}


def _mouse(kind: str, x: float, y: float, count: int = 0) -> _MouseCall:
    button = "left" if count else "none"
    return MOUSE_EVENT, {"type": kind, "x": x, "y": y, "button": button, "clickCount": count}


ALLOWED_SCHEMES = frozenset({"http", "https"})
"""What `navigate` may open. `about:blank` is of no use to a policy."""


def refusal(url: str) -> str | None:
    """Return why `url` may not be opened, or `None` when it may."""
    if any(ord(character) < 32 for character in url):
        return "an address must hold no control characters"
    try:
        parts = urlsplit(url.strip())
        port = parts.port
    except ValueError as error:
        return f"an address must be well formed: {error}"
    if parts.scheme.lower() not in ALLOWED_SCHEMES:
        return f"an address must start with http:// or https://, got {parts.scheme or 'neither'}"
    if not parts.hostname:
        return "an address must name a host"
    if parts.username is not None or parts.password is not None:
        return "an address must hold no user name or password"
    return None if port is None or port > 0 else "a port must be > 0"
