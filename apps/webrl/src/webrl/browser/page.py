"""One open page: scripts, input and screenshots over DevTools, events from Playwright.

Invariants:

* a page that crashed, closed or opened too many dialogs refuses every further call with the
  fault that says so, and fails the calls that are under way;
* reads that meet a navigation are tried again; input that causes one is not.
"""

from __future__ import annotations

import asyncio
import base64
import logging
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextlib import suppress
from typing import Any

from playwright.async_api import Dialog, Download, FileChooser, Page

from webrl.browser.calls import Calls, quietly
from webrl.browser.clipboard import TAKE, Clipboard
from webrl.browser.config import BrowserConfig
from webrl.browser.devtools import Parameters
from webrl.browser.live_browser import LiveBrowser
from webrl.browser.outcome import Event, EventKind
from webrl.errors import BrowserFault
from webrl.plain_text import without_credentials, without_surrogates
from webrl.tasks import Viewport

logger = logging.getLogger(__name__)
MOUSE_EVENT = "Input.dispatchMouseEvent"
_SHOWN_LENGTH = 200
_READ_WAITS_S = (0.0, 0.0, 0.05, 0.2, 0.5)
"""Before a read is tried again: a page with a bad certificate is exchanged for the browser's own
warning some time after the navigation failed."""
_CLEAR_TAB = "try { sessionStorage.clear(); name = ''; } catch { /* a page without an origin */ }"
_FETCH_DEADLINE_S = 1.0
_MAX_EVENTS = 50
"""Events of one action that are kept: a page can bring about any number."""
_HARMLESS = frozenset({"invalid_action", "no_effect", "refused"})
"""Events that leave a page as it was."""
_MOVING = (
    "Execution context was destroyed",
    "Cannot find context",
    "Inspected target navigated",
    "Not attached to an active page",
    "Unable to capture screenshot",
)
"""Errors of a read that met a navigation, or a page not drawn yet: worth another try."""


def _is_moving(fault: BrowserFault) -> bool:
    return any(text in fault.detail for text in _MOVING)


