"""KV cache of the running batch: one row per request, rows packed at the front.

Invariants:

* Row `i` belongs to the `i`-th running request; rows are dense, so a decode step reads a view and
  copies nothing.
* A row's first `length` places hold its tokens; what lies behind is never attended to.
* Capacity only grows, by doubling, so that growth costs a constant share.

Legend: `R` rows, `H` key-value heads, `L` places, `D` head size, `T` tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import torch
from transformers.cache_utils import Cache, DynamicCache, DynamicLayer

_FIRST_ROWS = 8
_FIRST_LENGTH = 128


class PromptKV:
    """Keys and values of one prompt, [H, T, D] per layer."""

    def __init__(self, keys: list[torch.Tensor], values: list[torch.Tensor]) -> None:
        """Hold the tensors of all layers; they must not be views of something big."""
        self.keys = keys
        self.values = values

    @classmethod
    def of_row(cls, cache: DynamicCache, row: int, num_tokens: int) -> PromptKV:
        """Return copies of the first `num_tokens` places of one row of a prefill."""
        layers = cast("list[DynamicLayer]", cache.layers)
        return cls(
            [cast("torch.Tensor", layer.keys)[row, :, :num_tokens].clone() for layer in layers],
            [cast("torch.Tensor", layer.values)[row, :, :num_tokens].clone() for layer in layers],
        )

    @property
    def num_tokens(self) -> int:
        """Tokens of the prompt, image tokens included."""
        return self.keys[0].shape[1]


class RowCache:
    """The packed rows of the running batch, all layers."""

    def __init__(self) -> None:
        """Start empty; the first row decides layers, heads, dtype and device."""
        self._keys: list[torch.Tensor] = []
        self._values: list[torch.Tensor] = []
        self._num_rows = 0

    @property
    def num_rows(self) -> int:
        """Rows in use."""
        return self._num_rows

    def append(self, prompt: PromptKV) -> None:
        """Add a row that holds a copy of `prompt`."""
        row, length = self._num_rows, prompt.num_tokens
        self._reserve(prompt, row + 1, length)
        for layer, (keys, values) in enumerate(zip(prompt.keys, prompt.values, strict=True)):
            self._keys[layer][row, :, :length] = keys
            self._values[layer][row, :, :length] = values
        self._num_rows = row + 1

    def remove(self, row: int, last_length: int) -> None:
        """Drop `row` by moving the last row, of `last_length` places, into it."""
        last = self._num_rows - 1
        if row != last:
            for layer in (*self._keys, *self._values):
                layer[row, :, :last_length] = layer[last, :, :last_length]
        self._num_rows = last

    def clear(self) -> None:
        """Drop all rows; memory is kept."""
        self._num_rows = 0

    def view(self, lengths: Sequence[int]) -> DecodeView:
        """Return the cache of one decode step, whose rows hold `lengths` places so far."""
        self._reserve(None, self._num_rows, max(lengths) + 1)
        return DecodeView(self._keys, self._values, lengths)

    def _reserve(self, like: PromptKV | None, num_rows: int, length: int) -> None:
        if not self._keys:
            assert like is not None
            self._keys = [
                layer.new_empty((0, layer.shape[0], 0, layer.shape[2])) for layer in like.keys
            ]
            self._values = [
                layer.new_empty((0, layer.shape[0], 0, layer.shape[2])) for layer in like.values
            ]
        rows, _, places, _ = self._keys[0].shape
        if num_rows <= rows and length <= places:
            return
        rows = _grown(rows, num_rows, _FIRST_ROWS)
        places = _grown(places, length, _FIRST_LENGTH)
        self._keys = [self._enlarged(layer, rows, places) for layer in self._keys]
        self._values = [self._enlarged(layer, rows, places) for layer in self._values]

    def _enlarged(self, layer: torch.Tensor, rows: int, places: int) -> torch.Tensor:
        # Zeros, not garbage: a masked place still meets 0 * value in the weighted sum.
        bigger = layer.new_zeros((rows, layer.shape[1], places, layer.shape[3]))
        used = self._num_rows
        bigger[:used, :, : layer.shape[2]] = layer[:used]
        return bigger


def _grown(size: int, needed: int, first: int) -> int:
    size = max(size, first)
    while size < needed:
        size *= 2
    return size


class DecodeView(Cache):
    """What the model sees as its cache in one decode step of one token per row.

    Args:
        keys: [R, H, L, D] per layer; written in place.
        lengths: Places of each row that are filled.
    """

    def __init__(
        self, keys: list[torch.Tensor], values: list[torch.Tensor], lengths: Sequence[int]
    ) -> None:
        device = keys[0].device
        rows, span = len(lengths), max(lengths) + 1
        self._lengths = torch.tensor(lengths, device=device)
        ends = (torch.arange(rows, device=device), slice(None), self._lengths)
        super().__init__(
            layers=[
                _DecodeLayer(key[:rows, :, :span], value[:rows, :, :span], ends)
                for key, value in zip(keys, values, strict=True)
            ]
        )

    def attention_mask(self) -> torch.Tensor:
        """Return [R, 1, 1, L] bool: each row sees its own places and the new one."""
        places = torch.arange(self.get_seq_length() + 1, device=self._lengths.device)
        return (places <= self._lengths[:, None])[:, None, None]


class _DecodeLayer(DynamicLayer):
    """Views of one layer, with room for the new place of the longest row."""

    def __init__(
        self,
        keys: torch.Tensor,
        values: torch.Tensor,
        ends: tuple[torch.Tensor, slice, torch.Tensor],
    ) -> None:
        super().__init__()
        self._views = keys, values
        self._ends = ends

    def get_seq_length(self) -> int:
        """Return the longest row's number of places so far."""
        return self._views[0].shape[2] - 1

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *_: object, **__: object
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Write each row's new [R, H, 1, D] behind its last place; return [R, H, L, D] views."""
        for view, states in zip(self._views, (key_states, value_states), strict=True):
            view[self._ends] = states[:, :, 0]
        return self._views
