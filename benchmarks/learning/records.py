"""What a learning run left, as one small record: success over seconds and over updates."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

WINDOW_STEPS = 3
"""Steps over which the sampled success of training batches is averaged."""


def read_lines(path: Path) -> list[dict[str, Any]]:
    """Return the objects of a JSON-lines file."""
    return [json.loads(line) for line in path.read_text().splitlines()]


def seconds_at(steps: Sequence[dict[str, Any]]) -> dict[int, float]:
    """Return training seconds from the first step's start to each published version."""
    elapsed, at = 0.0, {0: 0.0}
    for step in steps:
        elapsed += step["time/step_s"]
        at[int(step["weights/version"])] = elapsed
    return at


def record_of(run: Path) -> dict[str, Any]:
    """Return a run's curves and figures.

    Args:
        run: Its folder, or a copy of `metrics.jsonl` and `evaluations.jsonl`.
    """
    steps = [line for line in read_lines(run / "metrics.jsonl") if "eval/success" not in line]
    at = seconds_at(steps)
    # Greedy, on held-out seeds: [seconds, version, mean, low, high]
    points = [
        [round(at[p["version"]], 1), p["version"], p["mean"], p["low"], p["high"]]
        for p in read_lines(run / "evaluations.jsonl")
        if p["version"] in at
    ]
    seconds = at[max(at)]
    windows = sorted(step["publish/window_s"] for step in steps if "publish/window_s" in step)
    return {
        "evaluations": points,
        "sampled": _sampled(steps),
        "seconds": round(seconds, 1),
        "updates": max(at),
        "episodes": steps[-1]["rollout/episodes_total"],
        "episodes_per_s": round(steps[-1]["rollout/episodes_total"] / seconds, 2),
        "off_policyness": steps[-1].get("staleness/off_policyness_mean_versions") or 0.0,
        "clip_share": _mean(steps, "clip/fraction"),
        "window_s": windows[len(windows) // 2] if windows else 0.0,
    }


def _sampled(steps: Sequence[dict[str, Any]]) -> list[list[float]]:
    """Return [seconds, version, success share] of the training episodes, averaged over a window."""
    at, found = seconds_at(steps), []
    for end in range(WINDOW_STEPS, len(steps) + 1):
        window = steps[end - WINDOW_STEPS : end]
        shares = [
            step["rollout/success_share"] for step in window if "rollout/success_share" in step
        ]
        share = sum(shares) / max(1, len(shares))
        version = int(window[-1]["weights/version"])
        found.append([round(at[version], 1), version, round(share, 4)])
    return found


def _mean(steps: Sequence[dict[str, Any]], key: str) -> float | None:
    values = [step[key] for step in steps if step.get(key) is not None]
    return round(sum(values) / len(values), 5) if values else None


def reached(record: dict[str, Any], success: float, *, axis: int = 0) -> float | None:
    """Return when the greedy success first reached a value, None when it never did.

    Between two evaluations the time is read off the line through them.

    Args:
        record: From `record_of`.
        success: The value.
        axis: 0 for seconds, 1 for updates.
    """
    before: list[float] | None = None
    for point in record["evaluations"]:
        if point[2] >= success:
            if before is None:
                return float(point[axis])
            part = (success - before[2]) / (point[2] - before[2])
            return before[axis] + part * (point[axis] - before[axis])
        before = point
    return None


def sampled_success(record: dict[str, Any], first: int, last: int) -> float:
    """Return the mean success of training episodes from one update to another, both included.

    Args:
        record: From `record_of`.
        first: The update to start with.
        last: The last one; a run that ends before it is averaged up to its end.
    """
    values = [point[2] for point in record["sampled"] if first <= point[1] <= last]
    return sum(values) / len(values)