class LivePage:
    """One page of one context."""

    def __init__(
        self,
        page: Page,
        browser: LiveBrowser,
        calls: Calls,
        tasks: asyncio.TaskGroup,
        config: BrowserConfig,
        clipboard: Clipboard,
    ) -> None:
        """Listen to a page at once, so that no event is missed; calls need `attach` first."""
        self.page = page
        self.clipboard = clipboard
        self.target_id = ""
        self.viewport = Viewport()
        self.stays_on: str | None = None
        self.loaded_url: str | None = None
        self.shown_url: str | None = None
        self.num_episodes = 0
        self._session = ""
        self._browser = browser
        self._calls = calls
        self._config = config
        self.events = PageEvents(page, calls, tasks, config, self.aclose)
        page.on("crash", self._fail)

    async def attach(self) -> None:
        """Open the DevTools session of the page.

        Raises:
            BrowserFault: The page is gone, or does not answer.
        """
        deadline_s, calls = self._config.deadlines.create_s, self._calls
        session = await calls.run(
            self.page.context.new_cdp_session(self.page), deadline_s, "attach"
        )
        info = await calls.run(session.send("Target.getTargetInfo"), deadline_s, "target")
        await calls.run(session.detach(), deadline_s, "detach")
        target_id = info["targetInfo"]["targetId"]
        attached = await self._browser.devtools.call(
            None,
            "Target.attachToTarget",
            {"targetId": target_id, "flatten": True},
            deadline_s=deadline_s,
        )
        self._session = attached["sessionId"]
        self.target_id = target_id
        self._browser.on_crash(target_id, self._fail)

    @property
    def is_usable(self) -> bool:
        """Return whether calls can be made."""
        return self.events.fault is None and self._browser.is_alive

    async def send(self, calls: Sequence[tuple[str, Parameters]], deadline_s: float) -> None:
        """Send input in one go and wait until the page has it.

        What was copied is asked for first, and nobody waits for the answer: a page between two
        documents takes input and runs no script.

        Input that makes the page go elsewhere may stay unanswered: that is its effect, no fault.

        Raises:
            BrowserFault: The page or its browser failed, or the deadline was missed.
        """
        try:
            await self._browser.devtools.post(self._session, *TAKE, self._keep_copied)
            await self._call(calls, deadline_s)
        except BrowserFault as fault:
            if not _is_moving(fault):
                raise

    async def send_and_see(
        self, calls: Sequence[tuple[str, Parameters]], event: str, deadline_s: float
    ) -> list[dict[str, Any]]:
        """Send input as `send` does; return the parameters of each `event` that it led to.

        Raises:
            BrowserFault: The page or its browser failed, or the deadline was missed.
        """
        with self._browser.devtools.collecting(self._session, event) as seen:
            await self.send(calls, deadline_s)
            await self.evaluate("0")  # an input may be answered before its events, this is not
        return seen

    async def fetch_copied(self) -> None:
        """Bring what was copied in this document to the clipboard, before it is left.

        A page that does not answer has nothing to give, and what comes next will say why.
        """
        with suppress(BrowserFault):
            self._keep_copied((await self._call([TAKE], _FETCH_DEADLINE_S))[0])

    def _keep_copied(self, answer: dict[str, Any]) -> None:
        self.clipboard.keep(answer["result"].get("value"))

    async def prepare_paste(self) -> None:
        """Give the document what was copied last, here or in another one of the episode."""
        await self.fetch_copied()
        with suppress(BrowserFault):
            await self._call([self.clipboard.call_before_paste()], _FETCH_DEADLINE_S)

    async def evaluate(self, script: str, *, sees_listeners: bool = False) -> Any:
        """Return the JSON value of a JavaScript expression, promises awaited.

        Args:
            sees_listeners: Whether the script may ask `getEventListeners`.

        Raises:
            BrowserFault: The script threw (`page_error`), or the page did not answer.
        """
        parameters = {
            "expression": script,
            "returnByValue": True,
            "awaitPromise": True,
            "includeCommandLineAPI": sees_listeners,
        }
        calls: list[tuple[str, Parameters]] = [("Runtime.evaluate", parameters)]
        answer = (await self._read(calls, self._config.deadlines.evaluate_s))[0]
        if "exceptionDetails" in answer:
            details = answer["exceptionDetails"]
            text = details.get("exception", {}).get("description") or details.get("text", "")
            raise BrowserFault("page_error", f"script threw: {text[:_SHOWN_LENGTH]}")
        return answer["result"].get("value")

    async def screenshot(self) -> bytes:
        """Return the encoded viewport.

        Raises:
            BrowserFault: The page did not answer.
        """
        parameters: dict[str, object] = {"format": self._config.screenshot_format}
        if self._config.screenshot_format == "jpeg":
            parameters["quality"] = self._config.jpeg_quality
        else:
            parameters["optimizeForSpeed"] = True
        calls = [("Page.captureScreenshot", parameters)]
        deadline_s = self._config.deadlines.screenshot_s
        try:
            answers = await self._read(calls, deadline_s)
        except BrowserFault as fault:
            if fault.kind != "timeout":
                raise
            await self.stop_loading()  # a page between two documents draws nothing
            answers = await self._read(calls, deadline_s)
        return base64.b64decode(answers[0]["data"])

    async def goto(self, url: str, *, wait_until_load: bool = False) -> int | None:
        """Open `url`, wait for its document (or all of it), and return the site's HTTP status.

        Raises:
            BrowserFault: The page can not be opened.
        """
        deadline_s = self._config.deadlines.navigate_s
        self.events.check()
        self.loaded_url = None
        what = f"opening {url[:_SHOWN_LENGTH]}"
        wait_until = "load" if wait_until_load else "domcontentloaded"
        try:
            response = await self._calls.run(
                self.page.goto(url, wait_until=wait_until, timeout=deadline_s * 1000),
                deadline_s + 1.0,
                what,
            )
        except BrowserFault as fault:
            raise await self._of_navigation(await self.explain(fault)) from fault
        if self.page.url == "about:blank" != url:
            raise BrowserFault("navigation_error", f"{what}: the page stayed blank")
        self.loaded_url = url
        self.events.has_document, self.events.is_disturbed = True, False
        return None if response is None else response.status

    async def explain(self, fault: BrowserFault) -> BrowserFault:
        """Return why a call on the page failed: the browser's end, the page's, or its own reason.

        Playwright says the same of a page that closed and of a browser that is gone.
        """
        known = self.events.fault or fault
        if known.kind not in ("page_crashed", "browser_lost"):
            return known
        lives = await self._browser.answers(self._config.deadlines.evaluate_s)
        return BrowserFault("page_crashed" if lives else "browser_lost", known.detail)

    async def _of_navigation(self, fault: BrowserFault) -> BrowserFault:
        """Return the fault of a failed navigation: the site's, unless the browser hangs."""
        is_slow_site = fault.kind == "timeout" and await self._browser.answers(
            self._config.deadlines.evaluate_s
        )
        if is_slow_site or fault.kind == "page_error":
            return BrowserFault("navigation_error", fault.detail)
        return fault

    async def resize(self, viewport: Viewport) -> None:
        """Give the page another viewport."""
        if viewport != self.viewport:
            size = {"width": viewport.width, "height": viewport.height}
            await self._calls.run(
                self.page.set_viewport_size(size),  # type: ignore[arg-type]
                self._config.deadlines.create_s,
                "resize",
            )
            self.viewport = viewport

    async def clear_storage(self, origin: str) -> None:
        """Remove what the episodes of this page's tab and context stored at `origin`."""
        calls: list[tuple[str, Parameters]] = [
            ("Storage.clearDataForOrigin", {"origin": origin, "storageTypes": "all"}),
            ("Runtime.evaluate", {"expression": _CLEAR_TAB}),
        ]
        await self._read(calls, self._config.deadlines.evaluate_s)

    async def forget(self) -> str:
        """Leave nothing to go back to, to paste or to hover; return the address that is shown."""
        x, y = self.viewport.width - 1, self.viewport.height - 1
        calls: list[tuple[str, Parameters]] = [
            ("Page.getNavigationHistory", {}),
            ("Page.resetNavigationHistory", {}),
            TAKE,
            (MOUSE_EVENT, {"type": "mouseMoved", "x": x, "y": y, "button": "none"}),
        ]
        history = (await self._read(calls, self._config.deadlines.evaluate_s))[0]
        return str(history["entries"][history["currentIndex"]]["url"])

    async def collect_garbage(self) -> None:
        """Free what the page's episodes left in its heap."""
        await self._call([("HeapProfiler.collectGarbage", {})], self._config.deadlines.create_s)

    async def can_go_back(self) -> bool:
        """Return whether the history holds a page before this one.

        Raises:
            BrowserFault: The page did not answer.
        """
        calls = [("Page.getNavigationHistory", {})]
        history = (await self._read(calls, self._config.deadlines.evaluate_s))[0]
        index = int(history["currentIndex"])
        return index > 0 and history["entries"][index - 1]["url"] != "about:blank"

    async def stop_loading(self) -> None:
        """Give up what the page is loading: until then it would answer no script.

        Raises:
            BrowserFault: The page did not answer.
        """
        self.events.note("navigation_error", "the page did not load in time")
        await self._call([("Page.stopLoading", {})], self._config.deadlines.evaluate_s)

    async def aclose(self) -> None:
        """Close the page; one that does not close is left to its context's end."""
        self.events.is_closing = True
        self.events.give_up(BrowserFault("page_crashed", "the page was closed"))
        await quietly(
            self._calls.run(self.page.close(), self._config.deadlines.close_s, "page close"),
            "page",
        )

    def _fail(self, _: Page | None = None) -> None:
        """Give the page up after a crash and release whoever waits for it."""
        why = self._browser.reason_of_crash
        if why:
            logger.warning("%s ended: %s", self.page.url[:_SHOWN_LENGTH], why)
        detail = f"the process of {self.page.url[:_SHOWN_LENGTH]} ended{why and ': '}{why}"
        fault = BrowserFault("page_crashed", detail)
        if self.events.fault is None:
            self.events.note("page_crashed", detail)
        self.events.give_up(fault)
        self._browser.devtools.fail(self._session, fault)

    async def _read(
        self, calls: Sequence[tuple[str, Parameters]], deadline_s: float
    ) -> list[dict[str, Any]]:
        """Make calls that change nothing, again when they met a navigation."""
        for wait_s in _READ_WAITS_S:
            try:
                return await self._call(calls, deadline_s)
            except BrowserFault as fault:
                if not _is_moving(fault):
                    raise
            await asyncio.sleep(wait_s)
        return await self._call(calls, deadline_s)

    async def _call(
        self, calls: Sequence[tuple[str, Parameters]], deadline_s: float
    ) -> list[dict[str, Any]]:
        try:
            self.events.check()
            return await self._browser.devtools.call_all(
                self._session, calls, deadline_s=deadline_s
            )
        except BrowserFault as fault:
            raise await self.explain(fault) from fault


