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
from webrl.browser.clipboard import Clipboard
from webrl.browser.config import BrowserConfig
from webrl.browser.live_browser import LiveBrowser
from webrl.browser.page import LivePage
from webrl.errors import BrowserFault
from webrl.tasks import Task, Viewport

if TYPE_CHECKING:
    from playwright.async_api import ProxySettings

_ADOPTION_TRIES = 75
_ADOPTION_PAUSE_S = 0.02


@cache
def _init_script() -> str:
    scripts = ("select_popup.js", "clipboard.js")
    folder = Path(__file__).parent
    return "\n".join((folder / name).read_text(encoding="utf-8") for name in scripts)


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
        self.clipboard = Clipboard()
        self._context = context
        self._calls = calls
        self._tasks = tasks
        self._config = config
        self._viewport: Viewport = task.viewport
        self.allows_private = task.allow_private
        self._is_shared = task.reset != "new_context"
        self._is_closed = False
        self._stack: list[LivePage] = []
        self._own: set[Page] = set()
        self._wrappers: dict[Page, LivePage] = {}
        self._num_joining = 0
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
            BrowserFault: It could not be made within its deadline.
        """
        context = await calls.run(
            browser.browser.new_context(
                viewport={"width": task.viewport.width, "height": task.viewport.height},
                device_scale_factor=1,
                accept_downloads=False,
                service_workers="block",
                locale=config.locale,
                user_agent=config.user_agent,
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
        except BaseException:  # a cancelled creation too: nobody else closes the context
            await live.aclose()
            raise
        return live

    async def open_page(self) -> LivePage:
        """Open a blank page.

        Raises:
            BrowserFault: It could not be made within its deadline.
        """
        self._no_opening.clear()
        try:
            opened = await self._calls.run(
                self._context.new_page(),
                self._config.deadlines.create_s,
                "new page",
                dispose=lambda late: late.close(),
            )
            self._own.add(opened)
        finally:
            self._no_opening.set()
        page = self._wrap(opened)
        await page.attach()
        page.viewport = self._viewport
        if not self._is_shared:
            self._stack.append(page)
        return page

    async def active_page(self, root: LivePage) -> LivePage:
        """Return the newest open page of the episode that started in `root`.

        Waits for pages that the browser has announced and Playwright has not handed over yet.

        Raises:
            BrowserFault: Every page is gone.
        """
        if self._is_shared:
            return root
        for _ in range(_ADOPTION_TRIES):
            if not self._unknown(root):
                break
            await asyncio.sleep(_ADOPTION_PAUSE_S)
        else:
            for target in self._unknown(root):
                root.events.note("popup", "closed: it never loaded")
                await self.browser.close_target(target, self._config.deadlines.close_s)
        while len(self._stack) > 1 and not self._stack[-1].is_usable:
            root.events.adopt(self._stack.pop().events.take())
        if not self._stack:
            raise BrowserFault("page_crashed", "every page of the episode is closed")
        return self._stack[-1]

    def _unknown(self, root: LivePage) -> set[str]:
        """Return the targets of this context that are on no page of the stack."""
        return self.browser.unknown_pages(root.target_id, {p.target_id for p in self._stack})

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

    def _wrap(self, page: Page) -> LivePage:
        """Return the one wrapper of `page`, made when it is first heard of."""
        if page not in self._wrappers:
            self._wrappers[page] = LivePage(
                page, self.browser, self._calls, self._tasks, self._config, self.clipboard
            )
            page.once("close", self._forget)
        return self._wrappers[page]

    def _forget(self, page: Page) -> None:
        self._wrappers.pop(page, None)
        self._own.discard(page)

    def _on_page(self, page: Page) -> None:
        self._tasks.create_task(quietly(self._join(self._wrap(page)), "popup"))

    async def _join(self, live: LivePage) -> None:
        """Put a page that a page opened on the stack, or close it."""
        await self._no_opening.wait()
        if live.page in self._own:
            return
        if not live.page.url:
            await live.aclose()  # opened for a file or an address that never answered
            return
        num_open = sum(known.is_usable for known in self._stack) + self._num_joining
        if self._is_shared or num_open >= self._config.max_pages_per_context:
            why = "the task keeps to one page" if self._is_shared else "too many pages are open"
            for page in self._own:
                self._wrappers[page].events.note("popup", f"closed: {why}")
            await live.aclose()
            return
        live.viewport = self._viewport
        live.events.note("popup", f"a new page opened: {live.page.url}")
        self._num_joining += 1
        try:
            await live.attach()
            self._stack.append(live)
        finally:
            self._num_joining -= 1
            if live not in self._stack and self._stack:
                self._stack[0].events.adopt(live.events.take())
