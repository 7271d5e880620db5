"""What a task is: where its page lives, how an episode starts, how it is judged.

Invariants:

* a task is plain data: it crosses process borders and is written into logs;
* the same task and seed give the same start, as far as the page itself is deterministic;
* scripts are JavaScript expressions; `start_script` holds the placeholder `SEED`.
"""

from __future__ import annotations

from typing import Literal, TypeAlias
from urllib.parse import urlsplit

import msgspec
import regex

from webrl.errors import TaskError
from webrl.page_size import broken_page_size

ResetMode: TypeAlias = Literal["keep_page", "reload", "new_context"]
"""How an episode starts clean.

`keep_page`: the page restarts itself by script; `reload`: the page is opened again in the same
context; `new_context`: nothing survives of the episode before (cookies, storage, permissions).
"""


class Viewport(msgspec.Struct, frozen=True, gc=False):
    """What a screenshot shows, in CSS pixels at scale 1."""

    width: int = 160
    """Pixels."""
    height: int = 224
    """Pixels; 224 is the height 210 of a MiniWoB++ page, rounded up to whole 16-pixel patches."""


class Rubric(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What a judge checks of an episode that ended with an answer."""

    facts: tuple[str, ...] = ()
    """Statements that the screenshots must show, each judged by itself."""
    reference_answer: str | None = None
    """What the answer must amount to; `None` where any answer with the facts will do."""


class Task(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One kind of episode; the seed chooses among its instances."""

    suite: str
    """Where it comes from: `miniwob`, `fault`, `web`, `webgym`."""
    name: str
    """Name within the suite."""
    url: str
    """Page: absolute, or a path such as `/miniwob/click-test.html` of the task server."""
    goal: str | None = None
    """Instruction for the policy; `None` when `start_script` reports it."""
    max_steps: int = 10
    """Actions of one episode."""
    test_max_steps: int | None = None
    """The same for evaluation; `max_steps` when `None`."""
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
    final_url: str | None = None
    """Regular expression of the address that ends the episode as a success; `None` for none."""
    rubric: Rubric | None = None
    """What a judge checks at the end of an episode; `None` for tasks that judge themselves."""
    difficulty: str | None = None
    """Label under which wasted episodes are counted; `None` for none."""
    domain: str | None = None
    """What the site is about, as its data set says; `None` where it says nothing."""
    subdomain: str | None = None
    """The same, finer."""
    is_steady: bool = False
    """Whether the same seed always gives the same first pixels."""
    allow_private: bool = False
    """Whether the page may reach addresses of private networks (the task server always may)."""

    def __post_init__(self) -> None:
        """Check the ranges.

        Raises:
            TaskError: A value is out of its range, values contradict, or nothing can judge.
        """
        for name in ("max_steps", "test_max_steps"):
            limit = getattr(self, name)
            if limit is not None and limit < 1:
                raise TaskError(f"{name} must be >= 1, got {limit}. An episode needs one action.")
        if self.settle_s < 0:
            raise TaskError(f"settle_s must be >= 0, got {self.settle_s}. Use 0 for no wait.")
        rule = broken_page_size(self.viewport.width, self.viewport.height)
        if rule is not None:
            got = f"{self.viewport.width} x {self.viewport.height} for {self.full_name}"
            raise TaskError(f"viewport must be {rule}, got {got}. Use e.g. 1280 x 720.")
        self._check_scripts()
        self._check_evaluator()

    def _check_scripts(self) -> None:
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

    def _check_evaluator(self) -> None:
        evaluators = (self.answer, self.final_url, self.state_script, self.rubric)
        if all(evaluator is None for evaluator in evaluators):
            raise TaskError(
                f"an evaluator must be set, got none for {self.full_name}. "
                "Give answer, final_url or state_script."
            )
        if self.rubric is not None and self.state_script is not None:
            raise TaskError(
                f"state_script must be None when rubric is set, got both for {self.full_name}. "
                "Let either the page or the judge decide."
            )
        for name, pattern in (("answer", self.answer), ("final_url", self.final_url)):
            if pattern is None:
                continue
            try:
                regex.compile(pattern)
            except regex.error as error:
                raise TaskError(
                    f"{name} must be a regular expression, got {pattern!r}: {error}. "
                    "Escape special characters with a backslash."
                ) from error

    @property
    def is_local(self) -> bool:
        """Return whether the page comes from the task server."""
        return self.url.startswith("/")

    @property
    def site(self) -> str:
        """Return the host of the page, with its port where one is given; empty for our own server."""
        if self.is_local:
            return ""
        return urlsplit(self.url).netloc.rpartition("@")[2].lower()

    @property
    def place(self) -> str:
        """Return where an episode is, for logs: its site, or the task where that is our own server."""
        return self.site or self.full_name

    @property
    def is_seeded(self) -> bool:
        """Return whether the seed chooses among instances; else every seed gives the same one."""
        return self.start_script is not None

    @property
    def full_name(self) -> str:
        """Return `suite/name`."""
        return f"{self.suite}/{self.name}"
