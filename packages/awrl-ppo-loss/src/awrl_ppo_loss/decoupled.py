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
    RATIO_CEILING,
    StalenessWeight,
    WeightAction,
    staleness_weight,
    token_ratio,
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
    `A < 0` is Ye et al. 2020 (arXiv 1912.09729), equation 4.

    Args:
        ratio: `[N]`.
        advantages: `[N]`; 0 at masked positions, where the value is 0 too.
        clip_low: Lower distance from 1.
        clip_high: Upper distance from 1.
        dual_clip: Bound of the ratio where the advantage is negative, or `None`.
    """
    raw = ratio * advantages
    bounded = ratio.clamp(1 - clip_low, 1 + clip_high).mul_(advantages)
    # 1.0 where the clip leaves the objective alone: the derivative of `raw` by log r is `raw`.
    is_free = torch.le(raw, bounded, out=torch.empty_like(raw))
    is_unbounded = torch.lt(ratio, RATIO_CEILING, out=torch.empty_like(raw))
    value, derivative = torch.minimum(raw, bounded), raw.mul_(is_free).mul_(is_unbounded)
    # A bound acts on a positive advantage from above and on a negative one from below.
    signed = advantages.sign()
    num_clipped = raw.numel() - is_free.sum(dtype=torch.float64)
    high_minus_low = (signed - signed * is_free).sum(dtype=torch.float64)
    clip = ClipCounts((num_clipped - high_minus_low) / 2, (num_clipped + high_minus_low) / 2)
    if dual_clip is None:
        return ClippedObjective(value, derivative, clip)
    is_dual = (ratio > dual_clip) & (advantages < 0)
    return ClippedObjective(
        torch.where(is_dual, dual_clip * advantages, value),
        derivative.masked_fill(is_dual, 0.0),
        ClipCounts(clip.num_low, clip.num_high, is_dual.sum().double()),
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
    (arXiv 2110.00641), section 3; Fu et al. 2025, AReaL (arXiv 2505.24298), equation 5.

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
    weight = staleness_weight(
        token_ratio(batch.proximal, batch.behavior, batch.selection),
        batch.selection,
        cap=behav_imp_weight_cap,
        action=behav_imp_weight_action,
    )
    return clipped_loss(batch, weight, clip_low=clip_low, clip_high=clip_high, dual_clip=dual_clip)


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
    return clipped_loss(batch, None, clip_low=clip_low, clip_high=clip_high, dual_clip=dual_clip)


@torch.no_grad()
def clipped_loss(
    batch: PolicyBatch,
    weight: StalenessWeight | None,
    *,
    clip_low: float,
    clip_high: float,
    dual_clip: float | None,
) -> LossOutput:
    """Return the clipped loss of a batch, weighed by its staleness if that is given."""
    update = token_ratio(batch.current_values, batch.proximal, batch.selection)
    clipped = clipped_objective(
        update.value, batch.advantages, clip_low=clip_low, clip_high=clip_high, dual_clip=dual_clip
    )
    value, derivative = clipped.value, clipped.derivative
    witnesses = [update.log_sum]
    if weight is not None:
        value, derivative = value * weight.weight, derivative * weight.weight
        witnesses.append(weight.ratio.log_sum)
    with torch.enable_grad():
        loss = surrogate_loss(batch, value, batch.reduction.weigh(derivative), witnesses)
    metrics = policy_metrics(batch.selection, update, clipped.clip, weight)
    return LossOutput(loss, metrics, batch.reduction.denominator)
