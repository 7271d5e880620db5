"""One running driver, and one browser with its DevTools socket: a process of ours, or elsewhere.

Invariants:

* a start-up that fails half-way closes what it had started, whatever failed;
* both know their process ids, so both can be ended when they do not answer;
* of a browser elsewhere only the connection is ours: it is closed, never the browser;
* a lost browser is lost for good: a new one is a new object.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import os
import time
from collections.abc import Callable, Set
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
from playwright.async_api import Browser, Playwright, async_playwright

from webrl.browser.calls import Calls, quietly
from webrl.browser.chromium import find_chromium, headless_switches
from webrl.browser.config import BrowserConfig
from webrl.browser.devtools import DevTools
from webrl.browser.processes import (
    browser_environment,
    kill_owned,
    kill_tree,
    make_private_folder,
    owned_processes,
    remove_folder,
    temporary_folder_for_children,
)
from webrl.browser.relay import FIRST_OWN_ID, Relay
from webrl.browser.remote import find_endpoint, with_secrets
from webrl.errors import BrowserFault

logger = logging.getLogger(__name__)

SWITCHES = (
    "--remote-debugging-port=0",
    "--disable-lcd-text",
    "--disable-quic",
    "--disable-smooth-scrolling",
    "--force-webrtc-ip-handling-policy=disable_non_proxied_udp",
    "--js-flags=--max-old-space-size=1024",
)
"""Beyond Playwright's own: a DevTools port on loopback, grey instead of coloured text edges, no way
around the guard by UDP, a wheel that scrolls at once and not for a while after its episode, and a
page that fills its heap crashes at 1 GiB instead of at 4."""

NO_UDP = "--force-webrtc-ip-handling-policy=disable_non_proxied_udp"
"""Of these switches the one whose lack leaves a way around the guard; a browser that runs elsewhere
has the switches that it was started with."""

_NUMBERS = itertools.count(1)
_PORT_FILE = "DevToolsActivePort"


class Driver:
    """One Playwright driver process with a private temporary folder."""

    def __init__(self, playwright: Playwright, folder: Path, calls: Calls) -> None:
        """Wrap a started driver; use `start`."""
        self.playwright = playwright
        self.folder = folder
        self.num_episodes = 0
        self.is_suspect = False
        self._calls = calls

    @classmethod
    async def start(cls, calls: Calls, config: BrowserConfig) -> Driver:
        """Start a driver.

        Raises:
            BrowserFault: It did not start within its deadline.
        """
        folder = make_private_folder()
        try:
            async with temporary_folder_for_children(folder):
                playwright = await calls.run(
                    async_playwright().start(), config.deadlines.launch_s, "driver start"
                )
        except BaseException:  # a cancelled start too: the processes would outlive it
            kill_owned(folder)
            remove_folder(folder)
            raise
        return cls(playwright, folder, calls)

    async def aclose(self, deadline_s: float) -> None:
        """End the driver and everything it started, and remove its folder."""
        await quietly(self._calls.run(self.playwright.stop(), deadline_s, "driver stop"), "driver")
        self.destroy()

    def destroy(self) -> None:
        """End whatever of the driver and its browsers still runs, at once."""
        if owned_processes(self.folder):
            kill_owned(self.folder)
        remove_folder(self.folder)


class LiveBrowser:
    """One browser: a process of ours, or the connection to one elsewhere."""

    def __init__(
        self,
        driver: Driver,
        browser: Browser,
        devtools: DevTools,
        pid: int,
        calls: Calls,
        serving: asyncio.Task[None] | None = None,
    ) -> None:
        """Wrap a running browser; use `launch` or `connect`."""
        self.number = next(_NUMBERS)
        """Its own among all of this process."""
        self._serving = serving
        self.driver = driver
        self.browser = browser
        self.devtools = devtools
        self.pid = pid
        self.num_contexts = 0
        self.started_s = time.monotonic()
        self.num_open_contexts = 0
        self.is_retired = False
        self.reason_of_crash = ""
        self._calls = calls
        self._contexts_of_pages: dict[str, str] = {}
        devtools.listen("Target.targetCreated", self._on_created)
        self._crash_listeners: dict[str, Callable[[], None]] = {}
        devtools.listen("Target.targetDestroyed", self._on_destroyed)
        devtools.listen("Target.targetCrashed", self._on_crashed)

    @classmethod
    async def launch(
        cls, driver: Driver, calls: Calls, tasks: asyncio.TaskGroup, config: BrowserConfig
    ) -> LiveBrowser:
        """Launch a browser under `driver` and open its DevTools socket.

        Raises:
            PreflightError: There is no Chromium.
            BrowserFault: It did not start within its deadline.
        """
        path = config.executable_path or str(find_chromium(headless=config.headless))
        known = _port_files(driver.folder)
        try:
            browser = await calls.run(
                driver.playwright.chromium.launch(
                    executable_path=path,
                    args=[*SWITCHES, *headless_switches(config.headless), *config.extra_args],
                    env=browser_environment(driver.folder),
                ),
                config.deadlines.launch_s,
                f"launch of {path}",
                dispose=lambda late: late.close(),
            )
        except BrowserFault as fault:
            if fault.kind in ("timeout", "driver_lost"):
                raise
            raise BrowserFault("browser_lost", fault.detail) from fault
        try:
            address = await _devtools_address(driver.folder, known)
            devtools = await DevTools.connect(address)
            tasks.create_task(devtools.read())
            pid = await _process_id(devtools, config.deadlines.evaluate_s)
            live = cls(driver, browser, devtools, pid, calls)
            await _discover_pages(devtools, config.deadlines.evaluate_s)
        except BaseException:  # a cancelled launch too: nobody else closes the browser
            await quietly(
                calls.run(browser.close(), config.deadlines.close_s, "browser close"), "launch"
            )
            raise
        return live

    @classmethod
    async def connect(
        cls,
        driver: Driver,
        calls: Calls,
        tasks: asyncio.TaskGroup,
        config: BrowserConfig,
        address: str,
    ) -> LiveBrowser:
        """Connect to a browser that runs elsewhere.

        Args:
            address: With the names of its secrets, which messages may hold.

        Raises:
            PreflightError: The environment lacks a secret.
            BrowserFault: It can not be reached (`browser_lost`), or the driver is gone.
        """
        deadline_s, limits = config.deadlines.launch_s, config.deadlines
        full = with_secrets(address, os.environ)
        endpoint = await find_endpoint(full, name=address, deadline_s=deadline_s)
        relay = await Relay.open(endpoint, name=address, deadline_s=deadline_s)
        serving = tasks.create_task(relay.serve())
        try:
            devtools = await DevTools.connect(relay.own_url, first_id=FIRST_OWN_ID)
            tasks.create_task(devtools.read())
            await devtools.enter_own_session(limits.create_s)
            browser = await calls.run(
                driver.playwright.chromium.connect_over_cdp(
                    relay.driver_url, timeout=deadline_s * 1000
                ),
                deadline_s + 1.0,
                f"connection to {address}",
                dispose=lambda late: late.close(),
            )
            live = cls(driver, browser, devtools, 0, calls, serving)
            await _discover_pages(devtools, limits.evaluate_s)
            if config.is_guarded and NO_UDP not in await live.command_line(limits.evaluate_s):
                logger.warning(
                    "the browser at %s was started without %s: its pages may send UDP around the "
                    "guard",
                    address,
                    NO_UDP,
                )
        except BaseException as error:  # a cancelled connect too: nobody else closes the sockets
            serving.cancel()
            if isinstance(error, BrowserFault) and error.kind != "driver_lost":
                raise BrowserFault("browser_lost", f"{address}: {error.detail}") from error
            raise
        return live

    @property
    def is_remote(self) -> bool:
        """Return whether it runs elsewhere: it has no process and no memory here."""
        return self._serving is not None

    async def command_line(self, deadline_s: float) -> str:
        """Return what the browser was started with, empty where it does not say.

        Raises:
            BrowserFault: The browser is gone.
        """
        try:
            found = await self.devtools.call(None, "SystemInfo.getInfo", {}, deadline_s=deadline_s)
        except BrowserFault as fault:
            if fault.kind == "browser_lost":
                raise
            return ""
        return str(found.get("commandLine", ""))

    @property
    def is_alive(self) -> bool:
        """Return whether pages can still be used."""
        return self.devtools.is_open and self.browser.is_connected()

    @property
    def is_usable(self) -> bool:
        """Return whether new contexts shall be made in it."""
        return self.is_alive and not self.is_retired and not self.driver.is_suspect

    def unknown_pages(self, target: str, known: Set[str]) -> set[str]:
        """Return the pages of `target`'s context that are not in `known`, by target."""
        context = self._contexts_of_pages.get(target)
        return {t for t, c in self._contexts_of_pages.items() if c == context} - known

    def on_crash(self, target: str, listener: Callable[[], None]) -> None:
        """Call `listener` when the process of page `target` ends."""
        self._crash_listeners[target] = listener

    async def close_target(self, target: str, deadline_s: float) -> None:
        """Close a page that Playwright never handed over; one that stays is left to its context."""
        try:
            await self.devtools.call(
                None, "Target.closeTarget", {"targetId": target}, deadline_s=deadline_s
            )
        except BrowserFault as fault:
            logger.debug("closing an unknown page: %s", fault)

    async def answers(self, deadline_s: float) -> bool:
        """Return whether the browser process answers within the deadline."""
        try:
            await self.devtools.call(None, "Browser.getVersion", {}, deadline_s=deadline_s)
        except BrowserFault:
            return False
        return True

    async def is_well(self, deadline_s: float) -> bool:
        """Return whether the browser and its driver answer, each within the deadline."""
        opened = self._calls.run(
            self.browser.new_browser_cdp_session(),
            deadline_s,
            "driver check",
            dispose=lambda late: late.detach(),
        )
        try:
            session = await opened
            await self._calls.run(session.detach(), deadline_s, "driver check")
        except BrowserFault:
            return False
        return await self.answers(deadline_s)

    async def aclose(self, deadline_s: float) -> None:
        """Close the browser, by force past the deadline."""
        if self.is_alive:
            await quietly(
                self._calls.run(self.browser.close(), deadline_s, "browser close"), "browser"
            )
        await self.devtools.aclose()
        if self._serving is not None:
            self._serving.cancel()
            return
        if psutil.pid_exists(self.pid):
            kill_tree(self.pid)

    def _on_created(self, event: dict[str, Any]) -> None:
        info = event["targetInfo"]
        self._contexts_of_pages[info["targetId"]] = info.get("browserContextId", "")

    def _on_destroyed(self, event: dict[str, Any]) -> None:
        self._contexts_of_pages.pop(event["targetId"], None)
        self._crash_listeners.pop(event["targetId"], None)

    def _on_crashed(self, event: dict[str, Any]) -> None:
        listener = self._crash_listeners.pop(event["targetId"], None)
        if listener is not None:
            listener()

    def kill(self) -> None:
        """End the browser, or the connection to it, now; every call then fails: `browser_lost`."""
        if self._serving is not None:
            self._serving.cancel()
            return
        kill_tree(self.pid)


async def _discover_pages(devtools: DevTools, deadline_s: float) -> None:
    parameters = {"discover": True, "filter": [{"type": "page"}]}
    await devtools.call(None, "Target.setDiscoverTargets", parameters, deadline_s=deadline_s)


def _port_files(folder: Path) -> set[Path]:
    return set(folder.glob(f"*/{_PORT_FILE}"))


async def _devtools_address(folder: Path, known: set[Path]) -> str:
    """Return the socket address that a new browser wrote into its profile."""
    for _ in range(100):
        for file in _port_files(folder) - known:
            with suppress(OSError, ValueError):
                port, path = file.read_text().split()
                return f"ws://127.0.0.1:{int(port)}{path}"
        await asyncio.sleep(0.02)
    raise BrowserFault("browser_lost", "the browser opened no DevTools port")


async def _process_id(devtools: DevTools, deadline_s: float) -> int:
    found = await devtools.call(None, "SystemInfo.getProcessInfo", {}, deadline_s=deadline_s)
    return next(int(p["id"]) for p in found["processInfo"] if p["type"] == "browser")
