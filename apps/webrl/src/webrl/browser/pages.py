"""The pages that a session keeps, and the choice of one for the next episode.

Invariants:

* a `new_context` task gets a context that no other episode has seen or will see;
* the other modes share one context, replaced after a number of episodes that differs from session
  to session, so that the pool never recycles all at once;
* at most `pages_per_session` pages are kept; beyond that, one of them is led to the next task. It is
  drawn: where tasks come in turn, the one that waited longest is just the one that comes next;
* a kept page goes on as it is only where nothing but input happened in it: after a dialog, a popup or
  another document, it is opened again.
"""

from __future__ import annotations

import random
from typing import Protocol

from webrl.browser.arrival import check_arrival, start_fault
from webrl.browser.config import BrowserConfig
from webrl.browser.context import LiveContext
from webrl.browser.first_screenshots import FirstScreenshots
from webrl.browser.guard import Trouble
from webrl.browser.live_browser import LiveBrowser
from webrl.browser.page import LivePage
from webrl.browser.perform import Performer
from webrl.browser.recovery import RecoveryLevel
from webrl.errors import BrowserFault
from webrl.tasks import Task


class Pool(Protocol):
    """What pages and sessions need of their pool."""

    @property
    def config(self) -> BrowserConfig:
        """Return the configuration of all sessions."""
        ...

    @property
    def performer(self) -> Performer:
        """Return what turns actions into input."""
        ...

    async def browser(self, slot: int = 0) -> LiveBrowser:
        """Return a living browser for a slot, started when there is none."""
        ...

    async def context(self, browser: LiveBrowser, task: Task) -> LiveContext:
        """Return a new context for episodes of `task`."""
        ...

    @property
    def frames(self) -> FirstScreenshots | None:
        """Return the shared first screenshots, when they are shared."""
        ...

    async def replace(self, level: RecoveryLevel, browser: LiveBrowser | None) -> bool:
        """Replace browser or driver when it is at fault; return whether it was."""
        ...

    def address(self, task: Task) -> str:
        """Return the absolute address of a task's page."""
        ...

    def trouble_of(self, url: str) -> Trouble | None:
        """Return why the host of `url` was not reached, where that is known."""
        ...

    @property
    def num_proxy_failures(self) -> int:
        """Return how often the upstream proxy failed a page."""
        ...

    def check_proxy(self, num_before: int) -> None:
        """Raise a fault when the upstream proxy failed a page since it had `num_before` times."""
        ...


class PageCache:
    """Contexts and pages of one session."""

    def __init__(self, pool: Pool, number: int) -> None:
        """Keep pages for session `number` of `pool`."""
        self._pool = pool
        self._number = number
        every = pool.config.recycle_context_every
        self._recycle_at = every + number * every // (4 * pool.config.num_slots)
        self._kept: LiveContext | None = None
        self._fresh: LiveContext | None = None
        self.browser: LiveBrowser | None = None
        """The browser of the newest episode, dead or alive."""
        self.newest: LivePage | None = None
        """The page that was opened or led to a task last, dead or alive."""
        self._pages: dict[str, LivePage] = {}  # by address
        self._generator = random.Random(number)

    async def page_for(self, task: Task) -> LivePage:
        """Return a page that shows `task`, ready to start an episode.

        Raises:
            BrowserFault: It can not be had.
        """
        self.browser = browser = await self._pool.browser(self._number)
        await self._leave_others(browser, task)
        await self._close_fresh()
        if task.reset == "new_context":
            self._fresh = await self._pool.context(browser, task)
            page = await self._fresh.open_page()
            await self._load(page, task)
            return page
        return await self._kept_page(browser, task)

    def context_of(self, task: Task) -> LiveContext:
        """Return the context in which the episode of `task` runs."""
        context = self._fresh if task.reset == "new_context" else self._kept
        assert context is not None  # made by `page_for`
        return context

    async def _load(self, page: LivePage, task: Task) -> None:
        """Open the task's page.

        Raises:
            BrowserFault: The site is down, may not be reached, or takes the browser for a robot's;
                or the upstream proxy failed.
        """
        self.newest, num_failures = page, self._pool.num_proxy_failures
        address = self._pool.address(task)
        page.stays_on = address[: -len(task.url)] if task.is_local else None
        if page.stays_on is not None and self.context_of(task).num_episodes > 1:
            await page.clear_storage(page.stays_on)
        try:
            status = await page.goto(address, wait_until_load=task.start_script is not None)
            await check_arrival(page, status)
        except BrowserFault as fault:
            self._pool.check_proxy(num_failures)
            known: tuple[str, Trouble] | None = None
            for url in () if task.allow_private else (address, page.page.url):
                why = self._pool.trouble_of(url)
                known = known if why is None else (url, why)
            raise start_fault(fault, known) from None

    async def drop_page(self, task: Task) -> None:
        """Close the page of `task`, so that the next one is new."""
        await self._close_fresh()
        page = self._pages.pop(task.url, None)
        if page is not None:
            await page.aclose()

    async def clear(self) -> None:
        """Close every context with its pages."""
        self._pages.clear()
        kept, self._kept = self._kept, None
        if kept is not None:
            await kept.aclose()
        await self._close_fresh()

    async def _close_fresh(self) -> None:
        fresh, self._fresh = self._fresh, None
        if fresh is not None:
            await fresh.aclose()

    async def _leave_others(self, browser: LiveBrowser, task: Task) -> None:
        """Close what the next episode must not use: of another browser, too old, too free."""
        kept = self._kept
        if kept is None:
            return
        is_due = kept.num_episodes >= self._recycle_at
        if kept.browser is not browser or is_due or kept.allows_private != task.allow_private:
            await self.clear()

    async def _kept_page(self, browser: LiveBrowser, task: Task) -> LivePage:
        if self._kept is None:
            self._kept = await self._pool.context(browser, task)
        self._kept.num_episodes += 1
        page = self._pages.pop(task.url, None)
        if page is not None and not page.is_usable:
            await page.aclose()
            page = None
        if page is None:
            page = await self._spare_page(self._kept)
        self._pages[task.url] = page
        await page.resize(task.viewport)
        if page.num_episodes and page.num_episodes % self._pool.config.collect_garbage_every == 0:
            await page.collect_garbage()
        address = self._pool.address(task)
        is_left = page.num_episodes > 0 and await page.forget() != page.shown_url
        page.events.take()  # what came too late for the episode before
        is_unfit = is_left or page.loaded_url != address or page.events.is_disturbed
        if task.reset == "reload" or is_unfit:
            await self._load(page, task)
            page.shown_url = await page.forget()
        self._kept.clipboard.clear()
        page.num_episodes += 1
        return page

    async def _spare_page(self, context: LiveContext) -> LivePage:
        """Return a page for another task: a new one, or at capacity one of those that are kept."""
        while len(self._pages) >= self._pool.config.pages_per_session:
            page = self._pages.pop(self._generator.choice([*self._pages]))
            if page.is_usable:
                return page
            await page.aclose()
        return await context.open_page()
