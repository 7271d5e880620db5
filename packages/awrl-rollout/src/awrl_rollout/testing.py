"""Fakes and drivers for tests of code that uses `awrl_rollout`; nothing here sleeps.

What happens at which attempt or step is scripted, never random.
"""

from __future__ import annotations

import asyncio
import math
import random
from collections.abc import Callable

from awrl_rollout.controller.config import TaskSource
from awrl_rollout.episode import EpisodeRequest, EpisodeResult
from awrl_rollout.executor import EpisodeContext, Workflow

_SETTLE_CYCLES = 64
"""Loop cycles that `settle` yields; the longest chain of wake-ups in this package is below 20."""


async def settle(num_cycles: int = _SETTLE_CYCLES) -> None:
    """Return once every task has run until it waits for something outside of the loop."""
    for _ in range(num_cycles):
        await asyncio.sleep(0)


def make_group(
    group_id: str,
    num_members: int,
    *,
    payload: object = None,
    label: str | None = None,
    site: str = "",
) -> list[EpisodeRequest]:
    """Return the requests of one group, with ids `GROUP/MEMBER`."""
    return [
        EpisodeRequest(
            episode_id=f"{group_id}/{member}",
            group_id=group_id,
            member=member,
            group_size=num_members,
            payload=payload,
            label=label,
            site=site,
        )
        for member in range(num_members)
    ]


def endless_groups(num_members: int, *, limit: int | None = None) -> TaskSource:
    """Return a source of groups `g0`, `g1`, ...; None after `limit` of them."""
    num_made = 0

    def source() -> list[EpisodeRequest] | None:
        nonlocal num_made
        if limit is not None and num_made >= limit:
            return None
        num_made += 1
        return make_group(f"g{num_made - 1}", num_members)

    return source


def scripted_workflow(
    duration_s: Callable[[EpisodeRequest], float] = lambda request: 0.0,
    result: Callable[[EpisodeRequest], EpisodeResult | None] = lambda request: EpisodeResult(
        is_success=True, reward=1.0
    ),
) -> Workflow:
    """Return a workflow that takes `duration_s(request)` and answers `result(request)`."""

    async def workflow(request: EpisodeRequest, context: EpisodeContext) -> EpisodeResult | None:
        await context.clock.sleep(duration_s(request))
        return result(request)

    return workflow


def lognormal_durations(
    *, mean_s: float, cv: float, seed: int = 0
) -> Callable[[EpisodeRequest], float]:
    """Return a lognormal duration per episode id, the same in every pool that runs it.

    `cv` is the standard deviation over the mean; 1 is the heavy tail of web episodes.
    """
    variance = math.log(1.0 + cv * cv)
    mu, sigma = math.log(mean_s) - variance / 2.0, math.sqrt(variance)

    def duration_s(request: EpisodeRequest) -> float:
        return random.Random(f"{seed}/{request.episode_id}").lognormvariate(mu, sigma)

    return duration_s
