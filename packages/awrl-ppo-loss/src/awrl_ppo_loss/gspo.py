"""PPO whose ratios belong to whole sequences (GSPO), with the staleness weight of the same kind.

Invariants:
* every trainable token of a sequence carries the same two ratios, the geometric means over it;
* a sequence weighs the same whatever its length, under the default aggregation;
* `proximal == behavior` gives plain GSPO.

Legend: `B` sequences, `T` tokens, `N` positions flattened, `K` ratios, `S` sequences.
"""

import torch
from torch import Tensor

from awrl_ppo_loss.aggregation import Aggregation, sequence_index, sequence_sums
from awrl_ppo_loss.decoupled import clipped_objective, loss_output
from awrl_ppo_loss.options import require_cap, require_clip
from awrl_ppo_loss.output import LossOutput
from awrl_ppo_loss.ratios import (
    Ratios,
    WeightAction,
    bounded_ratios,
    log_ratios,
    staleness_weight,
)
from awrl_ppo_loss.surrogate import PolicyBatch, prepare_batch


def gspo_loss(
    current_logprobs: Tensor,
    proximal_logprobs: Tensor,
    behavior_logprobs: Tensor,
    advantages: Tensor,
    mask: Tensor,
    *,
    clip_low: float = 3e-4,
    clip_high: float = 4e-4,
    dual_clip: float | None = None,
    behav_imp_weight_cap: float | None = None,
    behav_imp_weight_action: WeightAction = "mask",
    aggregation: Aggregation = "sequence_mean",
    denominator: float | Tensor | None = None,
    sequence_ids: Tensor | None = None,
    constant: float | None = None,
) -> LossOutput:
    """Return the loss with sequence-level ratios.

    `s = exp(mean over the sequence of c - p)` is clipped in place of the token's ratio: Zheng et
    al. 2025, GSPO (arXiv 2507.18071), equations 5 and 7, with their clip range as default. The
    staleness weight is `exp(mean of p - b)`, so that the two multiply to the coupled ratio.
    Advantages may differ between the tokens of a sequence (their equation 13).

    Args:
        current_logprobs: Floating `[B, T]` or packed `[T]`; the only one with a gradient.
        proximal_logprobs: Same shape.
        behavior_logprobs: Same shape.
        advantages: Same shape, floating: expand one per sequence to its tokens.
        mask: Bool of the same shape, true at trainable tokens.
        clip_low: The update ratio is clipped below at `1 - clip_low`; in [0, 1].
        clip_high: The update ratio is clipped above at `1 + clip_high`; >= 0.
        dual_clip: Bounds the update ratio where the advantage is negative; > `1 + clip_high`.
        behav_imp_weight_cap: Largest staleness weight; `None` keeps all.
        behav_imp_weight_action: `mask` gives a sequence above the cap weight 0, `clamp` the cap.
        aggregation: See `aggregate`.
        denominator: Global count; `None` counts this call's own.
        sequence_ids: Integers of the mask's shape; needed for packed sequences.
        constant: `k` of the constant aggregations.

    Returns:
        The loss (float64 scalar), metrics weighted by token, and the denominator used.

    Raises:
        ArgumentError: A shape, a device or the denominator is wrong, arguments look swapped, or
            packed sequences come without ids.
        ArgumentTypeError: A dtype is wrong.
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
    index, num_sequences = sequence_index(mask, sequence_ids)
    sequences = _Sequences(batch, index.reshape(-1), num_sequences)
    ratios = sequences.ratios()
    weight = staleness_weight(
        ratios.staleness, batch.selection, cap=behav_imp_weight_cap, action=behav_imp_weight_action
    )
    clipped = clipped_objective(
        ratios.update,
        batch.advantages * weight.value,
        clip_low=clip_low,
        clip_high=clip_high,
        dual_clip=dual_clip,
    )
    # log s is the mean over the sequence, so each of its tokens gets the mean of the derivatives.
    derivative = sequences.mean(batch.reduction.weigh(clipped.derivative))
    return loss_output(batch, ratios, clipped, weight, derivative=derivative)


class _Sequences:
    """The sequences of a batch and means over their trainable tokens."""

    def __init__(self, batch: PolicyBatch, index: Tensor, num_sequences: int) -> None:
        self.batch, self.index, self.num_sequences = batch, index, num_sequences
        lengths = sequence_sums(batch.selection.mask.double(), index, num_sequences)
        self.lengths = lengths.clamp_(min=1)

    def mean(self, values: Tensor) -> Tensor:
        """Give every trainable token the mean of its sequence; 0 at masked positions."""
        sums = sequence_sums(values.double(), self.index, self.num_sequences)
        means = (sums / self.lengths)[self.index].to(values.dtype)
        return self.batch.selection.keep(means)

    def ratios(self) -> Ratios:
        """Return the geometric means of both ratios over each sequence, per token."""
        batch = self.batch
        logs = log_ratios((batch.current_values, batch.proximal, batch.behavior), batch.selection)
        return bounded_ratios(torch.stack([self.mean(row) for row in logs]), batch.selection)
