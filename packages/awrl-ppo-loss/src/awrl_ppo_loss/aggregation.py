"""From per-token losses to one number over a *global* denominator.

Invariants:
* a loss is always `sum over these tokens of weight * loss / denominator`, and the denominator
  speaks of the whole batch: the sum of `count_denominator` over all micro-batches and ranks. The
  losses of the parts then *add up* to the loss of the whole, and so do their gradients (a trainer
  whose ranks average gradients multiplies by the number of ranks);
* the denominator counts trainable tokens (or sequences that have one), whatever a filter drops;
* sums are taken in float64; masked positions add exactly 0, whatever they hold;
* no trainable token anywhere gives exactly 0.0 with zero gradients.

Legend: `B` sequences, `T` tokens, `S` packed sequences.
"""

import math
from dataclasses import dataclass
from typing import Literal, get_args

import torch
from torch import Tensor

from awrl_ppo_loss.arguments import (
    require_choice,
    require_integers,
    require_mask,
    require_number,
    require_shape,
    require_tokens,
)
from awrl_ppo_loss.errors import ArgumentError, OptionError

Aggregation = Literal["token_mean", "sequence_mean", "step_constant", "sequence_constant"]
"""How per-token losses become one number; `count_denominator` says what each divides by."""

_CONSTANT_AGGREGATIONS = ("step_constant", "sequence_constant")
_TOKEN_AGGREGATIONS = ("token_mean", "step_constant")


def require_aggregation(aggregation: str, constant: float | None) -> None:
    """Refuse an unknown aggregation, and a constant that it does not use or lacks.

    Raises:
        OptionError: The aggregation is unknown, or `constant` is missing, superfluous or not > 0.
    """
    require_choice("aggregation", aggregation, get_args(Aggregation))
    if aggregation in _CONSTANT_AGGREGATIONS:
        require_number("constant", constant, above=0)
    elif constant is not None:
        raise OptionError(
            f"constant must be None with aggregation {aggregation!r}, got {constant!r}. "
            f"Only {' and '.join(_CONSTANT_AGGREGATIONS)} divide by it."
        )


def sequence_index(mask: Tensor, sequence_ids: Tensor | None) -> tuple[Tensor, int]:
    """Give every token the index of its sequence, and the number of sequences.

    Args:
        mask: Bool `[B, T]` or packed `[T]`.
        sequence_ids: Integers of the mask's shape, equal within a sequence; `None` takes the rows
            of `[B, T]`.

    Returns:
        Int64 indices of the mask's shape in `[0, S)`, and `S`.

    Raises:
        ArgumentError: Packed tokens come without ids, or the shapes differ.
        ArgumentTypeError: The ids are not integers.
    """
    if sequence_ids is None:
        if mask.dim() == 1:
            raise ArgumentError(
                "sequence_ids must be given for packed tokens [T] when sequences matter, got None. "
                "Pass integers that are equal within a sequence."
            )
        rows = torch.arange(mask.shape[0], device=mask.device)
        return rows[:, None].expand_as(mask), mask.shape[0]
    require_shape("sequence_ids", require_integers("sequence_ids", sequence_ids), mask)
    unique, index = torch.unique(sequence_ids, return_inverse=True)
    return index, unique.numel()


def sequence_sums(values: Tensor, index: Tensor, num_sequences: int) -> Tensor:
    """Sum per-token values within each sequence, `[S]`, differentiably."""
    flat = torch.zeros(num_sequences, dtype=values.dtype, device=values.device)
    return flat.index_add(0, index.reshape(-1), values.reshape(-1))


def count_denominator(
    mask: Tensor, *, aggregation: Aggregation = "token_mean", sequence_ids: Tensor | None = None
) -> Tensor:
    """Count what this micro-batch adds to the global denominator.

    Sum it over micro-batches and ranks, and pass the sum as `denominator` to every loss call of
    the batch. A sequence must lie within one micro-batch when sequences are counted.

    Args:
        mask: Bool `[B, T]` or packed `[T]`, true at trainable tokens.
        aggregation: `token_mean` and `step_constant` count trainable tokens; `sequence_mean` and
            `sequence_constant` count sequences with at least one.
        sequence_ids: Integers of the mask's shape, for packed sequences.

    Returns:
        Float64 scalar on the mask's device.

    Raises:
        ArgumentError: Shapes differ, or packed sequences come without ids.
        ArgumentTypeError: The mask is not bool or the ids are not integers.
        OptionError: The aggregation is unknown.
    """
    require_mask(mask)
    require_choice("aggregation", aggregation, get_args(Aggregation))
    if aggregation in _TOKEN_AGGREGATIONS:
        return mask.sum().double()
    index, num_sequences = sequence_index(mask, sequence_ids)
    return (sequence_sums(mask.long(), index, num_sequences) > 0).sum().double()


