"""Intervals of shares, and of the difference of two of them."""

from __future__ import annotations

import math
from collections.abc import Mapping

Z_95 = 1.959963984540054
"""Two-sided 95 % quantile of the normal distribution."""


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
