"""One driver, and one browser or several elsewhere, for all sessions of a worker process.

Invariants:

* at most `num_slots` sessions are open; whoever asks for one more waits;
* concurrent first uses start exactly one browser, and a start that fails leaves no process;
* a browser that is lost costs the episodes that ran in it, nothing else: the next reset of each
  session starts in a new one;
* of browsers elsewhere one that is lost, or does not answer, is left alone for a while, longer each
  time, and the others take over its slots; when all are, whoever needs one waits;
* when the pool closes, its processes are gone and its folders are removed, by force if need be.

Consumes nothing, waits for driver and browser, is unblocked by their answers or by deadlines.
"""

from __future__ import annotations

import asyncio
import logging
import os
import random
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
from webrl.browser.remote import Fleet
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
        self._starting = [asyncio.Lock() for _ in self.config.remotes or ("own",)]
        self._driver_starting = asyncio.Lock()
        self._driver: Driver | None = None
        self._drivers: list[Driver] = []
        self._fleet: Fleet | None = None
        if remotes := self.config.remotes:
            self._fleet = Fleet(len(remotes), clock=clock, generator=random.Random(os.getpid()))
        self._browsers: dict[int, LiveBrowser] = {}  # by place: that of one's own is 0
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
            self._watches = [self._tasks.create_task(self._watch_memory())]
            if self._fleet is not None:
                self._watches.append(self._tasks.create_task(self._watch_health()))
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
            for watch in self._watches:
                watch.cancel()
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
                if self._fleet is not None:
                    self._fleet.release(session.number)
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

    async def browser(self, slot: int = 0) -> LiveBrowser:
        """Return a living browser for the next episode of a slot, started when there is none.

        Raises:
            PreflightError: There is no Chromium, or the environment lacks a secret of one elsewhere.
            BrowserFault: It could not be started this time, or none elsewhere can be reached.
            RunFailedError: It was restarted too often.
        """
        if self._fleet is None:
            browser = await self._living(0)
        else:
            browser = await self._remote(self._fleet, slot)
        self._num_episodes += 1
        browser.driver.num_episodes += 1
        self._recycle_when_due(browser)
        return browser

    async def _living(self, place: int) -> LiveBrowser:
        browser = self._browsers.get(place)
        if browser is None or not browser.is_usable:
            async with self._starting[place]:
                browser = await self._renew(place)
        return browser

    async def _remote(self, fleet: Fleet, slot: int) -> LiveBrowser:
        """Return the browser of a slot; wait for one while all are left alone."""
        give_up_s = self._clock() + self.config.deadlines.launch_s
        why = "all were lost lately"
        while True:
            place = fleet.choose(slot)
            if place is not None:
                try:
                    return await self._living(place)
                except BrowserFault as fault:
                    if fault.kind != "browser_lost":
                        raise
                    why = fault.detail
            elif self._clock() + fleet.wait_s() > give_up_s:
                raise BrowserFault("browser_lost", f"no browser of env.browsers answers: {why}")
            else:
                await asyncio.sleep(fleet.wait_s())

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
        """Return the guard, which the task server's address alone bypasses, if there is one."""
        if task.allow_private or not self.config.is_guarded:
            return None
        assert self._server is not None  # set on entry
        own = self._server.base_url.removeprefix("http://")
        return {"server": self._guard.url, "bypass": f"<-loopback>,{own}"}

    async def replace(self, level: RecoveryLevel, browser: LiveBrowser | None) -> bool:
        """Replace browser or driver when it is at fault; return whether it is worth a try.

        A browser that answers is not at fault: other sessions work in it. Nor is a driver when a
        browser elsewhere is gone: others of the pool are driven by it.
        """
        is_gone = browser is not None and not browser.is_alive and not browser.is_remote
        if level is RecoveryLevel.DRIVER and browser is not None and is_gone:
            browser.driver.is_suspect = True
        if browser is None or not browser.is_alive:
            return True
        if await browser.answers(self.config.deadlines.evaluate_s):
            return False
        logger.warning("browser %d does not answer and is ended", browser.number)
        browser.kill()
        if level is RecoveryLevel.DRIVER:
            browser.driver.is_suspect = True
        return True

    def ended_browser(self, address: str, browser: LiveBrowser) -> None:
        """Blame a page that was being used when `browser` ended, unless only a connection did.

        Restarts after a page that is found out are its doing, not the machine's: they leave the
        budget.
        """
        if browser.is_remote:
            return
        if self.deadly_pages.ended_browser(address, browser.number):
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
            for browser in (*self._retired, *self._browsers.values()):
                if browser.is_alive and not browser.is_remote:
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

    async def _watch_health(self) -> None:
        """Give up the connection to a browser elsewhere that does not answer any more."""
        while True:
            await asyncio.sleep(self.config.health_check_s)
            for place, browser in tuple(self._browsers.items()):
                if not browser.is_alive or await browser.answers(self.config.deadlines.evaluate_s):
                    continue
                logger.warning("the browser at %s does not answer", self.config.remotes[place])
                browser.kill()

    async def _renew(self, place: int) -> LiveBrowser:
        """Return the current browser of a place, or a new one. Runs under its start lock."""
        current = self._browsers.get(place)
        if current is not None and current.is_usable:
            return current
        is_planned = current is not None and current.is_alive
        if self._fleet is None and not is_planned and self._num_drivers:
            self._spend_restart()
        if current is not None:
            self._retired.append(self._browsers.pop(place))
        await self._close_retired()
        if self._fleet is None:
            self._browsers[place] = await self._launch()
        else:
            if current is not None and not is_planned:
                self._lose(self._fleet, place, time.monotonic() - current.started_s, "it was lost")
            self._browsers[place] = await self._connect(self._fleet, place)
        self._num_launches += 1
        return self._browsers[place]

    async def _launch(self) -> LiveBrowser:
        driver = await self._living_driver()
        try:
            return await LiveBrowser.launch(driver, self._calls, self._tasks, self.config)
        except BrowserFault:
            driver.is_suspect = True
            raise

    async def _connect(self, fleet: Fleet, place: int) -> LiveBrowser:
        address = self.config.remotes[place]
        if not fleet.is_ready(place):
            raise BrowserFault("browser_lost", f"{address} was lost and is left alone for a while")
        driver = await self._living_driver()
        try:
            return await LiveBrowser.connect(driver, self._calls, self._tasks, self.config, address)
        except BrowserFault as fault:
            if fault.kind == "driver_lost":
                driver.is_suspect = True
            else:
                self._lose(fleet, place, 0.0, fault.detail)
            raise

    def _lose(self, fleet: Fleet, place: int, lived_s: float, why: str) -> None:
        wait_s = fleet.lose(place, lived_s)
        address = self.config.remotes[place]
        logger.warning("the browser at %s is left alone for %g s: %s", address, wait_s, why)

    async def _living_driver(self) -> Driver:
        async with self._driver_starting:
            driver = self._driver
            if driver is None or driver.is_suspect:
                driver = self._driver = await Driver.start(self._calls, self.config)
                self._drivers.append(driver)
                self._num_drivers += 1
        await self._close_retired()
        return driver

    async def _close_retired(self) -> None:
        """Close browsers that nobody uses any more, then drivers that have no browser."""
        deadline_s = self.config.deadlines.close_s
        idle = [b for b in self._retired if b.num_open_contexts == 0 or not b.is_alive]
        self._retired = [browser for browser in self._retired if browser not in idle]
        for browser in idle:
            await browser.aclose(deadline_s)
        browsers = (*self._retired, *self._browsers.values())
        used = {browser.driver for browser in browsers} | {self._driver}
        unused = [driver for driver in self._drivers if driver not in used]
        self._drivers = [driver for driver in self._drivers if driver in used]
        for driver in unused:
            await driver.aclose(deadline_s)

    async def _close_browsers(self) -> None:
        browsers = [*self._retired, *self._browsers.values()]
        self._retired, self._browsers = [], {}
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
