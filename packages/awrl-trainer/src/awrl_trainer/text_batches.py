"""Collation of rows without images: right-padded, or packed into one sequence.

Legend: B rows, T tokens of the longest row, N trainable tokens.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from awrl_trainer.rows import Batch, TrainRow

__all__ = ["collate_packed_text", "collate_text"]


def collate_text(rows: Sequence[TrainRow], *, pad_token_id: int = 0) -> Batch:
    """Pad rows on the right to one length.

    Args:
        rows: Rows without images.
        pad_token_id: Id at padded positions; they are masked out of attention.

    Returns:
        A batch with `input_ids` and `position_ids` `[B, T]` and, where lengths differ, the
        `attention_mask` `[B, T]`.
    """
    lengths = [len(row.input_ids) for row in rows]
    width = max(lengths)
    ids = np.full((len(rows), width), pad_token_id, dtype=np.int64)
    positions: list[np.ndarray] = []
    for index, row in enumerate(rows):
        ids[index, : lengths[index]] = row.input_ids
        positions.append(np.flatnonzero(row.loss_mask) + index * width)
    kwargs = {
        "input_ids": torch.from_numpy(ids),
        "position_ids": torch.arange(width).expand(len(rows), width),
    }
    if min(lengths) < width:
        columns = torch.arange(width)
        kwargs["attention_mask"] = (columns < torch.tensor(lengths)[:, None]).long()
    return Batch(kwargs=kwargs, token_positions=torch.from_numpy(np.concatenate(positions)))


def collate_packed_text(rows: Sequence[TrainRow]) -> Batch:
    """Lay rows end to end in one sequence; `position_ids` restart at every row.

    Attention must stop at the restarts: transformers does so by itself for position ids that restart
    when no attention mask is given. A trainable token never is the first of its row, so the hidden
    state to its left always belongs to the same row.

    Args:
        rows: Rows without images.

    Returns:
        A batch with `input_ids` and `position_ids` `[1, sum T]`.
    """
    ids = np.concatenate([row.input_ids for row in rows]).astype(np.int64)
    restarts = np.concatenate([np.arange(len(row.input_ids)) for row in rows])
    mask = np.concatenate([row.loss_mask for row in rows])
    return Batch(
        kwargs={
            "input_ids": torch.from_numpy(ids)[None],
            "position_ids": torch.from_numpy(restarts)[None],
        },
        token_positions=torch.from_numpy(np.flatnonzero(mask)),
    )
