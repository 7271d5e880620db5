"""Statistics of greedy evaluations: intervals, and paired comparison of two checkpoints.

Invariants:
    * a fault is neither success nor failure; it leaves both counts;
    * what episodes do not tell is None, never a number: the mean of none, an interval from one.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

import msgspec

from webrl.evaluation.breakdown import (
    EvaluationItem,
    Share,
    SiteFaults,
    pass_at,
    shares_by,
    success_interval,
)
from webrl.evaluation.intervals import paired_difference
from webrl.records.lines import LineFile


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
    """Episodes lost to the infrastructure or to their site; in neither count."""
    num_samples: int = 1
    """Samples of each episode; `mean` is avg@k then."""
    faults: dict[str, int] = {}
    """Episodes lost, by the kind of fault."""
    by_lost_site: dict[str, SiteFaults] = {}
    """Those that their site ended: blocked, not there, no page; by site, the worst first."""
    pass_at: dict[str, float] = {}
    """pass@k by k, where there are several samples."""
    by_difficulty: dict[str, Share] = {}
    """Success of each difficulty that tasks have."""
    by_site: dict[str, Share] = {}
    """Success on each site."""
    mean: float | None
    """Share of successes among those that count; None when there are none."""
    mean_with_late: float | None = None
    """The same with late episodes as failures, whatever the configuration says."""
    mean_without_late: float | None = None
    """The same with late episodes left out."""
    low: float
    """Lower end of the 95 % interval; see `success_interval`."""
    high: float
    """Upper end of it."""
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
    """1 or 0 by `task#seed` of those that count, with `@sample` where there are several."""

    @property
    def num_lost_to_sites(self) -> int:
        """Return how many episodes their sites ended."""
        return sum(site.num_episodes for site in self.by_lost_site.values())

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
            "eval/lost_to_sites": float(self.num_lost_to_sites),
            "eval/duration_s": self.duration_s,
            "eval/version": float(self.version),
            **{name: value for name, value in unsure.items() if value is not None},
            **{f"eval/pass_at_{k}": value for k, value in self.pass_at.items()},
            **{f"eval/success_{label}": share.mean for label, share in self.by_difficulty.items()},
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
        if self.num_samples > 1:
            best = self.pass_at.get(str(self.num_samples))
            shown = "unknown" if best is None else f"{best:.3f}"
            text += f" (avg@{self.num_samples}; pass@{self.num_samples} {shown})"
        text = f"{text}, {self.num_episodes} episodes, {self.num_faults} faults"
        if self.num_lost_to_sites:
            text += (
                f" ({self.num_lost_to_sites} of them their sites', {len(self.by_lost_site)} sites)"
            )
        return text


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
    items: Mapping[str, EvaluationItem] | None = None,
    num_samples: int = 1,
    faults: Mapping[str, int] | None = None,
    by_lost_site: Mapping[str, SiteFaults] | None = None,
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
        items: What was run, by `task#seed`; without them there are no parts.
        num_samples: Samples of each episode.
        faults: Episodes lost, by the kind of fault.
        by_lost_site: Those of them that their site ended.
    """
    with_late = {**ended, **dict.fromkeys(late, 0)}
    outcomes = with_late if is_late_failure else dict(ended)
    low, high = success_interval(outcomes)
    pair = paired_difference(previous.outcomes, outcomes) if previous else None
    return EvaluationResult(
        version=version,
        checkpoint=checkpoint,
        num_episodes=len(outcomes),
        num_late=len(late),
        num_faults=num_faults,
        num_samples=num_samples,
        faults=dict(faults or {}),
        by_lost_site=dict(by_lost_site or {}),
        pass_at=pass_at(outcomes, num_samples) if num_samples > 1 else {},
        by_difficulty=shares_by(items or {}, outcomes, lambda item: item.difficulty),
        by_site=shares_by(items or {}, outcomes, lambda item: item.site),
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
