"""From per-token losses to one number over a *global* denominator.

Invariants:
* a loss is `sum over these tokens of weight * loss / denominator`, and the denominator speaks of
  the whole batch: the sum of `count_denominator` over all micro-batches and ranks. The losses of
  the parts then *add up* to the loss of the whole, and so do their gradients (a trainer whose ranks
  average gradients multiplies by the number of ranks);
* the denominator counts trainable tokens (or sequences that have one), whatever a bound drops;
* sums are taken in float64, and no trainable token anywhere gives exactly 0.

Legend: `B` sequences, `T` tokens.
"""

from __future__ import annotations

import math
from typing import get_args

import torch
from torch import Tensor

from awrl_ppo_loss.arguments import require_choice, require_integers, require_mask
from awrl_ppo_loss.config import Aggregation
from awrl_ppo_loss.errors import PPOLossError


class Sequences:
    """The sequences of a micro-batch, with sums and means over their trainable tokens.

    Args:
        mask: Bool `[B, T]` or packed `[T]`.
        sequence_ids: Integers of the mask's shape, equal within a sequence; `None` takes the rows
            of `[B, T]`.

    Raises:
        PPOLossError: Packed tokens come without ids.
    """

    def __init__(self, mask: Tensor, sequence_ids: Tensor | None) -> None:
        if sequence_ids is not None:
            unique, index = torch.unique(sequence_ids, return_inverse=True)
            num_sequences = unique.numel()
        elif mask.dim() == 2:
            num_sequences = mask.shape[0]
            index = torch.arange(num_sequences, device=mask.device)[:, None].expand_as(mask)
        else:
            raise PPOLossError(
                "sequence_ids must be given for packed tokens [T] when sequences matter, got None. "
                "Pass integers that are equal within a sequence."
            )
        self._index = index.reshape(-1)
        self._zeros = torch.zeros(num_sequences, dtype=torch.float64, device=mask.device)
        self._lengths = self._sums(mask)
        self.length = self._lengths.clamp(min=1)[self._index].reshape(mask.shape)
        """Trainable tokens of each token's sequence, float64 of the mask's shape, at least 1."""

    def num_trainable(self) -> Tensor:
        """Return the number of sequences with at least one trainable token, float64 scalar."""
        return (self._lengths > 0).sum().double()

    def sum(self, values: Tensor) -> Tensor:
        """Give every token the sum of its sequence; `values` are 0 at masked positions."""
        sums = self._sums(values)[self._index]
        return sums.reshape(values.shape).to(values.dtype)

    def mean(self, values: Tensor) -> Tensor:
        """Give every token the mean over its sequence's trainable tokens."""
        return (self.sum(values.double()) / self.length).to(values.dtype)

    def _sums(self, values: Tensor) -> Tensor:
        return self._zeros.index_add(0, self._index, values.reshape(-1).double())


def count_denominator(
    mask: Tensor, *, aggregation: Aggregation = "token_mean", sequence_ids: Tensor | None = None
) -> Tensor:
    """Count what this micro-batch adds to the global denominator.

    Sum it over micro-batches and ranks, and pass the sum as `denominator` to every loss call of
    the batch. A sequence must lie within one micro-batch when sequences are counted.

    Args:
        mask: Bool `[B, T]` or packed `[T]`, true at trainable tokens.
        aggregation: `token_mean` counts trainable tokens, the others sequences with at least one.
        sequence_ids: Integers of the mask's shape, for packed sequences.

    Returns:
        Float64 scalar on the mask's device.

    Raises:
        PPOLossError: A shape or dtype is wrong, packed sequences come without ids, or the
            aggregation is unknown.
    """
    require_choice("aggregation", aggregation, get_args(Aggregation))
    require_mask(mask)
    if aggregation == "token_mean":
        return mask.sum().double()
    if sequence_ids is not None:
        require_integers("sequence_ids", sequence_ids, mask)
    return Sequences(mask, sequence_ids).num_trainable()


def global_denominator(
    denominator: float | Tensor | None,
    mask: Tensor,
    aggregation: Aggregation,
    sequences: Sequences | None,
) -> Tensor:
    """Return the denominator as float64 scalar, counted if it is not given.

    Raises:
        PPOLossError: It is not one number, or on a CPU not finite or below 0.
    """
    if denominator is None and aggregation == "token_mean":
        return mask.sum().double()
    if denominator is None:
        assert sequences is not None
        return sequences.num_trainable()
    total = torch.as_tensor(denominator, dtype=torch.float64, device=mask.device).detach()
    if total.numel() != 1:
        raise PPOLossError(
            f"denominator must be one number, got shape {list(total.shape)}. Sum it first."
        )
    # Reading a tensor of an accelerator would wait for it.
    is_readable = not isinstance(denominator, Tensor) or denominator.device.type == "cpu"
    if is_readable and not (math.isfinite(float(denominator)) and float(denominator) >= 0):
        raise PPOLossError(
            f"denominator must be finite and >= 0, got {float(denominator)}. Pass the global count "
            "of trainable tokens or sequences."
        )
    return total.reshape(())


def weighted_sum(
    per_token: Tensor, aggregation: Aggregation, sequences: Sequences | None
) -> Tensor:
    """Return the float64 sum of per-token values that are 0 at masked positions.

    With `sequence_mean` a token weighs one over the trainable tokens of its sequence, else 1.
    """
    if aggregation == "sequence_mean":
        assert sequences is not None
        per_token = per_token / sequences.length
    return per_token.sum(dtype=torch.float64)
