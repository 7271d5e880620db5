"""Truncated and masked importance sampling: decoupled PPO whose staleness weight is bounded.

Both treat the weight `w = exp(p - b)` as a mismatch between trainer and sampler, and are
`decoupled_ppo_loss` but for what happens to a weight outside its bounds.

Legend: `B` sequences, `T` tokens.
"""

from torch import Tensor

from awrl_ppo_loss.aggregation import Aggregation
from awrl_ppo_loss.decoupled import weighted_clipped_loss
from awrl_ppo_loss.options import require_clip, require_weight_range
from awrl_ppo_loss.output import LossOutput
from awrl_ppo_loss.surrogate import prepare_batch


def truncated_is_loss(
    current_logprobs: Tensor,
    proximal_logprobs: Tensor,
    behavior_logprobs: Tensor,
    advantages: Tensor,
    mask: Tensor,
    *,
    clip_low: float = 0.2,
    clip_high: float = 0.2,
    dual_clip: float | None = None,
    weight_high: float = 2.0,
    aggregation: Aggregation = "token_mean",
    denominator: float | Tensor | None = None,
    sequence_ids: Tensor | None = None,
    constant: float | None = None,
) -> LossOutput:
    """Return the loss with the weight `min(w, weight_high)` (TIS).

    Yao et al. 2025, "Your efficient RL framework secretly brings you off-policy RL training";
    the truncation itself is Espeholt et al. 2018, IMPALA (arXiv 1802.01561).

    Args:
        current_logprobs: Floating `[B, T]` or packed `[T]`; the only one with a gradient.
        proximal_logprobs: Same shape.
        behavior_logprobs: Same shape.
        advantages: Same shape, floating.
        mask: Bool of the same shape, true at trainable tokens.
        clip_low: The update ratio is clipped below at `1 - clip_low`; in [0, 1].
        clip_high: The update ratio is clipped above at `1 + clip_high`; >= 0.
        dual_clip: Bounds the update ratio where the advantage is negative; > `1 + clip_high`.
        weight_high: Largest staleness weight; >= 1.
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
    require_weight_range(0.0, weight_high)
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
        cap=weight_high,
        action="clamp",
        clip_low=clip_low,
        clip_high=clip_high,
        dual_clip=dual_clip,
    )


def masked_is_loss(
    current_logprobs: Tensor,
    proximal_logprobs: Tensor,
    behavior_logprobs: Tensor,
    advantages: Tensor,
    mask: Tensor,
    *,
    clip_low: float = 0.2,
    clip_high: float = 0.2,
    dual_clip: float | None = None,
    weight_low: float = 0.5,
    weight_high: float = 5.0,
    aggregation: Aggregation = "token_mean",
    denominator: float | Tensor | None = None,
    sequence_ids: Tensor | None = None,
    constant: float | None = None,
) -> LossOutput:
    """Return the loss in which tokens with `w` outside [weight_low, weight_high] have weight 0.

    Two-sided masking as in Ling Team 2025, IcePop (arXiv 2510.18855). The denominator
    stays the number of trainable tokens.

    Args:
        current_logprobs: Floating `[B, T]` or packed `[T]`; the only one with a gradient.
        proximal_logprobs: Same shape.
        behavior_logprobs: Same shape.
        advantages: Same shape, floating.
        mask: Bool of the same shape, true at trainable tokens.
        clip_low: The update ratio is clipped below at `1 - clip_low`; in [0, 1].
        clip_high: The update ratio is clipped above at `1 + clip_high`; >= 0.
        dual_clip: Bounds the update ratio where the advantage is negative; > `1 + clip_high`.
        weight_low: Smallest staleness weight that counts; in [0, 1].
        weight_high: Largest staleness weight that counts; >= 1.
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
    require_weight_range(weight_low, weight_high)
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
        floor=weight_low,
        cap=weight_high,
        action="mask",
        clip_low=clip_low,
        clip_high=clip_high,
        dual_clip=dual_clip,
    )
