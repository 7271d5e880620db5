"""Artificial page latency: a slow site on a fast machine, the same for every pool.

Invariant: the wait is a pure function of task, seed and step, so that siblings and compared runs wait
alike.
"""

from __future__ import annotations

import math
import random

from webrl.rollout.trajectory import EpisodeTask


def page_latency_s(payload: EpisodeTask, step: int, *, mean_s: float, cv: float) -> float:
    """Return the artificial wait of one step: lognormal, fixed by task, seed and step.

    Args:
        payload: Names the episode; siblings wait alike.
        mean_s: Mean, in seconds.
        cv: Coefficient of variation.
    """
    rng = random.Random(f"{payload.task}#{payload.seed}#{step}")
    return rng.lognormvariate(*lognormal(mean_s, cv))


def lognormal(mean: float, cv: float) -> tuple[float, float]:
    """Return mu and sigma of the lognormal with this mean and coefficient of variation.

    Args:
        mean: Above 0.
        cv: Deviation over mean; 0 gives a constant.
    """
    variance = math.log1p(cv * cv)
    return math.log(mean) - variance / 2.0, math.sqrt(variance)
