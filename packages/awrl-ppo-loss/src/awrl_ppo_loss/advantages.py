"""Advantages of episodes against the other members of their group.

Invariants:
* members meet by group id, never by position: any order, any mix of group sizes;
* a group of one gives 0, and so does a group whose rewards are all alike; both are counted;
* nothing is added to the standard deviation: `s` successes among `n` give exactly
  `sqrt((n - s) / s)` and `-sqrt(s / (n - s))`.

Legend: `N` episodes, `M` groups.
"""

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from awrl_ppo_loss.arguments import require_integers, require_number
from awrl_ppo_loss.errors import ArgumentError, ArgumentTypeError

MIN_STANDARD_DEVIATION = 1e-6
"""Default below which the rewards of a group count as alike: far above float64 rounding of rewards
near 1, far below any difference between rewards that someone meant."""


@dataclass(frozen=True, slots=True)
class GroupStatistics:
    """What the groups of a batch looked like."""

    num_groups: int
    """Distinct group ids."""
    num_single: int
    """Groups of one member, whose advantage is 0."""
    num_zero_variance: int
    """Groups of two or more whose rewards are alike, whose advantages are 0."""
    num_mixed: int
    """Groups that carry a gradient: all others."""
    zero_variance_ids: tuple[Hashable, ...]
    """Ids of the groups counted in `num_zero_variance`, in order of first appearance."""
    reward_mean: float
    """Mean reward over episodes; 0 for no episode."""
    group_std_mean: float
    """Mean standard deviation over groups of two or more; 0 if there is none."""


@dataclass(frozen=True, slots=True)
class _Groups:
    """Rewards in float64 with the index of their group, groups in order of first appearance."""

    rewards: Tensor
    index: Tensor
    ids: tuple[Hashable, ...]
    sizes: Tensor
    means: Tensor
    stds: Tensor
    dtype: torch.dtype
    device: torch.device

    def result(self, advantages: Tensor) -> Tensor:
        return advantages.to(dtype=self.dtype, device=self.device)

    def statistics(self, min_std: float) -> GroupStatistics:
        is_single = self.sizes == 1
        is_alike = ~is_single & (self.stds <= min_std)
        several = self.stds[~is_single]
        return GroupStatistics(
            num_groups=len(self.ids),
            num_single=int(is_single.sum()),
            num_zero_variance=int(is_alike.sum()),
            num_mixed=int((~is_single & ~is_alike).sum()),
            zero_variance_ids=tuple(self.ids[i] for i in is_alike.nonzero().flatten().tolist()),
            reward_mean=float(self.rewards.mean()) if self.rewards.numel() else 0.0,
            group_std_mean=float(several.mean()) if several.numel() else 0.0,
        )


def group_normalized_advantages(
    rewards: Tensor | Sequence[float],
    group_ids: Tensor | Sequence[Hashable],
    *,
    min_std: float = MIN_STANDARD_DEVIATION,
) -> tuple[Tensor, GroupStatistics]:
    """Return `(reward - group mean) / group standard deviation`, and what the groups looked like.

    Shao et al. 2024, GRPO (arXiv 2402.03300), with the population standard
    deviation (divided by the number of members).

    Args:
        rewards: One per episode, `[N]`: floating tensor or numbers.
        group_ids: One per episode: integer tensor `[N]` or hashable ids.
        min_std: A group whose standard deviation is not above it gives 0; in units of reward.

    Returns:
        Advantages `[N]` in the dtype and on the device of the rewards (float32 for a list), and
        the statistics.

    Raises:
        ArgumentError: Lengths differ, or a reward is not finite (a fault is not a reward).
        ArgumentTypeError: Rewards are not numbers, or ids neither integers nor hashable.
        OptionError: `min_std` is negative.
    """
    require_number("min_std", min_std, at_least=0)
    groups = _group(rewards, group_ids)
    stds = groups.stds[groups.index]
    centered = groups.rewards - groups.means[groups.index]
    advantages = torch.where(stds > min_std, centered / torch.where(stds > min_std, stds, 1.0), 0.0)
    return groups.result(advantages), groups.statistics(min_std)


