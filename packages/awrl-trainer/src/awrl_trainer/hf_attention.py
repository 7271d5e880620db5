"""Attention for packed rows that never computes across them; needs the extra `hf`.

Invariants:

* Rows end where position ids restart; a packed batch is one line without an attention mask.
* On a GPU in half precision the rows of a line go to one variable-length kernel; elsewhere each row
  is attended alone. Anything that is not packed is left to transformers' own attention.

Legend: B lines, A heads, K key heads, T tokens, E head size, S rows.
"""

from __future__ import annotations

import itertools
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.attention.varlen import varlen_attn
from transformers import AttentionInterface, PreTrainedConfig
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import AttentionMaskInterface, sdpa_mask

PACKED_ATTENTION = "awrl_packed"
"""Name under which transformers knows this attention."""

_BOUNDS = "_awrl_row_bounds"


def use_packed_attention(config: PreTrainedConfig) -> PreTrainedConfig:
    """Make a config's text model attend row by row in packed batches.

    Args:
        config: Of a causal or image-text model; its vision tower keeps its attention.

    Returns:
        The same config.
    """
    AttentionInterface.register(PACKED_ATTENTION, packed_attention_forward)
    AttentionMaskInterface.register(PACKED_ATTENTION, _mask)
    text: PreTrainedConfig = getattr(config, "text_config", None) or config
    text._attn_implementation = PACKED_ATTENTION  # pyright: ignore[reportPrivateUsage]
    return config


def packed_attention_forward(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    **kwargs: Any,
) -> tuple[Tensor, Tensor | None]:
    """Attend within rows; transformers' attention interface.

    Args:
        module: The attention layer.
        query: `[B, A, T, E]`.
        key: `[B, K, T, E]`.
        value: `[B, K, T, E]`.
        attention_mask: None for packed and for unpadded batches.
        kwargs: `position_ids` `[B, T]` among others.

    Returns:
        `[B, T, A, E]`, and None.
    """
    positions: Tensor | None = kwargs.get("position_ids")
    bounds = None
    if attention_mask is None and positions is not None and query.shape[0] == 1:
        bounds = row_bounds(positions)
    if bounds is None or len(bounds) == 2:
        return sdpa_attention_forward(
            module, query, key, value, attention_mask, scaling=scaling, **kwargs
        )
    groups = query.shape[1] // key.shape[1]
    # [T, A, E]: the layout of the kernel and of the answer.
    lines = [
        query[0].transpose(0, 1),
        key[0].repeat_interleave(groups, 0).transpose(0, 1),
        value[0].repeat_interleave(groups, 0).transpose(0, 1),
    ]
    attend = _attend_kernel if query.is_cuda and query.dtype != torch.float32 else _attend_rows
    return attend(lines, bounds, scaling)[None], None


def row_bounds(position_ids: Tensor) -> list[int]:
    """Return where rows begin, and the end of the last, of a packed line.

    The answer is kept beside the tensor: every layer of a forward pass asks, and asking a GPU waits.

    Args:
        position_ids: `[1, T]`.
    """
    kept: list[int] | None = getattr(position_ids, _BOUNDS, None)
    if kept is None:
        line = position_ids[0]
        starts = (line[1:] != line[:-1] + 1).nonzero()[:, 0] + 1
        kept = [0, *starts.tolist(), line.shape[0]]
        setattr(position_ids, _BOUNDS, kept)
    return kept


def _attend_kernel(lines: list[Tensor], bounds: list[int], scaling: float | None) -> Tensor:
    query, key, value = (line.contiguous() for line in lines)
    edges = torch.tensor(bounds, dtype=torch.int32, device=query.device)
    longest = max(stop - start for start, stop in itertools.pairwise(bounds))
    result = varlen_attn(
        query, key, value, edges, edges, longest, longest, scale=scaling, window_size=(-1, 0)
    )
    assert isinstance(result, Tensor)
    return result


def _attend_rows(lines: list[Tensor], bounds: list[int], scaling: float | None) -> Tensor:
    rows: list[Tensor] = []
    for start, stop in itertools.pairwise(bounds):
        query, key, value = (line[start:stop].transpose(0, 1)[None] for line in lines)
        row = nn.functional.scaled_dot_product_attention(
            query, key, value, is_causal=True, scale=scaling
        )
        rows.append(row[0].transpose(0, 1))
    return torch.cat(rows)


def _mask(*args: Any, attention_mask: Tensor | None = None, **kwargs: Any) -> Tensor | None:
    """Build no mask where there is no padding: rows end where positions restart."""
    if attention_mask is None:
        return None
    return sdpa_mask(*args, attention_mask=attention_mask, **kwargs)