@dataclass(frozen=True, slots=True)
class Reduction:
    """How the per-token losses of one call become its share of the batch's loss."""

    denominator: Tensor
    """Float64 scalar: the global denominator."""
    divisor: Tensor | float
    """Denominator times constant, never 0; float64 scalar, or a number where it is known."""
    token_weights: Tensor | None
    """Float64 `[N]`, or `None` where every token weighs 1."""

    def weigh(self, values: Tensor) -> Tensor:
        """Return flattened values `[N]` times their token's weight, in float64 if there is one."""
        return values if self.token_weights is None else values * self.token_weights


def prepare_reduction(
    mask: Tensor,
    *,
    aggregation: Aggregation,
    denominator: float | Tensor | None,
    sequence_ids: Tensor | None,
    constant: float | None,
    num_tokens: Tensor | None = None,
) -> Reduction:
    """Check the options of an aggregation and resolve its denominator and weights.

    `num_tokens` is this call's float64 count, where the caller has it already.

    Raises:
        ArgumentError: Shapes differ, packed sequences come without ids, or `denominator` < 0.
        ArgumentTypeError: The ids are not integers.
        OptionError: The aggregation is unknown or `constant` does not fit it.
    """
    require_aggregation(aggregation, constant)
    if denominator is None and num_tokens is not None and aggregation in _TOKEN_AGGREGATIONS:
        total, divisor = num_tokens, num_tokens.clamp(min=1)
    else:
        total, divisor = _resolve(denominator, mask, aggregation, sequence_ids)
    if constant is not None:
        divisor = divisor * constant
    weights = None
    if aggregation == "sequence_mean":
        index, num_sequences = sequence_index(mask, sequence_ids)
        lengths = sequence_sums(mask.double(), index, num_sequences).clamp_(min=1)
        weights = lengths.reciprocal_()[index.reshape(-1)]
    return Reduction(total, divisor, weights)


def _resolve(
    denominator: float | Tensor | None,
    mask: Tensor,
    aggregation: Aggregation,
    sequence_ids: Tensor | None,
) -> tuple[Tensor, Tensor | float]:
    """Return the denominator, and the same with 1 in place of 0."""
    if denominator is None:
        total = count_denominator(mask, aggregation=aggregation, sequence_ids=sequence_ids)
        return total, total.clamp(min=1)
    if not isinstance(denominator, Tensor):
        number = _require_count(float(denominator))
        total = torch.full((), number, dtype=torch.float64, device=mask.device)
        return total, number or 1.0
    if denominator.numel() != 1:
        raise ArgumentError(
            f"denominator must be one number, got shape {list(denominator.shape)}. Sum it first."
        )
    total = denominator.detach().reshape(()).to(device=mask.device, dtype=torch.float64)
    if total.device.type == "cpu":  # elsewhere, reading it would wait for the device
        _require_count(total.item())
    return total, torch.where(total == 0, 1.0, total)


def _require_count(denominator: float) -> float:
    if not math.isfinite(denominator) or denominator < 0:
        raise ArgumentError(
            f"denominator must be finite and >= 0, got {denominator}. Pass the global count of "
            "trainable tokens or sequences."
        )
    return denominator


def aggregate(
    per_token: Tensor,
    mask: Tensor,
    *,
    aggregation: Aggregation = "token_mean",
    denominator: float | Tensor | None = None,
    sequence_ids: Tensor | None = None,
    constant: float | None = None,
) -> Tensor:
    """Sum per-token losses of any kind over a global denominator `N`, differentiably.

    * `token_mean`: `sum L / N`, `N` trainable tokens;
    * `sequence_mean`: `sum over sequences of their token mean / N`, `N` sequences;
    * `step_constant`: `sum L / (k N)`, `N` trainable tokens: every step of an episode weighs `1/k`
      in place of one over the episode's length (AsyncWebRL, arXiv 2606.05597);
    * `sequence_constant`: `sum L / (k N)`, `N` sequences (Liu et al. 2025, arXiv 2503.20783).

    Args:
        per_token: Floating `[B, T]` or packed `[T]`; masked positions may hold anything.
        mask: Bool of the same shape, true at trainable tokens.
        aggregation: One of the above.
        denominator: Global `N`; `None` counts this call's own.
        sequence_ids: Integers of the mask's shape, for packed sequences.
        constant: `k` > 0 for the two constant aggregations, else `None`.

    Returns:
        Float64 scalar.

    Raises:
        ArgumentError: Shapes differ, packed sequences come without ids, or `denominator` < 0.
        ArgumentTypeError: A dtype is wrong.
        OptionError: The aggregation is unknown or `constant` does not fit it.
    """
    require_tokens("per_token", per_token, require_mask(mask))
    reduction = prepare_reduction(
        mask,
        aggregation=aggregation,
        denominator=denominator,
        sequence_ids=sequence_ids,
        constant=constant,
    )
    kept = torch.where(mask, per_token, 0.0).reshape(-1)
    return reduction.weigh(kept).sum(dtype=torch.float64) / reduction.divisor
