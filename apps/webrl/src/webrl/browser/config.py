"""How browsers are run: one frozen configuration, checked once."""

from __future__ import annotations

from typing import Literal, TypeAlias

import msgspec

from webrl.browser.chromium import Headless
from webrl.browser.upstream import UpstreamConfig
from webrl.errors import ConfigError

ScreenshotFormat: TypeAlias = Literal["png", "jpeg"]


def _above_zero(name: str, value: float) -> None:
    if not value > 0:
        raise ConfigError(f"{name} must be > 0, got {value}. Give a positive number of seconds.")


class Deadlines(msgspec.Struct, frozen=True, kw_only=True):
    """Longest time of each kind of call, in seconds. Playwright itself has none for most."""

    launch_s: float = 30.0
    """Start of a driver or of a browser."""
    create_s: float = 10.0
    """A new context or page."""
    navigate_s: float = 15.0
    """Opening an address, until its document is there."""
    input_s: float = 5.0
    """One action of pointer or keyboard."""
    evaluate_s: float = 3.0
    """One script in a page."""
    screenshot_s: float = 5.0
    """One screenshot."""
    dialog_s: float = 1.0
    """Answering one dialog."""
    close_s: float = 3.0
    """Closing a page, a context or a browser; past it the process is killed."""

    def __post_init__(self) -> None:
        """Check the ranges.

        Raises:
            ConfigError: A deadline is not positive.
        """
        for name in self.__struct_fields__:
            _above_zero(name, getattr(self, name))


class BrowserConfig(msgspec.Struct, frozen=True, kw_only=True):
    """One pool: one driver and one browser for all sessions of a worker process."""

    num_slots: int = 8
    """Sessions that may be open at one moment. Two cores are saturated by 4 to 8."""
    executable_path: str | None = None
    """Chromium to drive; the one that `find_chromium` finds when `None`."""
    remotes: tuple[str, ...] = ()
    """Addresses of browsers that run elsewhere and are used in place of one of our own; secrets in
    them by the names of environment variables, `{NAME}`."""
    is_guarded: bool = True
    """Whether pages reach the network through the guard; browsers of another machine can not."""
    health_check_s: float = 10.0
    """Seconds between two looks whether browsers elsewhere answer."""
    upstream: UpstreamConfig | None = None
    """Proxy through which the guard reaches sites; none when `None`."""
    headless: Headless | None = None
    """Kind of browser that is looked for; any, shells first, when `None`."""
    user_agent: str | None = None
    """What pages are told of the browser; Chromium's own when `None`."""
    locale: str = "en-US"
    """Language that pages are asked for."""
    screenshot_format: ScreenshotFormat = "png"
    """`png` (lossless, cheapest for small flat pages) or `jpeg` (3x smaller on rich pages)."""
    is_marked: bool = False
    """Whether screenshots number the elements that can be clicked, for actions on marks."""
    jpeg_quality: int = 80
    """Quality of `jpeg`, 1 to 100."""
    deadlines: Deadlines = Deadlines()
    """Longest time of each kind of call."""
    wait_s: float = 0.3
    """What the action `wait()` waits, in seconds."""
    share_first_screenshot: bool = False
    """Whether episodes of one seed share their first screenshot: it is taken by the first of
    them and shows what each of their pages shows. Halves the cost of one-step episodes that come
    in groups; only for tasks whose seed fixes the pixels."""
    pages_per_session: int = 3
    """Pages of different tasks that a session keeps open for tasks that restart in place."""
    collect_garbage_every: int = 50
    """Episodes of a kept page between two garbage collections of its heap."""
    recycle_context_every: int = 1000
    """Episodes of a session before its context and kept pages are replaced."""
    recycle_browser_every: int = 10_000
    """Contexts of a browser before it is replaced, between episodes."""
    max_browser_age_s: float = 3600.0
    """Age at which a browser is replaced, between episodes."""
    recycle_driver_every: int = 50_000
    """Episodes of a driver before it is replaced, together with its browser."""
    max_browser_pss_bytes: int | None = None
    """Proportional memory of all browser processes above which the browser is replaced and its
    largest page ended; 2 GiB and 256 MiB for each slot when `None`."""
    memory_check_s: float = 5.0
    """Seconds between two looks at that memory; one takes some 50 ms of another thread."""
    max_dialogs_per_step: int = 10
    """Dialogs of one action beyond which the page is given up as a dialog storm."""
    max_pages_per_context: int = 5
    """Open pages of one episode; more of them are closed at once."""
    max_restarts: int = 10
    """Restarts of browser or driver within `restart_window_s` before the pool gives up."""
    restart_window_s: float = 300.0
    """Window of `max_restarts`, in seconds."""
    extra_args: tuple[str, ...] = ()
    """More command-line switches of the browser."""

    @property
    def max_browser_bytes(self) -> int:
        """Return the limit of all browser processes in bytes."""
        given = self.max_browser_pss_bytes
        return (2 << 30) + self.num_slots * (256 << 20) if given is None else given

    def __post_init__(self) -> None:
        """Check the ranges.

        Raises:
            ConfigError: A value is out of its range.
        """
        counts = (
            "num_slots",
            "pages_per_session",
            "collect_garbage_every",
            "recycle_context_every",
            "recycle_browser_every",
            "recycle_driver_every",
            "max_dialogs_per_step",
            "max_pages_per_context",
            "max_restarts",
        )
        for name in counts:
            if getattr(self, name) < 1:
                raise ConfigError(
                    f"{name} must be >= 1, got {getattr(self, name)}. Leave it out for the default."
                )
        if self.screenshot_format not in ("png", "jpeg"):
            raise ConfigError(
                f"screenshot_format must be 'png' or 'jpeg', got {self.screenshot_format!r}. "
                "Use 'png' for small flat pages."
            )
        if not 1 <= self.jpeg_quality <= 100:
            raise ConfigError(
                f"jpeg_quality must be 1 to 100, got {self.jpeg_quality}. Typical value: 80."
            )
        if self.is_marked and self.share_first_screenshot:
            raise ConfigError(
                "share_first_screenshot must be False when is_marked is True, got True. "
                "The numbers belong to one page."
            )
        if self.max_browser_bytes < 1:
            raise ConfigError(
                f"max_browser_pss_bytes must be >= 1, got {self.max_browser_pss_bytes}. "
                "Leave it out for the default."
            )
        _above_zero("wait_s", self.wait_s)
        _above_zero("memory_check_s", self.memory_check_s)
        _above_zero("health_check_s", self.health_check_s)
        _above_zero("max_browser_age_s", self.max_browser_age_s)
        _above_zero("restart_window_s", self.restart_window_s)
