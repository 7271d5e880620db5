"""One browser context: what the pages of one episode, or of many in a row, share.

Invariants:

* downloads are refused, service workers are blocked, no permission is granted;
* a context never outlives its browser, and its pages never outlive it;
* pages that a page opens join the stack; the newest is the active one, up to a limit.
"""

from __future__ import annotations

import asyncio

from playwright.async_api import BrowserContext

from webrl.browser.calls import Calls, quietly
from webrl.browser.config import BrowserConfig
from webrl.browser.live_browser import LiveBrowser
from webrl.browser.page import LivePage
from webrl.tasks import Viewport


class LiveContext:
    """One context with its pages."""

    def __init__(
        self,
        context: BrowserContext,
        browser: LiveBrowser,
        calls: Calls,
        tasks: asyncio.TaskGroup,
        config: BrowserConfig,
        viewport: Viewport,
    ) -> None:
        """Wrap a context; use `create`."""
        self.browser = browser
        self.num_episodes = 0
        self._is_closed = False
        self._context = context
        self._calls = calls
        self._tasks = tasks
        self._config = config
        self._viewport = viewport

    @classmethod
    async def create(
        cls,
        browser: LiveBrowser,
        calls: Calls,
        tasks: asyncio.TaskGroup,
        config: BrowserConfig,
        viewport: Viewport,
    ) -> LiveContext:
        """Make a context in `browser` whose pages have `viewport`.

        Raises:
            BrowserFault: it could not be made within its deadline.
        """
        context = await calls.run(
            browser.browser.new_context(
                viewport={"width": viewport.width, "height": viewport.height},
                device_scale_factor=1,
                accept_downloads=False,
                service_workers="block",
                locale="en-US",
                timezone_id="UTC",
            ),
            config.deadlines.create_s,
            "new context",
            dispose=lambda late: late.close(),
        )
        browser.num_contexts += 1
        browser.num_open_contexts += 1
        return cls(context, browser, calls, tasks, config, viewport)

    async def open_page(self) -> LivePage:
        """Open a blank page.

        Raises:
            BrowserFault: it could not be made within its deadline.
        """
        page = await LivePage.open(
            self._context, self.browser, self._calls, self._tasks, self._config
        )
        page.viewport = self._viewport
        return page

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