class PageEvents:
    """What happens to one page without being asked for, from the moment it is made.

    Every dialog is answered at once: an open one would block each later call. Events are collected
    until someone takes them, each once. The first fault of a page stays its fault.
    """

    def __init__(
        self,
        page: Page,
        calls: Calls,
        tasks: asyncio.TaskGroup,
        config: BrowserConfig,
        close: Callable[[], Coroutine[Any, Any, None]],
    ) -> None:
        """Listen to `page`; `close` closes it when it is given up."""
        self.fault: BrowserFault | None = None
        self.is_closing = False
        self.has_document = False
        self.is_disturbed = False
        self._page = page
        self._calls = calls
        self._tasks = tasks
        self._config = config
        self._close = close
        self._events: list[Event] = []
        self._num_dialogs = 0
        page.on("dialog", self._on_dialog)
        page.on("close", self._on_close)
        page.on("download", self._on_download)
        page.on("filechooser", self._on_file_chooser)

    def take(self) -> tuple[Event, ...]:
        """Return what happened since the last time, and start a new count of dialogs."""
        events, self._events = tuple(self._events), []
        self._num_dialogs = 0
        return events

    @property
    def has_failed_to_load(self) -> bool:
        """Return whether an address could not be opened since events were taken last."""
        return any(event.kind == "navigation_error" for event in self._events)

    def note(self, kind: EventKind, detail: str) -> None:
        """Record an event."""
        self.is_disturbed |= kind not in _HARMLESS
        if len(self._events) < _MAX_EVENTS:
            text = without_credentials(without_surrogates(detail))
            self._events.append(Event(kind, text[:_SHOWN_LENGTH]))

    def adopt(self, events: tuple[Event, ...]) -> None:
        """Take over what happened in a page that is gone."""
        self._events.extend(events)

    def give_up(self, fault: BrowserFault) -> None:
        """Refuse every further call with `fault`; the first fault stays."""
        if self.fault is None:
            self.fault = fault

    def check(self) -> None:
        """Check that the page can be used.

        Raises:
            BrowserFault: It was given up.
        """
        if self.fault is not None:
            raise BrowserFault(self.fault.kind, self.fault.detail) from self.fault

    def _on_dialog(self, dialog: Dialog) -> None:
        self._num_dialogs += 1
        if self._num_dialogs <= self._config.max_dialogs_per_step:
            self.note("dialog", f"{dialog.type} {dialog.message!r} accepted")
        elif self.fault is None:
            self.give_up(BrowserFault("dialog_storm", f"more than {self._num_dialogs - 1} dialogs"))
            self._tasks.create_task(quietly(self._close(), "page"))
            return
        answer = dialog.accept(dialog.default_value) if dialog.type == "prompt" else dialog.accept()
        self._tasks.create_task(self._finish(answer, "dialog"))

    async def _finish(self, call: Awaitable[object], what: str) -> None:
        await quietly(self._calls.run(call, self._config.deadlines.dialog_s, what), what)

    def _on_close(self, _: Page) -> None:
        if not self.is_closing:
            self.note("page_closed", "the page closed itself")
        self.give_up(BrowserFault("page_crashed", "the page is closed"))

    def _on_download(self, download: Download) -> None:
        self.note("download", f"refused {download.suggested_filename!r}")
        self._tasks.create_task(self._finish(download.cancel(), "download"))
        if self._page.url == "about:blank" and not self.has_document:
            self.give_up(BrowserFault("page_crashed", "the tab was opened for a download alone"))
            self._tasks.create_task(quietly(self._close(), "page"))

    def _on_file_chooser(self, _: FileChooser) -> None:
        self.note("file_chooser", "a file chooser opened; there are no files to choose")
