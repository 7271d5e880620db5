"""What an evaluation says of parts of its tasks, and of several samples of one episode.

Invariants:
    * samples of one episode are not independent: an interval goes by episodes, not by samples;
    * an episode that the infrastructure or its site ended is in no share, and told by itself.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence

import msgspec
from awrl_rollout import EpisodeRecord

from webrl.evaluation.intervals import Z_95, wilson_interval


class EvaluationItem(msgspec.Struct, frozen=True, kw_only=True):
    """One sample of one held-out episode."""

    task: str
    """Full name of the task."""
    seed: int
    """Held-out seed."""
    sample: int | None = None
    """Number among the samples of this episode; None where there is one."""
    difficulty: str | None = None
    """The task's label."""
    site: str = ""
    """Host of the task's page; empty for our own server."""

    @property
    def episode(self) -> str:
        """Return `task#seed`: what all samples of an episode share."""
        return f"{self.task}#{self.seed}"

    @property
    def key(self) -> str:
        """Return `task#seed`, with `@sample` where there are several."""
        return self.episode if self.sample is None else f"{self.episode}@{self.sample}"


class Share(msgspec.Struct, frozen=True, kw_only=True):
    """Success among some episodes."""

    num_episodes: int
    """Samples that count."""
    mean: float
    """Share of successes."""
    low: float
    """Lower end of the 95 % interval."""
    high: float
    """Upper end of it."""


class SiteFaults(msgspec.Struct, frozen=True, kw_only=True):
    """Episodes that a site ended."""

    num_episodes: int
    """How many."""
    kind: str
    """What most of them met, such as `site_blocked`."""
    message: str
    """What one of these said."""


def by_episode(outcomes: Mapping[str, int]) -> dict[str, list[int]]:
    """Return the outcomes of each episode's samples.

    Args:
        outcomes: 1 or 0 by `EvaluationItem.key`.
    """
    grouped: dict[str, list[int]] = {}
    for key, value in outcomes.items():
        head, mark, tail = key.rpartition("#")
        grouped.setdefault(f"{head}{mark}{tail.partition('@')[0]}", []).append(value)
    return grouped


def success_interval(outcomes: Mapping[str, int]) -> tuple[float, float]:
    """Return the 95 % interval of the mean outcome.

    Wilson's where every episode has one sample; else the normal one of the episodes' means, which is
    as wide as Wilson's of so many episodes where all means are equal.

    Args:
        outcomes: 1 or 0 by `EvaluationItem.key`.
    """
    grouped = list(by_episode(outcomes).values())
    count, total = len(grouped), sum(map(len, grouped))
    if total == count:
        return wilson_interval(sum(outcomes.values()), total)
    mean = sum(outcomes.values()) / total
    # The ratio estimator's variance: episodes may have lost samples.
    spread = sum((sum(own) - mean * len(own)) ** 2 for own in grouped)
    if count < 2 or not spread:
        return wilson_interval(round(mean * count), count)
    half = Z_95 * math.sqrt(spread * count / (count - 1)) / total
    return max(0.0, mean - half), min(1.0, mean + half)


def share_of(outcomes: Mapping[str, int]) -> Share:
    """Return success among outcomes, of which there must be one.

    Args:
        outcomes: 1 or 0 by `EvaluationItem.key`.
    """
    low, high = success_interval(outcomes)
    mean = sum(outcomes.values()) / len(outcomes)
    return Share(num_episodes=len(outcomes), mean=mean, low=low, high=high)


def pass_at(outcomes: Mapping[str, int], num_samples: int) -> dict[str, float]:
    """Return pass@k for k from 1 to the number of samples, by k as text.

    The estimator of Chen et al. (2021), equation 1, without bias: the chance that k of an episode's n
    samples, drawn without replacement, hold a success. Episodes that lost samples are in those k only
    that they still have.

    Args:
        outcomes: 1 or 0 by `EvaluationItem.key`.
    """
    grouped = list(by_episode(outcomes).values())
    found: dict[str, float] = {}
    for k in range(1, num_samples + 1):
        chances = [
            1.0 - math.comb(len(own) - sum(own), k) / math.comb(len(own), k)
            for own in grouped
            if len(own) >= k
        ]
        if chances:
            found[str(k)] = sum(chances) / len(chances)
    return found


def shares_by(
    items: Mapping[str, EvaluationItem],
    outcomes: Mapping[str, int],
    label: Callable[[EvaluationItem], str | None],
) -> dict[str, Share]:
    """Return success by a label of the items, in order of the labels; without a label, none.

    Args:
        items: By key.
        outcomes: 1 or 0 by key.
    """
    grouped: dict[str, dict[str, int]] = {}
    for key, value in outcomes.items():
        name = label(items[key]) if key in items else None
        if name:
            grouped.setdefault(name, {})[key] = value
    return {name: share_of(own) for name, own in sorted(grouped.items())}


def faults_by_kind(records: Sequence[EpisodeRecord]) -> dict[str, int]:
    """Return how many episodes each kind of fault ended, the most frequent first."""
    kinds = Counter(record.fault.kind.value for record in records if record.fault is not None)
    return dict(kinds.most_common())


def site_faults(
    records: Sequence[EpisodeRecord], site_of: Mapping[str, str]
) -> dict[str, SiteFaults]:
    """Return what sites ended episodes, and how, the worst first.

    Args:
        site_of: Site by episode id.
    """
    grouped: dict[str, list[EpisodeRecord]] = {}
    for record in records:
        if record.fault is not None and record.fault.kind.is_of_site:
            grouped.setdefault(site_of[record.episode_id], []).append(record)
    found: dict[str, SiteFaults] = {}
    for site, own in sorted(grouped.items(), key=lambda entry: (-len(entry[1]), entry[0])):
        faults = [record.fault for record in own if record.fault is not None]
        [(kind, _)] = Counter(fault.kind for fault in faults).most_common(1)
        message = next(fault.message for fault in faults if fault.kind is kind)
        found[site] = SiteFaults(num_episodes=len(own), kind=kind.value, message=message)
    return found
