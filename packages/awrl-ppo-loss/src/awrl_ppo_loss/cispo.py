"""Clipped importance weights on a policy gradient (CISPO): no token loses its gradient.

Legend: `B` sequences, `T` tokens, `N` positions flattened; `c, p, b` current, proximal, behavior
log-probs; `A` advantages.
"""

import torch
from torch import Tensor

from awrl_ppo_loss.aggregation import Aggregation
from awrl_ppo_loss.metrics import ClipCounts, policy_metrics
from awrl_ppo_loss.options import require_cap, require_clip
from awrl_ppo_loss.output import LossOutput
from awrl_ppo_loss.ratios import WeightAction, staleness_weight, token_ratios
from awrl_ppo_loss.surrogate import prepare_batch, surrogate_loss


def cispo_loss(
    current_logprobs: Tensor,
    proximal_logprobs: Tensor,
    behavior_logprobs: Tensor,
    advantages: Tensor,
    mask: Tensor,
    *,
    clip_low: float = 1.0,
    clip_high: float = 0.2,
    behav_imp_weight_cap: float | None = None,
    behav_imp_weight_action: WeightAction = "mask",
    aggregation: Aggregation = "token_mean",
    denominator: float | Tensor | None = None,
    sequence_ids: Tensor | None = None,
    constant: float | None = None,
) -> LossOutput:
    """Return `-w stop_gradient(clip(r, 1 - clip_low, 1 + clip_high)) A c` per token.

    MiniMax 2025, MiniMax-M1 (arXiv 2506.13585), which leaves the ratio without a
    lower bound (`clip_low = 1`), here with the staleness weight `w` of `decoupled_ppo_loss`. The
    value is a surrogate whose gradient matters; it is not an objective to compare.

    Args:
        current_logprobs: Floating `[B, T]` or packed `[T]`; the only one with a gradient.
        proximal_logprobs: Same shape.
        behavior_logprobs: Same shape.
        advantages: Same shape, floating.
        mask: Bool of the same shape, true at trainable tokens.
        clip_low: The update ratio is bounded below at `1 - clip_low`; in [0, 1].
        clip_high: The update ratio is bounded above at `1 + clip_high`; >= 0.
        behav_imp_weight_cap: Largest staleness weight; `None` keeps all.
        behav_imp_weight_action: `mask` gives a token above the cap weight 0, `clamp` the cap.
        aggregation: See `aggregate`.
        denominator: Global count; `None` counts this call's own.
        sequence_ids: Integers of the mask's shape; needed when packed sequences are aggregated.
        constant: `k` of the constant aggregations.

    Returns:
        The loss (float64 scalar), metrics (`clip/*` are the shares of tokens whose ratio lies
        outside the bounds, whatever the advantage), and the denominator used.

    Raises:
        ArgumentError: A shape, a device or the denominator is wrong, or arguments look swapped.
        ArgumentTypeError: The mask is not bool, or another argument is not floating.
        OptionError: An option is outside its range or unknown.
    """
    require_clip(clip_low, clip_high)
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
    selection = batch.selection
    ratios = token_ratios((batch.current_values, batch.proximal, batch.behavior), selection)
    weight = staleness_weight(
        ratios.staleness, selection, cap=behav_imp_weight_cap, action=behav_imp_weight_action
    )
    low, high = 1 - clip_low, 1 + clip_high
    coefficient = ratios.update.clamp(low, high).mul_(weight.value).mul_(batch.advantages)
    value = coefficient * selection.keep(batch.current_values)
    loss = surrogate_loss(batch, value, batch.reduction.weigh(coefficient), ratios.log_sums)
    low_high = torch.stack(
        (((ratios.update < low) & selection.mask).sum(), (ratios.update > high).sum())
    )
    metrics = policy_metrics(selection, ratios, ClipCounts(low_high.double()), weight)
    return LossOutput(loss, metrics, batch.reduction.denominator)
