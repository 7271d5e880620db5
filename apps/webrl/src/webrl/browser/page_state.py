"""Goal, state and reward of an episode, read from its page.

Invariants:

* what a page's script reports is checked for its form; anything else is a `page_error`, never a
  reward;
* a task's pattern holds up no other episode: it is matched beside the event loop, for a second at
  most, and what it can not match by then it does not match.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TypeVar

import msgspec
import regex

from webrl.browser.page import LivePage
from webrl.errors import BrowserFault
from webrl.tasks import Task

logger = logging.getLogger(__name__)
_T = TypeVar("_T")

_MATCH_S = 1.0
"""Longest time for one match; ordinary ones take microseconds."""


class State(msgspec.Struct, frozen=True):
    """What a page says about its episode."""

    done: bool = False
    """Whether the episode is over."""
    reward: float = 0.0
    """Raw reward so far."""
    reason: str | None = None
    """Why the page ended it, if it says so."""


class _Start(msgspec.Struct, frozen=True):
    goal: str


async def read_goal(page: LivePage, task: Task, seed: int) -> str:
    """Start the episode in `page` and return its goal.

    Raises:
        BrowserFault: The page does not start, or reports no goal.
    """
    if task.start_script is None:
        assert task.goal is not None  # checked by Task
        return task.goal
    script = task.start_script.replace("SEED", str(int(seed)))
    found = await page.evaluate(script)
    return task.goal if task.goal is not None else _checked(found, _Start, "start").goal


async def read_state(page: LivePage, active: LivePage, task: Task) -> State:
    """Return what is known about the episode.

    Args:
        page: Where the episode started; its state script runs there.
        active: The newest page; its address is compared with the one that ends the episode.

    Raises:
        BrowserFault: The page does not answer in the agreed form.
    """
    if task.final_url is not None and await matches(task.final_url, active.page.url):
        return State(done=True, reward=1.0, reason="final address")
    if task.state_script is None:
        return State()
    return _checked(await page.evaluate(task.state_script), State, "state")


async def judge_answer(task: Task, text: str) -> float:
    """Return the raw reward of answering `text`."""
    if task.answer is None:
        return 0.0
    flags = regex.IGNORECASE | regex.DOTALL
    return float(await matches(task.answer, text.strip(), flags))


async def matches(pattern: str, text: str, flags: int = 0) -> bool:
    """Return whether `pattern` matches the whole of `text`, and says so in time."""

    def match() -> bool:
        found = regex.fullmatch(pattern, text, flags, timeout=_MATCH_S, concurrent=True)
        return found is not None

    try:
        return await asyncio.to_thread(match)
    except TimeoutError:
        logger.warning("pattern %r takes too long on %r: no match", pattern, text[:200])
        return False


def _checked(value: object, kind: type[_T], what: str) -> _T:
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        raise BrowserFault("page_error", f"{what} script gave something else: {error}") from error
