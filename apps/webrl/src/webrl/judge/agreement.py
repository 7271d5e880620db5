"""How far two judges agree on the same episodes.

Invariant: only what both judged is compared; what one of them gave no verdict on is counted apart.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import msgspec

from webrl.judge.verdict import Verdict

LABELS = ("success", "failure", "blocked")
"""What a verdict comes to."""


class Agreement(msgspec.Struct, frozen=True, kw_only=True):
    """Two judges on the same things."""

    num_compared: int
    """Things that both judged."""
    share: float | None
    """Share on which they agree, 0 to 1; None where nothing was compared."""
    kappa: float | None
    """Cohen's kappa, agreement beyond chance, -1 to 1; None where both always say the same one thing."""
    confusion: dict[str, dict[str, int]]
    """How often the first said the row's word and the second the column's."""


def label_of(verdict: Verdict) -> str:
    """Return what a verdict comes to, one of `LABELS`."""
    if verdict.is_blocked:
        return "blocked"
    return "success" if verdict.is_success else "failure"


def agreement(pairs: Sequence[tuple[str, str]]) -> Agreement:
    """Return how far two judges agree.

    Args:
        pairs: What the first and the second said, one pair a thing.
    """
    counts, count = Counter(pairs), len(pairs)
    labels = sorted({label for pair in pairs for label in pair})
    confusion = {row: {column: counts[row, column] for column in labels} for row in labels}
    if not count:
        return Agreement(num_compared=0, share=None, kappa=None, confusion={})
    share = sum(counts[label, label] for label in labels) / count
    first = Counter(one for one, _ in pairs)
    second = Counter(other for _, other in pairs)
    by_chance = sum(first[label] * second[label] for label in labels) / count**2
    kappa = None if by_chance == 1.0 else (share - by_chance) / (1.0 - by_chance)
    return Agreement(num_compared=count, share=share, kappa=kappa, confusion=confusion)


def criteria_pairs(before: Verdict, after: Verdict) -> list[tuple[str, str]]:
    """Return what two judges said of each criterion that both checked."""
    found = {criterion.name: criterion.is_met for criterion in before.criteria}
    return [
        ("met" if found[criterion.name] else "not met", "met" if criterion.is_met else "not met")
        for criterion in after.criteria
        if criterion.name in found
    ]
