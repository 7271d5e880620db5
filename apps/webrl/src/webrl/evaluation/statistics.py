"""Statistics of greedy evaluations: intervals, and paired comparison of two checkpoints.

Invariants:
    * a fault is neither success nor failure; it leaves both counts;
    * what episodes do not tell is None, never a number: the mean of none, an interval from one.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

import msgspec

from webrl.records.lines import LineFile

Z_95 = 1.959963984540054
"""Two-sided 95 % quantile of the normal distribution."""


class EvaluationResult(msgspec.Struct, frozen=True, kw_only=True):
    """One evaluation of one weight version."""

    version: int
    """Weight version of the checkpoint; every episode ran under it."""
    checkpoint: str
    """Folder of the checkpoint."""
    num_episodes: int
    """Episodes that count: those that ended in success or failure, and late ones unless left out."""
    num_late: int = 0
    """Episodes that had not ended at the deadline."""
    num_faults: int
    """Episodes lost to the infrastructure; in neither count."""
    mean: float | None
    """Share of successes among those that count; None when there are none."""
    mean_with_late: float | None = None
    """The same with late episodes as failures, whatever the configuration says."""
    mean_without_late: float | None = None
    """The same with late episodes left out."""
    low: float
    """Lower end of the 95 % interval (Wilson)."""
    high: float
    """Upper end of the 95 % interval (Wilson)."""
    by_task: dict[str, float]
    """Share of successes of each task."""
    paired_difference: float | None
    """Mean difference to the previous evaluation over the same episodes; None for the first."""
    paired_low: float | None
    """Lower end of the difference's 95 % interval; None for fewer than two shared episodes."""
    paired_high: float | None
    """Upper end of it, likewise."""
    duration_s: float
    """Seconds of the evaluation."""
    outcomes: dict[str, int]
    """1 or 0 by `task#seed` of those that count."""

    def metrics(self) -> dict[str, float]:
        """Return the figures that belong to a step of training."""
        unsure = {
            "eval/success": self.mean,
            "eval/success_with_late": self.mean_with_late,
            "eval/success_without_late": self.mean_without_late,
            "eval/paired_difference": self.paired_difference,
            "eval/paired_low": self.paired_low,
            "eval/paired_high": self.paired_high,
        }
        return {
            "eval/success_low": self.low,
            "eval/success_high": self.high,
            "eval/episodes": float(self.num_episodes),
            "eval/late": float(self.num_late),
            "eval/faults": float(self.num_faults),
            "eval/duration_s": self.duration_s,
            "eval/version": float(self.version),
            **{name: value for name, value in unsure.items() if value is not None},
        }

    def describe(self) -> str:
        """Return success, interval and counts in one line, for people."""
        if self.mean is None:
            text = "success unknown: no episode counts"
        else:
            text = f"success {self.mean:.3f}, 95 % interval [{self.low:.3f}, {self.high:.3f}]"
        if self.num_late:
            means = (self.mean_with_late, self.mean_without_late)
            shown = ["unknown" if mean is None else f"{mean:.3f}" for mean in means]
            text += f" ({self.num_late} late: {shown[0]} with them as failures, {shown[1]} without)"
        return f"{text}, {self.num_episodes} episodes, {self.num_faults} faults"


def wilson_interval(num_successes: int, num_trials: int, z: float = Z_95) -> tuple[float, float]:
    """Return the Wilson score interval of a share (Wilson 1927).

    Args:
        num_trials: Trials; 0 gives the interval (0, 1).
        z: Normal quantile.
    """
    if num_trials == 0:
        return 0.0, 1.0
    share = num_successes / num_trials
    scale = 1.0 + z * z / num_trials
    centre = share + z * z / (2 * num_trials)
    spread = z * math.sqrt(
        share * (1.0 - share) / num_trials + z * z / (4 * num_trials * num_trials)
    )
    return max(0.0, (centre - spread) / scale), min(1.0, (centre + spread) / scale)


def paired_difference(
    before: Mapping[str, int], after: Mapping[str, int]
) -> tuple[float, float | None, float | None] | None:
    """Return the mean difference over shared episodes with its 95 % interval.

    The interval is that of Bonett and Price (2012) for paired shares: it has a width where all
    differences are equal, too. One episode has no interval, and none have no difference.

    Args:
        before: Outcomes of the earlier checkpoint.
        after: Outcomes of the later one.
    """
    shared = [after[key] - before[key] for key in before if key in after]
    if not shared:
        return None
    count = len(shared)
    mean = sum(shared) / count
    if count == 1:
        return mean, None, None
    better, worse = ((shared.count(sign) + 1) / (count + 2) for sign in (1, -1))
    centre = better - worse
    half = Z_95 * math.sqrt((better + worse - centre**2) / (count + 2))
    return mean, max(-1.0, centre - half), min(1.0, centre + half)


def summarise(
    ended: Mapping[str, int],
    *,
    late: Sequence[str] = (),
    is_late_failure: bool = True,
    version: int,
    checkpoint: str,
    num_faults: int,
    duration_s: float,
    previous: EvaluationResult | None,
) -> EvaluationResult:
    """Return the result of one evaluation.

    Args:
        ended: 1 or 0 by `task#seed` of the episodes that ended in success or failure.
        late: `task#seed` of those that had not ended at the deadline.
        is_late_failure: Whether these count as failures; else they are left out.
        version: Weight version that was evaluated.
        num_faults: Episodes lost to the infrastructure.
        duration_s: Seconds of the evaluation.
        previous: Earlier result for the paired comparison.
    """
    with_late = {**ended, **dict.fromkeys(late, 0)}
    outcomes = with_late if is_late_failure else dict(ended)
    low, high = wilson_interval(sum(outcomes.values()), len(outcomes))
    pair = paired_difference(previous.outcomes, outcomes) if previous else None
    return EvaluationResult(
        version=version,
        checkpoint=checkpoint,
        num_episodes=len(outcomes),
        num_late=len(late),
        num_faults=num_faults,
        mean=_mean(outcomes.values()),
        mean_with_late=_mean(with_late.values()),
        mean_without_late=_mean(ended.values()),
        low=low,
        high=high,
        by_task=_by_task(outcomes),
        paired_difference=pair[0] if pair else None,
        paired_low=pair[1] if pair else None,
        paired_high=pair[2] if pair else None,
        duration_s=duration_s,
        outcomes=outcomes,
    )


def _by_task(outcomes: Mapping[str, int]) -> dict[str, float]:
    grouped: dict[str, list[int]] = {}
    for key, value in outcomes.items():
        grouped.setdefault(key.rsplit("#", 1)[0], []).append(value)
    return {task: sum(values) / len(values) for task, values in sorted(grouped.items())}


def _mean(values: Collection[int]) -> float | None:
    return sum(values) / len(values) if values else None


def append_result(path: Path, result: EvaluationResult) -> None:
    """Append one result to a JSON-lines file."""
    file = LineFile(path)
    file.append(msgspec.to_builtins(result))
    file.close()
