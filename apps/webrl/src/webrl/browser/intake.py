"""What happens to a page without being asked for: dialogs, downloads, crashes.

Invariants:

* every dialog is answered at once: an open one would block each later call;
* events are collected until someone takes them; each is taken once;
* the first fault of a page stays its fault.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

from playwright.async_api import Dialog, Download, FileChooser, Page

from webrl.browser.calls import Calls, quietly
from webrl.browser.config import BrowserConfig
from webrl.browser.outcome import Event, EventKind
from webrl.errors import BrowserFault

_SHOWN_LENGTH = 200


class PageIntake:
    """Listens to one page from the moment it is made."""

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
        self._page = page
        self._calls = calls
        self._tasks = tasks
        self._config = config
        self._close = close
        self._events: list[Event] = []
        self._num_dialogs = 0
        page.on("dialog", self._on_dialog)
        page.on("crash", self._on_crash)
        page.on("close", self._on_close)
        page.on("download", self._on_download)
        page.on("filechooser", self._on_file_chooser)

    def take(self) -> tuple[Event, ...]:
        """Return what happened since the last time, and start a new count of dialogs."""
        events, self._events = tuple(self._events), []
        self._num_dialogs = 0
        return events

    def note(self, kind: EventKind, detail: str) -> None:
        """Record an event."""
        self._events.append(Event(kind, detail[:_SHOWN_LENGTH]))

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
            BrowserFault: it was given up.
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

    def _on_crash(self, _: Page) -> None:
        self.note("page_crashed", "the page's process ended")
        self.give_up(BrowserFault("page_crashed", "the page's process ended"))

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
