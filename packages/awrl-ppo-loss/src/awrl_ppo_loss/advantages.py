"""Advantages of episodes against the other members of their group.

Invariants:
* members meet by group id, never by position: any order, any mix of group sizes;
* a group of one gives 0, and so does a group whose rewards are all alike;
* nothing is added to the standard deviation: `s` successes among `n` give exactly
  `sqrt((n - s) / s)` and `-sqrt(s / (n - s))`.

Legend: `N` episodes.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from typing import Literal, get_args

import torch
from torch import Tensor

from awrl_ppo_loss.arguments import require_choice
from awrl_ppo_loss.errors import PPOLossError

AdvantageNorm = Literal["mean_std", "mean"]
"""`mean_std`: over the group's standard deviation; `mean`: against the mean of the others."""

MIN_STANDARD_DEVIATION = 1e-6
"""Rewards of a group count as alike below it: far above float64 rounding of rewards near 1, far
below any difference between rewards that someone meant."""


def group_normalized_advantages(
    rewards: Sequence[float], group_ids: Sequence[Hashable], *, norm: AdvantageNorm = "mean_std"
) -> Tensor:
    """Return how much better than its group each episode did.

    `mean_std` is `(reward - group mean) / group standard deviation`, with the population's standard
    deviation (Shao et al. 2024, GRPO, arXiv 2402.03300). `mean` is the reward minus the mean of the
    *other* members' rewards (Ahmadian et al. 2024, RLOO, arXiv 2402.14740).

    Args:
        rewards: One per episode.
        group_ids: One per episode.

    Returns:
        Float32 `[N]`.

    Raises:
        PPOLossError: Lengths differ, a reward is not a finite number (a fault is not a reward), or
            the norm is unknown.
    """
    require_choice("norm", norm, get_args(AdvantageNorm))
    if len(group_ids) != len(rewards):
        raise PPOLossError(
            f"group_ids must hold one id per reward, got {len(group_ids)} ids for {len(rewards)} "
            "rewards. Give every episode its group id."
        )
    groups: dict[Hashable, list[int]] = {}
    for place, (group_id, reward) in enumerate(zip(group_ids, rewards, strict=True)):
        is_number = isinstance(reward, int | float)  # pyright: ignore[reportUnnecessaryIsInstance]
        if isinstance(reward, bool) or not is_number or not math.isfinite(reward):
            raise PPOLossError(
                f"rewards must be finite numbers, got {reward!r} at {place}. Leave faulted "
                "episodes out."
            )
        groups.setdefault(group_id, []).append(place)
    advantages = torch.zeros(len(rewards), dtype=torch.float64)
    for places in groups.values():
        members = torch.tensor([rewards[place] for place in places], dtype=torch.float64)
        std = members.std(correction=0)
        if std <= MIN_STANDARD_DEVIATION:
            continue
        scale = 1 / std if norm == "mean_std" else len(places) / (len(places) - 1)
        advantages[places] = (members - members.mean()) * scale
    return advantages.float()
