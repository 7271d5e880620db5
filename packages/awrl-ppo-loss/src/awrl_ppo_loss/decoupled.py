"""PPO with two ratios (decoupled) and with one (coupled), as pure functions of tensors.

Invariants:
* the gradient reaches `current_logprobs` only;
* `proximal == behavior` makes the decoupled loss equal to the coupled one bit for bit;
* the clip acts on current / proximal alone, never on the staleness weight proximal / behavior;
* masked positions may hold anything and change neither loss nor gradient; an unmasked NaN or
  infinity stays visible as NaN.

Legend: `B` sequences, `T` tokens, `N` positions flattened; `c, p, b` current, proximal, behavior
log-probs; `A` advantages; `r, w` update ratio and staleness weight.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from awrl_ppo_loss.aggregation import Aggregation
from awrl_ppo_loss.metrics import ClipCounts, policy_metrics
from awrl_ppo_loss.options import require_cap, require_clip
from awrl_ppo_loss.output import LossOutput
from awrl_ppo_loss.ratios import (
    MAX_RATIO,
    Ratios,
    StalenessWeight,
    WeightAction,
    staleness_weight,
    token_ratios,
)
from awrl_ppo_loss.surrogate import PolicyBatch, prepare_batch, surrogate_loss


@dataclass(frozen=True, slots=True)
class ClippedObjective:
    """PPO's per-token objective, its derivative, and what the bounds did."""

    value: Tensor
    """`min(r A, clip(r) A)`, with the dual clip if asked for, `[N]`."""
    derivative: Tensor
    """Derivative of the value by `log r`, `[N]`."""
    clip: ClipCounts
    """On how many tokens the bounds act."""


def clipped_objective(
    ratio: Tensor,
    advantages: Tensor,
    *,
    clip_low: float,
    clip_high: float,
    dual_clip: float | None = None,
) -> ClippedObjective:
    """Return `min(r A, clip(r, 1 - clip_low, 1 + clip_high) A)` per token.

    Schulman et al. 2017 (arXiv 1707.06347), equation 7; the dual clip `max(., dual_clip A)` for
    `A < 0` is Ye et al. 2020 (arXiv 1912.09729).

    Args:
        ratio: `[N]`.
        advantages: `[N]`; 0 at masked positions, where the value is 0 too.
        clip_low: Lower distance from 1.
        clip_high: Upper distance from 1.
        dual_clip: Bound of the ratio where the advantage is negative, or `None`.
    """
    raw = ratio * advantages
    bounded = ratio.clamp(1 - clip_low, 1 + clip_high).mul_(advantages)
    value = torch.minimum(raw, bounded)
    # Comparisons as 0.0 and 1.0: arithmetic with them is faster than branching, and keeps NaN.
    is_clipped = torch.gt(raw, bounded, out=bounded)
    is_below_max = torch.lt(ratio, MAX_RATIO, out=torch.empty_like(ratio))
    # The derivative of r A by log r is r A, and 0 where a bound acts.
    derivative = raw.addcmul_(raw, is_clipped, value=-1).mul_(is_below_max)
    # The upper bound acts where the advantage is positive, the lower one where it is negative.
    # Sums of zeros and ones are exact in float32 up to 16.7 million tokens.
    num_clipped, high_minus_low = is_clipped.sum(), torch.dot(is_clipped, advantages.sign())
    low_high = torch.stack((num_clipped - high_minus_low, num_clipped + high_minus_low)) / 2
    if dual_clip is None:
        return ClippedObjective(value, derivative, ClipCounts(low_high.double()))
    is_dual = (ratio > dual_clip) & (advantages < 0)
    return ClippedObjective(
        torch.where(is_dual, dual_clip * advantages, value),
        derivative.masked_fill(is_dual, 0.0),
        ClipCounts(low_high.double(), is_dual.sum().double()),
    )


def decoupled_ppo_loss(
    current_logprobs: Tensor,
    proximal_logprobs: Tensor,
    behavior_logprobs: Tensor,
    advantages: Tensor,
    mask: Tensor,
    *,
    clip_low: float = 0.2,
    clip_high: float = 0.2,
    dual_clip: float | None = None,
    behav_imp_weight_cap: float | None = None,
    behav_imp_weight_action: WeightAction = "mask",
    aggregation: Aggregation = "token_mean",
    denominator: float | Tensor | None = None,
    sequence_ids: Tensor | None = None,
    constant: float | None = None,
) -> LossOutput:
    """Return the decoupled PPO loss of a micro-batch.

    `L = -w min(r A, clip(r, 1 - clip_low, 1 + clip_high) A)` per token, with the update ratio
    `r = exp(c - p)` and the staleness weight `w = stop_gradient(exp(p - b))`: Hilton et al. 2021
    (arXiv 2110.00641), section 3; Fu et al. 2025, AReaL (arXiv 2505.24298), section 5.

    Args:
        current_logprobs: Floating `[B, T]` or packed `[T]`, of the policy being updated; the only
            argument that receives a gradient.
        proximal_logprobs: Same shape, of the policy at the start of this update.
        behavior_logprobs: Same shape, of the policy that sampled each token.
        advantages: Same shape, floating.
        mask: Bool of the same shape, true at trainable tokens.
        clip_low: The update ratio is clipped below at `1 - clip_low`; in [0, 1].
        clip_high: The update ratio is clipped above at `1 + clip_high`; >= 0.
        dual_clip: Bounds the update ratio where the advantage is negative; > `1 + clip_high`.
        behav_imp_weight_cap: Largest staleness weight; `None` (the default) keeps all. The
            denominator stays the number of trainable tokens whatever the cap drops.
        behav_imp_weight_action: `mask` gives a token above the cap weight 0, `clamp` the cap.
        aggregation: See `aggregate`.
        denominator: Global count over micro-batches and ranks (`count_denominator`); `None` counts
            this call's own.
        sequence_ids: Integers of the mask's shape; needed when packed sequences are aggregated.
        constant: `k` of the constant aggregations.

    Returns:
        The loss (float64 scalar), metrics, and the denominator used.

    Raises:
        ArgumentError: A shape, a device or the denominator is wrong, or arguments look swapped.
        ArgumentTypeError: The mask is not bool, or another argument is not floating.
        OptionError: An option is outside its range or unknown.
    """
    require_clip(clip_low, clip_high, dual_clip)
    require_cap(behav_imp_weight_cap, behav_imp_weight_action)
    batch = prepare_batch(
        current_logprobs,
        proximal_logprobs,
        behavior_logprobs,
        advantages,
        mask,
        aggregation=aggregation,
        denominator=denominator,
        sequence_ids=sequence_ids,
        constant=constant,
    )
    return weighted_clipped_loss(
        batch,
        cap=behav_imp_weight_cap,
        action=behav_imp_weight_action,
        clip_low=clip_low,
        clip_high=clip_high,
        dual_clip=dual_clip,
    )


