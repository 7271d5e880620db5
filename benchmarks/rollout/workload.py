"""The latency model of the rollout benchmarks: lognormal episodes, fixed seed."""

import math
import random
from collections.abc import Callable

from awrl_rollout import EpisodeRequest

MEAN_S = 60.0
CV = 1.0


def lognormal(mean: float, cv: float) -> tuple[float, float]:
    """Return mu and sigma of a lognormal with this mean and coefficient of variation."""
    variance = math.log(1.0 + cv * cv)
    return math.log(mean) - variance / 2.0, math.sqrt(variance)


def durations(seed: int = 0, *, mean_s: float = MEAN_S) -> Callable[[EpisodeRequest], float]:
    """Return a duration per episode id, the same for every pool that runs it."""
    mu, sigma = lognormal(mean_s, CV)

    def duration_s(request: EpisodeRequest) -> float:
        return random.Random(f"{seed}/{request.episode_id}").lognormvariate(mu, sigma)

    return duration_s


def requests(count: int, prefix: str = "e") -> list[EpisodeRequest]:
    """Return single-member requests."""
    return [
        EpisodeRequest(episode_id=f"{prefix}{index}", group_id=f"{prefix}{index}")
        for index in range(count)
    ]
