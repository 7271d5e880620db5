"""What episodes would do, fixed before any pool runs them.

Invariant: a plan is a pure function of the model's or the trace's numbers, the seed, the group and
the member, so that compared pools run the very same episodes.
"""

from __future__ import annotations

import math
import random
from dataclasses import dataclass
from typing import Protocol

from awrl_rollout import EpisodeRequest

from webrl.rollout.latency import lognormal
from webrl.simulate.model import EpisodeModel


@dataclass(frozen=True, slots=True)
class EpisodePlan:
    """One episode."""

    reset_s: float
    """Seconds until the first screenshot."""
    tokens: list[float]
    """Work of each step's request, in tokens; one entry a step."""
    step_s: list[float]
    """Seconds of each step outside of the server."""
    is_success: bool
    """How it ends."""

    @property
    def num_steps(self) -> int:
        """Steps, which are training rows."""
        return len(self.tokens)


class PlanSource(Protocol):
    """Says what an episode will do."""

    def plan(self, request: EpisodeRequest) -> EpisodePlan:
        """Return the plan of a request, always the same one."""
        ...


def hazard_of_mean(mean: float, max_steps: int) -> float:
    """Return the chance of each step to be the last that gives this mean number of steps.

    The number of steps is geometric from 1, cut at `max_steps`, so its mean is
    `(1 - (1 - q)**max_steps) / q`; a mean that the cut makes impossible gives no ending before it.

    Args:
        mean: At least 1.
    """
    low, high = 1e-12, 1.0
    for _ in range(60):
        middle = (low + high) / 2.0
        if (1.0 - (1.0 - middle) ** max_steps) / middle > mean:
            low = middle
        else:
            high = middle
    return high


class ModelPlans:
    """Plans drawn from an `EpisodeModel`.

    Args:
        model: Lengths and latencies.
        seed: Seed of every plan.
    """

    def __init__(self, model: EpisodeModel, *, seed: int) -> None:
        self._model = model
        self._seed = seed
        share, weight = model.success_share, model.success_concentration
        self._beta = (share * weight, (1.0 - share) * weight)
        self._hazard = {
            True: hazard_of_mean(model.success_steps, model.max_steps),
            False: hazard_of_mean(model.failure_steps, model.max_steps),
        }
        self._tokens = lognormal(model.step_tokens, model.step_tokens_cv)
        self._step = lognormal(model.step_s, model.step_cv) if model.step_s > 0 else None
        self._last = ("", 0.0)
        self._reset = lognormal(model.reset_s, model.reset_cv) if model.reset_s > 0 else None

    def plan(self, request: EpisodeRequest) -> EpisodePlan:
        """Return the plan of a request; a refilled member gets the plan of its place."""
        chance = self._chance(request.group_id)
        draw = random.Random(f"{self._seed}/{request.group_id}/{request.member}")
        is_success = draw.random() < chance
        num_steps = self._num_steps(draw, self._hazard[is_success])
        normal = draw.gauss
        mu, sigma = self._tokens
        tokens = [math.exp(normal(mu, sigma)) for _ in range(num_steps)]
        step_s = [0.0] * num_steps
        if self._step is not None:
            mu, sigma = self._step
            step_s = [math.exp(normal(mu, sigma)) for _ in range(num_steps)]
        step_s[-1] += self._model.end_s
        reset_s = 0.0 if self._reset is None else draw.lognormvariate(*self._reset)
        return EpisodePlan(reset_s, tokens, step_s, is_success)

    def _chance(self, group_id: str) -> float:
        """Return a group's probability of success; siblings ask one after the other."""
        if self._last[0] != group_id:
            draw = random.Random(f"{self._seed}/{group_id}")
            self._last = (group_id, draw.betavariate(*self._beta))
        return self._last[1]

    def _num_steps(self, draw: random.Random, hazard: float) -> int:
        if hazard >= 1.0:
            return 1
        steps = 1 + int(math.log(1.0 - draw.random()) / math.log1p(-hazard))
        return min(steps, self._model.max_steps)
