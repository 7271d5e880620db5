"""What the judge looks at, and what it says."""

from __future__ import annotations

import msgspec

from webrl.tasks import Rubric


class Evidence(msgspec.Struct, frozen=True, kw_only=True):
    """One finished episode as the judge sees it."""

    goal: str
    """What was to be done."""
    rubric: Rubric
    """What must hold."""
    actions: tuple[str, ...]
    """Every action in order, the answer not included."""
    answer: str | None
    """What was answered; None when the episode ended without an answer."""
    screenshots: tuple[str, ...]
    """Every screenshot in order, as `data:` addresses."""


class Criterion(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that was checked."""

    name: str
    """`supported`, `fact 1`, `fact 2`, ... or `reference`."""
    is_met: bool
    """Whether it holds."""
    reason: str
    """Why, in the judge's words."""


class JudgeUsage(msgspec.Struct, kw_only=True):
    """What questions took; cached answers cost nothing."""

    num_requests: int = 0
    """Requests that were answered, right or wrong."""
    tokens_in: int = 0
    """Tokens sent, as the server counts them."""
    tokens_out: int = 0
    """Tokens answered, reasoning included."""
    cost: float = 0.0
    """What they cost at the configured prices."""
    wait_s: float = 0.0
    """Seconds from the question to the verdict, outages included."""


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """What the judge found."""

    is_blocked: bool
    """Whether the site kept the agent out: then the episode is a fault and nothing else counts."""
    criteria: tuple[Criterion, ...] = ()
    """Every criterion in order; empty for an episode that is blocked or has no answer."""
    usage: JudgeUsage | None = None
    """What the verdict took."""

    @property
    def is_success(self) -> bool:
        """Whether every criterion holds; never without an answer."""
        return bool(self.criteria) and all(criterion.is_met for criterion in self.criteria)

    @property
    def score(self) -> float:
        """The share of criteria that hold, 0 to 1."""
        if not self.criteria:
            return 0.0
        return sum(criterion.is_met for criterion in self.criteria) / len(self.criteria)