def leave_one_out_advantages(
    rewards: Tensor | Sequence[float],
    group_ids: Tensor | Sequence[Hashable],
    *,
    min_std: float = MIN_STANDARD_DEVIATION,
) -> tuple[Tensor, GroupStatistics]:
    """Return `reward - mean of the *other* members' rewards`, and what the groups looked like.

    Ahmadian et al. 2024, RLOO (arXiv 2402.14740). Arguments, results and errors are
    those of `group_normalized_advantages`; `min_std` decides only what counts as zero variance.

    Args:
        rewards: One per episode, `[N]`: floating tensor or numbers.
        group_ids: One per episode: integer tensor `[N]` or hashable ids.
        min_std: See above.

    Returns:
        Advantages `[N]` and the statistics.

    Raises:
        ArgumentError: Lengths differ or a reward is not finite.
        ArgumentTypeError: Rewards are not numbers, or ids neither integers nor hashable.
        OptionError: `min_std` is negative.
    """
    require_number("min_std", min_std, at_least=0)
    groups = _group(rewards, group_ids)
    sizes = groups.sizes[groups.index].double()
    centered = groups.rewards - groups.means[groups.index]
    is_alike = (groups.stds <= min_std)[groups.index]
    advantages = torch.where(is_alike, 0.0, centered * sizes / (sizes - 1).clamp(min=1))
    return groups.result(advantages), groups.statistics(min_std)


def _group(rewards: Tensor | Sequence[float], group_ids: Tensor | Sequence[Hashable]) -> _Groups:
    values, dtype, device = _reward_values(rewards)
    ids = _id_list(group_ids)
    if len(ids) != values.numel():
        raise ArgumentError(
            f"group_ids must hold one id per reward, got {len(ids)} ids for {values.numel()} "
            "rewards. Give every episode its group id."
        )
    position: dict[Hashable, int] = {}
    index = torch.tensor(
        [position.setdefault(group_id, len(position)) for group_id in ids], dtype=torch.int64
    )
    num_groups = len(position)
    sizes = torch.bincount(index, minlength=num_groups)
    zeros = torch.zeros(num_groups, dtype=torch.float64)
    means = zeros.index_add(0, index, values) / sizes.clamp(min=1)
    squares = zeros.index_add(0, index, (values - means[index]).square())
    stds = (squares / sizes.clamp(min=1)).sqrt()
    return _Groups(values, index, tuple(position), sizes, means, stds, dtype, device)


def _reward_values(rewards: Tensor | Sequence[object]) -> tuple[Tensor, torch.dtype, torch.device]:
    if isinstance(rewards, Tensor):
        if not rewards.is_floating_point():
            raise ArgumentTypeError(
                f"rewards must be of a floating dtype, got {rewards.dtype}. Pass `.float()`, and "
                "check that rewards and group_ids are not swapped."
            )
        if rewards.dim() != 1:
            raise ArgumentError(
                f"rewards must be of shape [N], got {list(rewards.shape)}. Pass one per episode."
            )
        dtype, device = rewards.dtype, rewards.device
        values = rewards.detach().to(device="cpu", dtype=torch.float64)
    else:
        numbers: list[float] = []
        for reward in rewards:
            if isinstance(reward, bool) or not isinstance(reward, int | float):
                raise ArgumentTypeError(
                    f"rewards must be numbers, got {reward!r}. Leave faulted episodes out."
                )
            numbers.append(float(reward))
        dtype, device = torch.float32, torch.device("cpu")
        values = torch.tensor(numbers, dtype=torch.float64)
    for position, value in enumerate(values.tolist()):
        if not math.isfinite(value):
            raise ArgumentError(
                f"rewards must be finite, got {value} at {position}. Leave faulted episodes out."
            )
    return values, dtype, device


def _id_list(group_ids: Tensor | Sequence[object]) -> list[Hashable]:
    if isinstance(group_ids, Tensor):
        values = require_integers("group_ids", group_ids)
        if values.dim() != 1:
            raise ArgumentError(
                f"group_ids must be of shape [N], got {list(values.shape)}. Pass one per episode."
            )
        return list(values.tolist())
    ids: list[Hashable] = []
    for group_id in group_ids:
        if not isinstance(group_id, Hashable):
            raise ArgumentTypeError(
                f"group_ids must be hashable, got {group_id!r}. Pass strings or integers."
            )
        ids.append(group_id)
    return ids
