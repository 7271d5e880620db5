"""One micro-batch on one rank: collate, forward, loss, backward.

Invariant: the loss of a micro-batch is a *share* of the mini-batch's loss (its sum over the global
denominator), so gradients of micro-batches and ranks add up to the one-process gradient.

Legend: N trainable tokens of the micro-batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from awrl_trainer.rows import Batch, Collate, TrainRow, check_batch


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class MicroTensors:
    """A collated micro-batch on the device of the actor."""

    kwargs: dict[str, Tensor]
    """Keyword arguments of the model."""

    sources: Tensor
    """Flat positions of the hidden states that predict trainable tokens, int64 `[N]`."""

    labels: Tensor
    """Ids of trainable tokens, int64 `[N]`."""

    behavior_logprobs: Tensor
    """float32 `[N]`."""

    advantages: Tensor
    """float32 `[N]`."""

    versions: Tensor | None
    """int64 `[N]`, None when a row does not know."""

    row_ids: Tensor
    """Index of each token's row in the update, int64 `[N]`."""

    mask: Tensor
    """True where the token counts; all False in a stand-in micro-batch, bool `[N]`."""


def prepare_micro_batch(
    rows: Sequence[TrainRow],
    row_indices: Sequence[int],
    *,
    is_dummy: bool,
    collate: Collate,
    device: torch.device,
) -> MicroTensors:
    """Collate rows and lay their per-token values beside the trainable tokens.

    Args:
        rows: All rows of the update.
        row_indices: Those of this micro-batch.
        is_dummy: Whether the rows only stand in.
        collate: The caller's function; pixels are fetched in here.
        device: Where the tensors go.

    Returns:
        Tensors on the device.

    Raises:
        BatchError: `collate` answered with other tokens than the rows hold.
    """
    chosen = [rows[index] for index in row_indices]
    batch: Batch = collate(chosen)
    labels = check_batch(batch, chosen)
    counts = [row.num_trainable_tokens for row in chosen]
    versions = None
    if all(row.versions is not None for row in chosen):
        versions = _concatenate(
            [row.versions[row.loss_mask] for row in chosen if row.versions is not None], np.int64
        ).to(device)
    return MicroTensors(
        kwargs={name: _to_device(value, device) for name, value in batch.kwargs.items()},
        sources=batch.sources.to(device),
        labels=labels.to(device),
        behavior_logprobs=_concatenate(
            [row.behavior_logprobs[row.loss_mask] for row in chosen], np.float32
        ).to(device),
        advantages=_concatenate([_advantages(row) for row in chosen], np.float32).to(device),
        versions=versions,
        row_ids=torch.from_numpy(np.repeat(np.asarray(row_indices), counts)).to(device),
        mask=torch.full((sum(counts),), not is_dummy, dtype=torch.bool, device=device),
    )


def _to_device(tensor: Tensor, device: torch.device) -> Tensor:
    if device.type == "cuda" and not tensor.is_cuda:
        # From pinned memory the copy does not wait for the micro-batch before, which still computes.
        return tensor.contiguous().pin_memory().to(device, non_blocking=True)
    return tensor.to(device)


def _advantages(row: TrainRow) -> np.ndarray:
    if isinstance(row.advantages, np.ndarray):
        return row.advantages[row.loss_mask]
    return np.full(row.num_trainable_tokens, row.advantages, dtype=np.float32)


def _concatenate(parts: list[np.ndarray], dtype: type[np.generic]) -> Tensor:
    return torch.from_numpy(np.concatenate(parts).astype(dtype, copy=False))
