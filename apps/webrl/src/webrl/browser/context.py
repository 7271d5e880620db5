"""One browser context: what the pages of one episode, or of many in a row, share.

Invariants:

* downloads are refused, service workers are blocked, no permission is granted, and the network
  is reached through the guard only (but for the task server, and for tasks that may do more);
* a context never outlives its browser, and its pages never outlive it;
* of a single episode's context, pages that a page opens join a stack whose top is the active
  one, up to a limit; of a shared context they are closed at once.
"""

from __future__ import annotations

import asyncio
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from playwright.async_api import BrowserContext, Page

from webrl.browser.calls import Calls, quietly
from webrl.browser.config import BrowserConfig
from webrl.browser.errors import BrowserFault
from webrl.browser.live_browser import LiveBrowser
from webrl.browser.page import LivePage
from webrl.tasks import Task, Viewport

if TYPE_CHECKING:
    from playwright.async_api import ProxySettings

_ADOPTION_TRIES = 100
_ADOPTION_PAUSE_S = 0.02


@cache
def _init_script() -> str:
    return Path(__file__).with_name("select_popup.js").read_text(encoding="utf-8")


class LiveContext:
    """One context with its pages."""

    def __init__(
        self,
        context: BrowserContext,
        browser: LiveBrowser,
        calls: Calls,
        tasks: asyncio.TaskGroup,
        config: BrowserConfig,
        task: Task,
    ) -> None:
        """Wrap a context; use `create`."""
        self.browser = browser
        self.num_episodes = 0
        self._context = context
        self._calls = calls
        self._tasks = tasks
        self._config = config
        self._viewport: Viewport = task.viewport
        self._is_shared = task.reset != "new_context"
        self._is_closed = False
        self._stack: list[LivePage] = []
        self._own: set[Page] = set()
        self._no_opening = asyncio.Event()
        self._no_opening.set()
        context.on("page", self._on_page)

    @classmethod
    async def create(
        cls,
        browser: LiveBrowser,
        calls: Calls,
        tasks: asyncio.TaskGroup,
        config: BrowserConfig,
        task: Task,
        proxy: ProxySettings | None,
    ) -> LiveContext:
        """Make a context in `browser` for episodes of `task`.

        Raises:
            BrowserFault: it could not be made within its deadline.
        """
        context = await calls.run(
            browser.browser.new_context(
                viewport={"width": task.viewport.width, "height": task.viewport.height},
                device_scale_factor=1,
                accept_downloads=False,
                service_workers="block",
                locale="en-US",
                timezone_id="UTC",
                proxy=proxy,
            ),
            config.deadlines.create_s,
            "new context",
            dispose=lambda late: late.close(),
        )
        browser.num_contexts += 1
        browser.num_open_contexts += 1
        live = cls(context, browser, calls, tasks, config, task)
        try:
            await calls.run(
                context.add_init_script(_init_script()), config.deadlines.create_s, "init script"
            )
        except BaseException:
            await live.aclose()
            raise
        return live

    async def open_page(self) -> LivePage:
        """Open a blank page.

        Raises:
            BrowserFault: it could not be made within its deadline.
        """
        self._no_opening.clear()
        try:
            page = await LivePage.open(
                self._context, self.browser, self._calls, self._tasks, self._config
            )
            self._own.add(page.page)
        finally:
            self._no_opening.set()
        page.viewport = self._viewport
        if not self._is_shared:
            self._stack.append(page)
        return page

    async def active_page(self, root: LivePage) -> LivePage:
        """Return the newest open page of the episode that started in `root`.

        Waits for pages that the browser has announced and Playwright has not handed over yet.

        Raises:
            BrowserFault: every page is gone.
        """
        if self._is_shared:
            return root
        for _ in range(_ADOPTION_TRIES):
            if not self.browser.unknown_pages(root.target_id, {p.target_id for p in self._stack}):
                break
            await asyncio.sleep(_ADOPTION_PAUSE_S)
        while self._stack and not self._stack[-1].is_usable and self._stack[-1] is not root:
            self._stack.pop()
        if not self._stack:
            raise BrowserFault("page_crashed", "every page of the episode is closed")
        return self._stack[-1]

    async def close_top(self, root: LivePage) -> bool:
        """Close the newest page if it is not `root`; return whether there was one."""
        if self._is_shared or not self._stack or self._stack[-1] is root:
            return False
        await self._stack.pop().aclose()
        return True

    async def aclose(self) -> None:
        """Close the context and its pages; a second time does nothing."""
        if self._is_closed:
            return
        self._is_closed = True
        self.browser.num_open_contexts -= 1
        if not self.browser.is_alive:
            return
        await quietly(
            self._calls.run(self._context.close(), self._config.deadlines.close_s, "context close"),
            "context",
        )

    def _on_page(self, page: Page) -> None:
        self._tasks.create_task(quietly(self._join(page), "popup"))

    async def _join(self, page: Page) -> None:
        """Put a page that a page opened on the stack, or close it."""
        await self._no_opening.wait()
        if page in self._own:
            return
        open_pages = [known for known in self._stack if known.is_usable]
        if self._is_shared or len(open_pages) >= self._config.max_pages_per_context:
            for known in open_pages[:1]:
                known.note("popup", "closed: too many pages are open")
            await self._calls.run(page.close(), self._config.deadlines.close_s, "popup close")
            return
        live = await LivePage.adopt(page, self.browser, self._calls, self._tasks, self._config)
        live.viewport = self._viewport
        live.note("popup", f"a new page opened: {page.url}")
        self._stack.append(live)
