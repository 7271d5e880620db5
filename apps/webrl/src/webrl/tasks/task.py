"""What a task is: where its page lives, how an episode starts, how it is judged.

Invariants:

* a task is plain data: it crosses process borders and is written into logs;
* the same task and seed give the same start, as far as the page itself is deterministic;
* scripts are JavaScript expressions; `start_script` holds the placeholder `SEED`.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

import msgspec

from webrl.errors import TaskError

ResetMode: TypeAlias = Literal["keep_page", "reload", "new_context"]
"""How an episode starts clean.

`keep_page`: the page restarts itself by script; `reload`: the page is opened again in the same
context; `new_context`: nothing survives of the episode before (cookies, storage, permissions).
"""


class Viewport(msgspec.Struct, frozen=True):
    """What a screenshot shows, in CSS pixels at scale 1."""

    width: int = 160
    """Pixels."""
    height: int = 224
    """Pixels; 224 is the height 210 of a MiniWoB++ page, rounded up to whole 16-pixel patches."""


class Task(msgspec.Struct, frozen=True, kw_only=True):
    """One kind of episode; the seed chooses among its instances."""

    suite: str
    """Where it comes from: `miniwob`, `fault`, `web`."""
    name: str
    """Name within the suite."""
    url: str
    """Page: absolute, or a path such as `/miniwob/click-test.html` of the task server."""
    goal: str | None = None
    """Instruction for the policy; `None` when `start_script` reports it."""
    max_steps: int = 10
    """Actions of one episode."""
    success_threshold: float = 0.5
    """Smallest raw reward that counts as success."""
    reset: ResetMode = "new_context"
    """How an episode starts clean."""
    viewport: Viewport = Viewport()
    """Size of page and screenshot."""
    start_script: str | None = None
    """Expression that starts an episode and gives `{goal: string}`."""
    state_script: str | None = None
    """Expression that gives `{done: boolean, reward: number, reason: string | null}`."""
    answer: str | None = None
    """Regular expression that an `answer("...")` must match in full; `None` accepts no answer."""
    settle_s: float = 0.0
    """Longest wait for a page to finish loading after an action; 0 for pages that never load."""
    allow_private: bool = False
    """Whether the page may reach addresses of private networks (the task server always may)."""

    def __post_init__(self) -> None:
        """Check the ranges.

        Raises:
            TaskError: a value is out of its range, or both reset and scripts contradict.
        """
        if self.max_steps < 1:
            raise TaskError(
                f"max_steps must be >= 1, got {self.max_steps}. An episode needs one action."
            )
        if self.reset == "keep_page" and self.start_script is None:
            raise TaskError(
                f"start_script must be set when reset is 'keep_page', got None for {self.full_name}."
                " Give the script that restarts the page, or use reset='reload'."
            )
        if self.goal is None and self.start_script is None:
            raise TaskError(
                f"goal must be set when start_script is None, got None for {self.full_name}."
                " Say what the policy shall do."
            )

    @property
    def full_name(self) -> str:
        """Return `suite/name`."""
        return f"{self.suite}/{self.name}"
