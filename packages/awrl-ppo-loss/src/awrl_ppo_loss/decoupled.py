"""PPO with two ratios (decoupled) and with one (coupled), as pure functions of tensors.

Invariants:
* the gradient reaches `current_logprobs` only;
* `proximal == behavior` makes the decoupled loss equal to the coupled one bit for bit;
* the clip acts on current / proximal alone, never on the staleness weight proximal / behavior;
* masked positions may hold anything and change neither loss nor gradient; an unmasked NaN or
  infinity stays visible as NaN.

Legend: `B` sequences, `T` tokens; `c, p, b` current, proximal, behavior log-probs; `A` advantages.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from awrl_ppo_loss.aggregation import (
    Aggregation,
    aggregate,
    require_aggregation,
    resolve_denominator,
)
from awrl_ppo_loss.arguments import require_gradient_owner, require_mask, require_tokens
from awrl_ppo_loss.metrics import coupled_staleness_metrics, staleness_metrics, update_metrics
from awrl_ppo_loss.output import LossOutput
from awrl_ppo_loss.ratios import (
    WeightAction,
    masked_log_ratio,
    require_cap,
    require_clip,
    staleness_weight,
    upcast,
)


@dataclass(frozen=True, slots=True)
class ClippedObjective:
    """PPO's per-token objective with what the bounds did to it."""

    objective: Tensor
    """`min(r A, clip(r) A)`, with the dual clip if asked for; 0 at masked positions."""
    metrics: dict[str, Tensor | float]
    """`clip/*`, `update_ratio/*` and the update's KL."""


def clipped_objective(
    log_ratio: Tensor,
    advantages: Tensor,
    mask: Tensor,
    *,
    clip_low: float,
    clip_high: float,
    dual_clip: float | None,
) -> ClippedObjective:
    """Return `min(r A, clip(r, 1 - clip_low, 1 + clip_high) A)` per token.

    Schulman et al. 2017 (arXiv 1707.06347), equation 7; the dual clip `max(., dual_clip A)` for
    `A < 0` is Ye et al. 2020 (arXiv 1912.09729), equation 4.

    Args:
        log_ratio: `[B, T]` or `[T]`, 0 at masked positions, with gradient.
        advantages: Same shape; masked positions may hold anything.
        mask: Bool of the same shape.
        clip_low: Lower distance from 1.
        clip_high: Upper distance from 1.
        dual_clip: Bound of the ratio where the advantage is negative, or `None`.
    """
    gain = torch.where(mask, upcast(advantages), 0.0).to(log_ratio.dtype)
    ratio = log_ratio.exp()
    raw = ratio * gain
    objective = torch.minimum(raw, ratio.clamp(1 - clip_low, 1 + clip_high) * gain)
    with torch.no_grad():
        is_low = (ratio < 1 - clip_low) & (gain < 0)
        is_high = (ratio > 1 + clip_high) & (gain > 0)
        is_dual = None if dual_clip is None else (ratio > dual_clip) & (gain < 0)
        metrics = update_metrics(
            log_ratio, ratio, mask, is_low=is_low, is_high=is_high, is_dual=is_dual
        )
    if dual_clip is not None:
        bounded = torch.maximum(objective, dual_clip * gain)
        objective = torch.where(gain < 0, bounded, objective)
    return ClippedObjective(objective, metrics)


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
    require_aggregation(aggregation, constant)
    require_policy_arguments(
        current_logprobs, proximal_logprobs, behavior_logprobs, advantages, mask
    )
    staleness = staleness_weight(
        proximal_logprobs,
        behavior_logprobs,
        mask,
        cap=behav_imp_weight_cap,
        action=behav_imp_weight_action,
    )
    clipped = clipped_objective(
        masked_log_ratio(current_logprobs, proximal_logprobs.detach(), mask),
        advantages.detach(),
        mask,
        clip_low=clip_low,
        clip_high=clip_high,
        dual_clip=dual_clip,
    )
    total = resolve_denominator(mask, aggregation, denominator, sequence_ids)
    loss = aggregate(
        -staleness.weight * clipped.objective,
        mask,
        aggregation=aggregation,
        denominator=total,
        sequence_ids=sequence_ids,
        constant=constant,
    )
    return LossOutput(loss, clipped.metrics | staleness_metrics(staleness, mask), total)


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

    Schulman et al. 2017 (arXiv 1707.06347), equation 7. Arguments, results and errors are those of
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
    require_aggregation(aggregation, constant)
    require_policy_arguments(current_logprobs, None, behavior_logprobs, advantages, mask)
    clipped = clipped_objective(
        masked_log_ratio(current_logprobs, behavior_logprobs.detach(), mask),
        advantages.detach(),
        mask,
        clip_low=clip_low,
        clip_high=clip_high,
        dual_clip=dual_clip,
    )
    total = resolve_denominator(mask, aggregation, denominator, sequence_ids)
    loss = aggregate(
        -clipped.objective,
        mask,
        aggregation=aggregation,
        denominator=total,
        sequence_ids=sequence_ids,
        constant=constant,
    )
    return LossOutput(loss, clipped.metrics | coupled_staleness_metrics(), total)


def require_policy_arguments(
    current_logprobs: Tensor,
    proximal_logprobs: Tensor | None,
    behavior_logprobs: Tensor,
    advantages: Tensor,
    mask: Tensor,
) -> None:
    """Refuse wrong shapes, dtypes, devices and swapped arguments of a policy loss.

    Raises:
        ArgumentError: A shape or device is wrong, or arguments look swapped.
        ArgumentTypeError: The mask is not bool, or another argument is not floating.
    """
    require_mask(mask)
    constants = {"behavior_logprobs": behavior_logprobs, "advantages": advantages}
    if proximal_logprobs is not None:
        constants["proximal_logprobs"] = proximal_logprobs
    for name, value in {"current_logprobs": current_logprobs, **constants}.items():
        require_tokens(name, value, mask)
    require_gradient_owner(current_logprobs, constants)
