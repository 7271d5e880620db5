"""Collation of rows without images, right-padded.

Legend: B rows, T tokens of the longest row, N trainable tokens.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from awrl_trainer.rows import Batch, TrainRow


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
