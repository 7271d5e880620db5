"""Browsers that run elsewhere: their addresses, and which of them a slot uses.

Invariants:

* a token stands in the environment; an address holds its name (`?token={NAME}`), and so do messages;
* a browser that was lost or could not be reached is left alone for a while, longer each time; the
  others go on, and take over its slots;
* the slots of a pool are spread evenly over the browsers that are not left alone: each next episode
  of a slot moves where that makes them more even.
"""

from __future__ import annotations

import asyncio
import random
import re
from collections.abc import Callable, Mapping
from urllib.parse import quote, urlsplit, urlunsplit

import aiohttp

from webrl.browser.relay import reason_of
from webrl.errors import BrowserFault, PreflightError

_NAME = re.compile(r"\{([A-Z][A-Z0-9_]{0,63})\}")
_VERSION_PATH = "/json/version"
FIRST_WAIT_S = 0.5
"""Before a browser that was lost is tried again, in seconds; doubled each time."""
LONGEST_WAIT_S = 60.0
"""The longest of these waits. A browser that lived for so long starts with the first again."""


def variables_of(address: str) -> tuple[str, ...]:
    """Return the names of the environment variables that an address holds."""
    return tuple(_NAME.findall(address))


def with_secrets(address: str, environment: Mapping[str, str]) -> str:
    """Return an address with the values of its environment variables.

    Raises:
        PreflightError: One of them is not set.
    """

    def value_of(name: re.Match[str]) -> str:
        value = environment.get(name[1], "").strip()
        if not value:
            raise PreflightError(
                f"the environment variable {name[1]} must be set for the browser at {address}, got "
                "nothing. Export it wherever rollout workers start."
            )
        return quote(value, safe="")

    return _NAME.sub(value_of, address)


async def find_endpoint(address: str, *, name: str, deadline_s: float) -> str:
    """Return the web socket of a browser: `ws://` ones as they are, others after asking the browser.

    Args:
        address: With its secrets.
        name: What messages call it.

    Raises:
        BrowserFault: It does not say (`browser_lost`).
    """
    parts = urlsplit(address)
    if parts.scheme in ("ws", "wss"):
        return address
    question = urlunsplit((parts.scheme, parts.netloc, _VERSION_PATH, parts.query, ""))
    try:
        async with (
            asyncio.timeout(deadline_s),
            aiohttp.ClientSession(trust_env=False, raise_for_status=True) as http,
            http.get(question) as answer,
        ):
            path = urlsplit(
                str((await answer.json(content_type=None))["webSocketDebuggerUrl"])
            ).path
    except (aiohttp.ClientError, OSError, ValueError, LookupError, TypeError) as error:
        # From None: such an error may hold the whole address.
        raise BrowserFault("browser_lost", f"{name}: {reason_of(error)}") from None
    scheme = "wss" if parts.scheme == "https" else "ws"
    return urlunsplit((scheme, parts.netloc, path, parts.query, ""))


class Fleet:
    """Decides which of several browsers a slot uses, and when a lost one is tried again.

    Args:
        num_browsers: How many there are; they are numbered from 0.
        clock: Seconds.
        generator: Draws among equals, so that the pools of several workers do not all begin with
            the same one.
    """

    def __init__(
        self, num_browsers: int, *, clock: Callable[[], float], generator: random.Random
    ) -> None:
        """Begin with browsers that are all worth a try."""
        self._clock = clock
        self._generator = generator
        self._num_losses = [0] * num_browsers
        self._due_s = [0.0] * num_browsers
        self._browser_of: dict[int, int] = {}

    def choose(self, slot: int) -> int | None:
        """Return the browser for the next episode of `slot`, `None` while all are left alone."""
        now = self._clock()
        ready = [index for index, due_s in enumerate(self._due_s) if due_s <= now]
        if not ready:
            return None
        current = self._browser_of.pop(slot, None)
        loads = {index: self.load(index) for index in ready}
        least = min(loads.values())
        if current not in loads or loads[current] > least:
            current = self._generator.choice([i for i in ready if loads[i] == least])
        self._browser_of[slot] = current
        return current

    def is_ready(self, index: int) -> bool:
        """Return whether a browser is not left alone."""
        return self._due_s[index] <= self._clock()

    def load(self, index: int) -> int:
        """Return how many slots use a browser."""
        return sum(browser == index for browser in self._browser_of.values())

    def release(self, slot: int) -> None:
        """Forget a slot that is not used any more."""
        self._browser_of.pop(slot, None)

    def lose(self, index: int, lived_s: float = 0.0) -> float:
        """Leave a browser alone for a while after its loss; return for how long, in seconds.

        Args:
            lived_s: How long it had been in use; 0 for one that could not be reached.
        """
        if lived_s >= LONGEST_WAIT_S:
            self._num_losses[index] = 0
        self._num_losses[index] += 1
        wait_s = min(LONGEST_WAIT_S, FIRST_WAIT_S * 2.0 ** (self._num_losses[index] - 1))
        self._due_s[index] = self._clock() + wait_s
        return wait_s

    def wait_s(self) -> float:
        """Return the seconds until the next browser may be tried, 0 when one may now."""
        return max(0.0, min(self._due_s) - self._clock())
