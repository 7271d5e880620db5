"""Statistics of greedy evaluations: intervals, and paired comparison of two checkpoints.

Invariant: a fault is neither success nor failure; it leaves both counts.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

Z_95 = 1.959963984540054
"""Two-sided 95 % quantile of the normal distribution."""


class EvaluationResult(msgspec.Struct, frozen=True, kw_only=True):
    """One evaluation of one weight version."""

    version: int
    """Weight version of the checkpoint; every episode ran under it."""
    checkpoint: str
    """Folder of the checkpoint."""
    num_episodes: int
    """Episodes that ended in success or failure."""
    num_faults: int
    """Episodes lost to the infrastructure; in neither count."""
    mean: float
    """Share of successes."""
    low: float
    """Lower end of the 95 % interval (Wilson)."""
    high: float
    """Upper end of the 95 % interval (Wilson)."""
    by_task: dict[str, float]
    """Share of successes of each task."""
    paired_difference: float | None
    """Mean difference to the previous evaluation over the same episodes; None for the first."""
    paired_low: float | None
    """Lower end of the difference's 95 % interval."""
    paired_high: float | None
    """Upper end of the difference's 95 % interval."""
    duration_s: float
    """Seconds of the evaluation."""
    outcomes: dict[str, int]
    """1 or 0 by `task#seed`; faults are absent."""

    def metrics(self) -> dict[str, float]:
        """Return the figures that belong to a step of training."""
        pair = {
            "eval/paired_difference": self.paired_difference,
            "eval/paired_low": self.paired_low,
            "eval/paired_high": self.paired_high,
        }
        return {
            "eval/success": self.mean,
            "eval/success_low": self.low,
            "eval/success_high": self.high,
            "eval/episodes": float(self.num_episodes),
            "eval/faults": float(self.num_faults),
            "eval/duration_s": self.duration_s,
            "eval/version": float(self.version),
            **{name: value for name, value in pair.items() if value is not None},
        }


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
) -> tuple[float, float, float] | None:
    """Return the mean difference over shared episodes with its 95 % interval, None for none.

    Args:
        before: Outcomes of the earlier checkpoint.
        after: Outcomes of the later one.
    """
    shared = [after[key] - before[key] for key in before if key in after]
    if not shared:
        return None
    count = len(shared)
    mean = sum(shared) / count
    variance = sum((value - mean) ** 2 for value in shared) / max(1, count - 1)
    half = Z_95 * math.sqrt(variance / count)
    return mean, mean - half, mean + half


def summarise(
    outcomes: Mapping[str, int],
    *,
    version: int,
    checkpoint: str,
    num_faults: int,
    duration_s: float,
    previous: EvaluationResult | None,
) -> EvaluationResult:
    """Return the result of one evaluation.

    Args:
        outcomes: 1 or 0 by `task#seed`.
        version: Weight version that was evaluated.
        num_faults: Episodes lost to the infrastructure.
        duration_s: Seconds of the evaluation.
        previous: Earlier result for the paired comparison.
    """
    low, high = wilson_interval(sum(outcomes.values()), len(outcomes))
    pair = paired_difference(previous.outcomes, outcomes) if previous else None
    return EvaluationResult(
        version=version,
        checkpoint=checkpoint,
        num_episodes=len(outcomes),
        num_faults=num_faults,
        mean=sum(outcomes.values()) / len(outcomes) if outcomes else 0.0,
        low=low,
        high=high,
        by_task=_by_task(outcomes),
        paired_difference=pair[0] if pair else None,
        paired_low=pair[1] if pair else None,
        paired_high=pair[2] if pair else None,
        duration_s=duration_s,
        outcomes=dict(outcomes),
    )


def _by_task(outcomes: Mapping[str, int]) -> dict[str, float]:
    grouped: dict[str, list[int]] = {}
    for key, value in outcomes.items():
        grouped.setdefault(key.rsplit("#", 1)[0], []).append(value)
    return {task: _mean(values) for task, values in sorted(grouped.items())}


def _mean(values: Sequence[int]) -> float:
    return sum(values) / len(values)


def append_result(path: Path, result: EvaluationResult) -> None:
    """Append one result to a JSON-lines file."""
    with path.open("ab") as file:
        file.write(msgspec.json.encode(result) + b"\n")
