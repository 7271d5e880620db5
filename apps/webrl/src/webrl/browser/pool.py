"""One driver and one browser for all sessions of a worker process.

Invariants:

* at most `num_slots` sessions are open; whoever asks for one more waits;
* concurrent first uses start exactly one browser, and a start that fails leaves no process;
* a browser that is lost costs the episodes that ran in it, nothing else: the next reset of each
  session starts in a new one;
* when the pool closes, its processes are gone and its folders are removed, by force if need be.

Consumes nothing, waits for driver and browser, is unblocked by their answers or by deadlines.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import msgspec
from awrl_rollout import UnwrappedTaskGroup

from webrl.browser.calls import Calls
from webrl.browser.config import BrowserConfig
from webrl.browser.context import LiveContext
from webrl.browser.deadly_pages import DeadlyPages
from webrl.browser.first_screenshots import FirstScreenshots
from webrl.browser.guard import GuardProxy, Trouble
from webrl.browser.live_browser import Driver, LiveBrowser
from webrl.browser.perform import Performer
from webrl.browser.processes import kill_renderer, proportional_bytes, sweep_leftovers
from webrl.browser.recovery import RecoveryLevel
from webrl.browser.session import BrowserSession
from webrl.browser.upstream import UpstreamProxy
from webrl.errors import BrowserFault, RunFailedError
from webrl.tasks import Task, TaskServer

if TYPE_CHECKING:
    from types import TracebackType

    from playwright.async_api import ProxySettings

logger = logging.getLogger(__name__)
_NUM_SHARED_FRAMES = 256
"""First screenshots kept for sharing: more groups than are ever under way at one moment."""
_MIB = 1 << 20


class BrowserPool:
    """Sessions as slots of one browser. Used as `async with BrowserPool(config) as pool:`.

    Args:
        server: A running server of the task pages; the pool runs its own when `None`.
        guard: What stands between pages and the network; the usual one when `None`.
        clock: Seconds, for the restart budget.

    Raises:
        PreflightError: The environment lacks the credentials of the upstream proxy.
    """

    def __init__(
        self,
        config: BrowserConfig | None = None,
        *,
        server: TaskServer | None = None,
        guard: GuardProxy | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Prepare a pool; nothing starts before it is entered."""
        self.config = BrowserConfig() if config is None else config
        self._server = server
        self._clock = clock
        upstream = self.config.upstream
        self._guard = guard or GuardProxy(
            upstream=None if upstream is None else UpstreamProxy(upstream)
        )
        self.frames = (
            FirstScreenshots(_NUM_SHARED_FRAMES) if self.config.share_first_screenshot else None
        )
        self._stack = AsyncExitStack()
        self._free = list(range(self.config.num_slots))
        self._changed = asyncio.Condition()
        self._starting = asyncio.Lock()
        self._driver: Driver | None = None
        self._drivers: list[Driver] = []
        self._browser: LiveBrowser | None = None
        self._retired: list[LiveBrowser] = []
        self._restarts: deque[float] = deque()
        self.deadly_pages = DeadlyPages(self.config.restart_window_s, clock)
        self._num_contexts = 0
        self._num_episodes = 0
        self._num_launches = 0
        self._num_drivers = 0

    async def __aenter__(self) -> BrowserPool:
        """Start the task server; driver and browser start with the first episode."""
        sweep_leftovers()
        await self._stack.__aenter__()
        try:
            self._tasks = await self._stack.enter_async_context(UnwrappedTaskGroup())
            self._calls = Calls(self._tasks)
            self._watch = self._tasks.create_task(self._watch_memory())
            self.performer = Performer(self._calls, self.config)
            await self._stack.enter_async_context(self._guard)
            if self._server is None:
                self._server = await self._stack.enter_async_context(TaskServer())
        except BaseException:  # a cancelled entry too: Python calls no __aexit__ after it
            await self._stack.aclose()
            raise
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """End browser and driver, and remove their folders."""
        try:
            await self._close_browsers()
            for driver in self._drivers:
                await driver.aclose(self.config.deadlines.close_s)
        finally:
            for driver in self._drivers:
                driver.destroy()
            self._calls.cancel_all()
            self._watch.cancel()
            await self._stack.aclose()  # without the error: a task group would wrap it

    async def session(self) -> BrowserSession:
        """Return a new session, once a slot is free. Close it to give the slot back."""
        async with self._changed:
            await self._changed.wait_for(lambda: self._free)
            return BrowserSession(self, self._free.pop(0))

    async def release(self, session: BrowserSession) -> None:
        """Take the slot of `session` back; a second time does nothing."""
        async with self._changed:
            if session.number not in self._free:
                self._free.append(session.number)
                self._changed.notify()

    def address(self, task: Task) -> str:
        """Return the absolute address of a task's page."""
        assert self._server is not None  # set on entry
        return self._server.base_url + task.url if task.url.startswith("/") else task.url

    def trouble_of(self, url: str) -> Trouble | None:
        """Return why the host of `url` was not reached, where the guard knows."""
        host = urlsplit(url).hostname
        return None if host is None else self._guard.trouble_of(host)

    @property
    def num_proxy_failures(self) -> int:
        """Return how often the upstream proxy failed a page."""
        return self._guard.num_upstream_failures

    def check_proxy(self, num_before: int) -> None:
        """Check that the upstream proxy failed no page lately.

        Args:
            num_before: How often it had, earlier.

        Raises:
            BrowserFault: It has since.
        """
        if self._guard.num_upstream_failures > num_before:
            raise BrowserFault("proxy_lost", self._guard.last_upstream_failure)

    def statistics(self) -> PoolStatistics:
        """Return the counts so far."""
        return PoolStatistics(
            num_slots=self.config.num_slots,
            num_open_sessions=self.config.num_slots - len(self._free),
            num_episodes=self._num_episodes,
            num_contexts=self._num_contexts,
            num_browser_launches=self._num_launches,
            num_driver_starts=self._num_drivers,
            num_refused_requests=self._guard.num_refused,
            num_shared_screenshots=0 if self.frames is None else self.frames.num_shared,
        )

    async def browser(self) -> LiveBrowser:
        """Return a living browser, started when there is none.

        Raises:
            PreflightError: There is no Chromium.
            BrowserFault: It could not be started this time.
            RunFailedError: It was restarted too often.
        """
        browser = self._browser
        if browser is None or not browser.is_usable:
            async with self._starting:
                browser = await self._renew()
        self._num_episodes += 1
        browser.driver.num_episodes += 1
        self._recycle_when_due(browser)
        return browser

    async def context(self, browser: LiveBrowser, task: Task) -> LiveContext:
        """Return a new context in `browser` for episodes of `task`.

        Raises:
            BrowserFault: It could not be made.
        """
        context = await LiveContext.create(
            browser, self._calls, self._tasks, self.config, task, self._proxy(task)
        )
        self._num_contexts += 1
        return context

    def _proxy(self, task: Task) -> ProxySettings | None:
        """Return the guard, which the task server's address alone bypasses."""
        if task.allow_private:
            return None
        assert self._server is not None  # set on entry
        own = self._server.base_url.removeprefix("http://")
        return {"server": self._guard.url, "bypass": f"<-loopback>,{own}"}

    async def replace(self, level: RecoveryLevel, browser: LiveBrowser | None) -> bool:
        """Replace browser or driver when it is at fault; return whether it is worth a try.

        A browser that answers is not at fault: other sessions work in it.
        """
        if level is RecoveryLevel.DRIVER and browser is not None and not browser.is_alive:
            browser.driver.is_suspect = True
        if browser is None or not browser.is_alive:
            return True
        if await browser.answers(self.config.deadlines.evaluate_s):
            return False
        logger.warning("browser %d does not answer and is killed", browser.pid)
        browser.kill()
        if level is RecoveryLevel.DRIVER:
            browser.driver.is_suspect = True
        return True

    def ended_browser(self, address: str, browser: LiveBrowser) -> None:
        """Blame a page that was being used when `browser` ended.

        Restarts after a page that is found out are its doing, not the machine's: they leave the
        budget.
        """
        if self.deadly_pages.ended_browser(address, browser.pid):
            for _ in range(min(2, len(self._restarts))):
                self._restarts.pop()

    def _recycle_when_due(self, browser: LiveBrowser) -> None:
        """Retire what is old or large; each session moves on with its next reset."""
        config = self.config
        is_old = time.monotonic() - browser.started_s >= config.max_browser_age_s
        if is_old or browser.num_contexts >= config.recycle_browser_every:
            browser.is_retired = True
        if browser.driver.num_episodes >= config.recycle_driver_every:
            browser.driver.is_suspect = True

    async def _watch_memory(self) -> None:
        """Keep the browsers' memory in bounds while episodes run, for as long as the pool lives."""
        while True:
            await asyncio.sleep(self.config.memory_check_s)
            for browser in (*self._retired, self._browser):
                if browser is not None and browser.is_alive:
                    used = await asyncio.to_thread(proportional_bytes, browser.pid)
                    self._bound_memory(browser, used)

    def _bound_memory(self, browser: LiveBrowser, used: Mapping[int, int]) -> None:
        """Retire a browser that is too large, and end the page that holds most of it."""
        total, limit = sum(used.values()), self.config.max_browser_bytes
        if total <= limit:
            return
        browser.is_retired = True
        pid = max(used, key=lambda pid: used[pid])
        why = (
            f"the browser holds {total // _MIB} MiB, more than {limit // _MIB}, "
            f"{used[pid] // _MIB} of them in this page"
        )
        browser.reason_of_crash = why
        if kill_renderer(pid):
            logger.warning("browser %d is replaced, its largest page ended: %s", browser.pid, why)
        else:
            logger.info("browser %d holds %d MiB and is replaced", browser.pid, total // _MIB)

    async def _renew(self) -> LiveBrowser:
        """Return the current browser, or a new one. Runs under the start lock."""
        if self._browser is not None and self._browser.is_usable:
            return self._browser
        is_planned = self._browser is not None and self._browser.is_alive
        if not is_planned and self._num_drivers:
            self._spend_restart()
        if self._browser is not None:
            self._retired.append(self._browser)
            self._browser = None
        await self._close_retired()
        driver = await self._living_driver()
        try:
            self._browser = await LiveBrowser.launch(driver, self._calls, self._tasks, self.config)
        except BrowserFault:
            driver.is_suspect = True
            raise
        self._num_launches += 1
        return self._browser

    async def _living_driver(self) -> Driver:
        driver = self._driver
        if driver is None or driver.is_suspect:
            self._driver = await Driver.start(self._calls, self.config)
            self._drivers.append(self._driver)
            self._num_drivers += 1
            await self._close_retired()
        assert self._driver is not None
        return self._driver

    async def _close_retired(self) -> None:
        """Close browsers that nobody uses any more, then drivers that have no browser."""
        deadline_s = self.config.deadlines.close_s
        for browser in tuple(self._retired):
            if browser.num_open_contexts == 0 or not browser.is_alive:
                self._retired.remove(browser)
                await browser.aclose(deadline_s)
        used = {browser.driver for browser in self._retired} | {self._driver}
        for driver in tuple(self._drivers):
            if driver not in used:
                self._drivers.remove(driver)
                await driver.aclose(deadline_s)

    async def _close_browsers(self) -> None:
        browsers = [*self._retired, *([self._browser] if self._browser else [])]
        self._retired, self._browser = [], None
        for browser in browsers:
            await browser.aclose(self.config.deadlines.close_s)

    def _spend_restart(self) -> None:
        """Count one restart that nobody planned.

        Raises:
            RunFailedError: The budget is spent.
        """
        now = self._clock()
        while self._restarts and now - self._restarts[0] > self.config.restart_window_s:
            self._restarts.popleft()
        if len(self._restarts) >= self.config.max_restarts:
            raise RunFailedError(
                f"browser restarts must be <= {self.config.max_restarts} within "
                f"{self.config.restart_window_s:g} s, got one more. Look for what ends the browser "
                "(memory limit, missing libraries): start it by hand with --headless."
            )
        self._restarts.append(now)


class PoolStatistics(msgspec.Struct, frozen=True, kw_only=True):
    """Counts since the pool was entered."""

    num_slots: int
    """Sessions that may be open."""
    num_open_sessions: int
    """Sessions that are open."""
    num_episodes: int
    """Episodes that were started, each further try included."""
    num_contexts: int
    """Contexts that were made."""
    num_browser_launches: int
    """Browsers that were launched, the first included."""
    num_driver_starts: int
    """Drivers that were started, the first included."""
    num_refused_requests: int
    """Requests of pages that the guard refused."""
    num_shared_screenshots: int
    """First screenshots that an episode took over from another one."""
