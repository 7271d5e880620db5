"""Which tokens are scored, and over which part of the vocabulary.

Legend: `T` tokens, `V` vocabulary.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from awrl_ppo_loss.arguments import require_integers
from awrl_ppo_loss.errors import ArgumentError

IGNORED_LABEL = -100
"""Label of a position without a token to score, as in `torch.nn.functional.cross_entropy`."""


@dataclass(frozen=True, slots=True)
class ScoredTokens:
    """The positions that have a token to score."""

    targets: Tensor
    """Int64 `[n]`: the tokens."""
    rows: Tensor | None
    """Int64 `[n]`: their positions among all, flattened; `None` if every position is scored."""
    shape: torch.Size
    """Shape of the labels, and of any result."""

    def select(self, values: Tensor) -> Tensor:
        """Return the scored rows of `[T, ...]`."""
        return values if self.rows is None else values.index_select(0, self.rows)

    def spread(self, values: Tensor) -> Tensor:
        """Return values `[n]` at their positions, 0 elsewhere, in the labels' shape."""
        if self.rows is None:
            return values.reshape(self.shape)
        zeros = torch.zeros(self.shape.numel(), dtype=values.dtype, device=values.device)
        return zeros.index_copy(0, self.rows, values).reshape(self.shape)


def scored_tokens(labels: Tensor, shape: torch.Size, vocabulary_size: int) -> ScoredTokens:
    """Find the positions whose label is not `IGNORED_LABEL`.

    Waits for an accelerator: how many tokens are scored decides the shape of the work.

    Raises:
        ArgumentError: The shape differs, or a label lies outside the vocabulary.
        ArgumentTypeError: The labels are not integers.
    """
    require_integers("labels", labels)
    if labels.shape != shape:
        raise ArgumentError(
            f"labels must be of shape {list(shape)}, got {list(labels.shape)}. Shift and slice "
            "labels and states alike."
        )
    flat = labels.reshape(-1).long()
    rows = (flat != IGNORED_LABEL).nonzero().flatten()
    if rows.numel() == flat.numel():
        targets, kept = flat, None
    else:
        targets, kept = flat.index_select(0, rows), rows
    _require_ids("labels", targets, vocabulary_size)
    return ScoredTokens(targets, kept, labels.shape)


def excluded_ids(
    masked_token_ids: Sequence[int] | Tensor | None, vocabulary_size: int, device: torch.device
) -> Tensor | None:
    """Return the ids that leave the softmax as int64 tensor on the device, `None` for none.

    Raises:
        ArgumentError: An id lies outside the vocabulary, or every id is masked.
        ArgumentTypeError: The ids are not integers.
    """
    if masked_token_ids is None:
        return None
    if isinstance(masked_token_ids, Tensor):
        ids = require_integers("masked_token_ids", masked_token_ids).long().flatten()
    else:
        ids = torch.tensor(list(masked_token_ids), dtype=torch.int64)
    if ids.numel() == 0:
        return None
    _require_ids("masked_token_ids", ids, vocabulary_size)
    ids = torch.unique(ids)
    if ids.numel() == vocabulary_size:
        raise ArgumentError(
            f"masked_token_ids must leave a token to sample, got all {vocabulary_size} ids. "
            "Pass only the ids that the sampler never emits."
        )
    return ids.to(device)


def _require_ids(name: str, ids: Tensor, vocabulary_size: int) -> None:
    is_wrong = (ids < 0) | (ids >= vocabulary_size)
    if bool(is_wrong.any()):
        raise ArgumentError(
            f"{name} must be in [0, {vocabulary_size}), got {int(ids[is_wrong][0])}. Check the "
            "tokenizer against the model's vocabulary size."
        )