def ppo_loss(
    current_logprobs: Tensor,
    behavior_logprobs: Tensor,
    advantages: Tensor,
    mask: Tensor,
    *,
    clip_low: float = 0.2,
    clip_high: float = 0.2,
    dual_clip: float | None = None,
    aggregation: Aggregation = "token_mean",
    denominator: float | Tensor | None = None,
    sequence_ids: Tensor | None = None,
    constant: float | None = None,
) -> LossOutput:
    """Return the coupled PPO loss: one ratio `exp(c - b)`, clipped as a whole.

    Schulman et al. 2017 (arXiv 1707.06347), equation 7. Options, results and errors are those of
    `decoupled_ppo_loss`; `update_ratio/*` speaks of current over behavior.

    Args:
        current_logprobs: Floating `[B, T]` or packed `[T]`; the only one with a gradient.
        behavior_logprobs: Same shape, of the policy that sampled each token.
        advantages: Same shape, floating.
        mask: Bool of the same shape, true at trainable tokens.
        clip_low: The ratio is clipped below at `1 - clip_low`; in [0, 1].
        clip_high: The ratio is clipped above at `1 + clip_high`; >= 0.
        dual_clip: Bounds the ratio where the advantage is negative; > `1 + clip_high`.
        aggregation: See `aggregate`.
        denominator: Global count; `None` counts this call's own.
        sequence_ids: Integers of the mask's shape; needed when packed sequences are aggregated.
        constant: `k` of the constant aggregations.

    Returns:
        The loss (float64 scalar), metrics, and the denominator used.

    Raises:
        ArgumentError: A shape, a device or the denominator is wrong, or arguments look swapped.
        ArgumentTypeError: The mask is not bool, or another argument is not floating.
        OptionError: An option is outside its range or unknown.
    """
    require_clip(clip_low, clip_high, dual_clip)
    batch = prepare_batch(
        current_logprobs,
        None,
        behavior_logprobs,
        advantages,
        mask,
        aggregation=aggregation,
        denominator=denominator,
        sequence_ids=sequence_ids,
        constant=constant,
    )
    ratios = token_ratios((batch.current_values, batch.behavior), batch.selection)
    clipped = clipped_objective(
        ratios.update,
        batch.advantages,
        clip_low=clip_low,
        clip_high=clip_high,
        dual_clip=dual_clip,
    )
    return loss_output(batch, ratios, clipped, None)


def weighted_clipped_loss(
    batch: PolicyBatch,
    *,
    floor: float | None = None,
    cap: float | None,
    action: WeightAction,
    clip_low: float,
    clip_high: float,
    dual_clip: float | None,
) -> LossOutput:
    """Return the loss with two ratios, its staleness weight bounded to [floor, cap] by `action`."""
    ratios = token_ratios((batch.current_values, batch.proximal, batch.behavior), batch.selection)
    weight = staleness_weight(
        ratios.staleness, batch.selection, floor=floor, cap=cap, action=action
    )
    clipped = clipped_objective(
        ratios.update,
        batch.advantages * weight.value,
        clip_low=clip_low,
        clip_high=clip_high,
        dual_clip=dual_clip,
    )
    return loss_output(batch, ratios, clipped, weight)


def loss_output(
    batch: PolicyBatch,
    ratios: Ratios,
    clipped: ClippedObjective,
    weight: StalenessWeight | None,
    *,
    derivative: Tensor | None = None,
) -> LossOutput:
    """Return loss and metrics of a clipped objective that already holds its staleness weight.

    Args:
        batch: The checked arguments.
        ratios: The ratios that were clipped and weighed.
        clipped: The objective.
        weight: The staleness weight; `None` for a coupled loss.
        derivative: Of the weighted objectives' sum by the current log-probs; `None` where each
            token's objective depends on its own log-prob alone.
    """
    if derivative is None:
        derivative = batch.reduction.weigh(clipped.derivative)
    loss = surrogate_loss(batch, clipped.value, derivative, ratios.log_sums)
    metrics = policy_metrics(batch.selection, ratios, clipped.clip, weight)
    return LossOutput(loss, metrics, batch.reduction.denominator)
