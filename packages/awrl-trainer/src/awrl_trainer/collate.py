"""Collation of rows: of text alone, or of model inputs that exist already.

Invariants:

* Pixels, grids and three-part positions stay beside the text they belong to: patches lie in the
  order in which their image tokens lie in the flattened `input_ids`.
* No token attends to another row's suffix, whatever the layout; log-probs of a row are the same
  alone, padded, packed and shared.

Legend: B lines, T tokens of a line, N trainable tokens, P patches, D numbers in a patch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol

import numpy as np
import torch
from torch import Tensor

from awrl_trainer.errors import BatchError
from awrl_trainer.rows import Batch, TrainRow

_PREFIX = 0
_PADDING = -1


def collate_text(rows: Sequence[TrainRow], *, pad_token_id: int = 0) -> Batch:
    """Pad rows on the right to one length.

    Args:
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


class RowInputs(Protocol):
    """Inputs of one row, without a batch dimension."""

    @property
    def input_ids(self) -> Tensor:
        """Token ids with image placeholders expanded, int64 `[T]`."""
        ...

    @property
    def mm_token_type_ids(self) -> Tensor:
        """0 for text, other numbers for image tokens, int64 `[T]`."""
        ...

    @property
    def position_ids(self) -> Tensor:
        """Positions, int64 `[3, T]` (time, height, width), or `[T]` for a text model."""
        ...

    @property
    def pixel_values(self) -> Tensor | None:
        """Patches of the row's images in order, `[P, D]`; None without images."""
        ...

    @property
    def image_grid_thw(self) -> Tensor | None:
        """Frames, patch rows and patch columns of each image, `[images, 3]`; None without."""
        ...


@dataclass(kw_only=True, slots=True)
class _Line:
    """One line of the batch: parts of rows, end to end."""

    ids: list[Tensor] = field(default_factory=list[Tensor])
    positions: list[Tensor] = field(default_factory=list[Tensor])
    segments: list[Tensor] = field(default_factory=list[Tensor])
    length: int = 0
    num_segments: int = 0

    def append(self, inputs: RowInputs, start: int, stop: int, segment: int) -> int:
        """Append tokens `start:stop` of a row and return where they begin."""
        begin = self.length
        self.ids.append(inputs.input_ids[start:stop])
        self.positions.append(inputs.position_ids[..., start:stop])
        self.segments.append(torch.full((stop - start,), segment))
        self.length += stop - start
        return begin


@dataclass(kw_only=True, slots=True)
class _Layout:
    """Lines, images, and where each row's trainable tokens are: (line, tokens, sources)."""

    lines: list[_Line] = field(default_factory=list[_Line])
    pixels: list[RowInputs] = field(default_factory=list[RowInputs])
    places: list[tuple[int, Tensor, Tensor]] = field(
        default_factory=list[tuple[int, Tensor, Tensor]]
    )


def collate_model_inputs(
    rows: Sequence[TrainRow],
    inputs: Sequence[RowInputs],
    *,
    layout: Literal["padded", "packed", "shared_prefix"] = "padded",
    pad_token_id: int = 0,
) -> Batch:
    """Lay rows out for one forward pass.

    `padded` gives each row a line; `packed` lays all rows end to end, for attention that stops where
    positions restart; `shared_prefix` gives each `prefix_id` a line, the prefix once and then every
    suffix, under a four-dimensional attention mask.

    Args:
        rows: Rows, one image placeholder per image in their `input_ids`.
        pad_token_id: Id at padded positions; nothing attends to them.

    Returns:
        `input_ids` `[B, T]`, `position_ids` `[3, B, T]` (`[4, 1, T]` packed, text positions first) or
        `[B, T]`, an `attention_mask` where needed, `pixel_values` and `image_grid_thw` when there
        are images.

    Raises:
        BatchError: Inputs that belong to another row, rows of one prefix id that begin differently, or
            images behind a shared prefix.
    """
    if len(rows) != len(inputs):
        raise BatchError(f"inputs must be one per row, got {len(inputs)} for {len(rows)} rows.")
    if layout == "shared_prefix":
        laid = _lay_shared(rows, inputs)
    else:
        laid = _lay_whole(rows, inputs, is_packed=layout == "packed")
    width = max(line.length for line in laid.lines)
    kwargs = {
        "input_ids": _stack([torch.cat(line.ids) for line in laid.lines], width, pad_token_id),
        "position_ids": _positions(laid.lines, width, is_packed=layout == "packed"),
    }
    segments = _stack([torch.cat(line.segments) for line in laid.lines], width, _PADDING)
    if layout == "shared_prefix" and any(line.num_segments > 1 for line in laid.lines):
        kwargs["attention_mask"] = _prefix_mask(segments)
    elif bool((segments == _PADDING).any()):
        kwargs["attention_mask"] = (segments != _PADDING).long()
    pixels = [one.pixel_values for one in laid.pixels if one.pixel_values is not None]
    grids = [one.image_grid_thw for one in laid.pixels if one.image_grid_thw is not None]
    if pixels:
        kwargs |= {"pixel_values": torch.cat(pixels), "image_grid_thw": torch.cat(grids)}
    return Batch(
        kwargs=kwargs,
        token_positions=torch.cat([tokens + line * width for line, tokens, _ in laid.places]),
        source_positions=torch.cat([source + line * width for line, _, source in laid.places]),
    )


def expanded_positions(row: TrainRow, inputs: RowInputs) -> Tensor:
    """Return where each trainable token of a row lies among its expanded tokens, int64 `[N]`.

    Text tokens keep their order when placeholders widen, so the k-th text token stays the k-th.

    Raises:
        BatchError: The two have other numbers of text tokens, or an image token is trainable.
    """
    chosen = torch.from_numpy(row.loss_mask)
    if len(inputs.input_ids) == len(row.input_ids):
        return chosen.nonzero()[:, 0]
    is_image = inputs.mm_token_type_ids != 0
    image_ids = inputs.input_ids[is_image].unique()
    is_text = ~torch.isin(torch.from_numpy(row.input_ids), image_ids)
    text_places = (~is_image).nonzero()[:, 0]
    if int(is_text.sum()) != len(text_places) or bool((chosen & ~is_text).any()):
        raise BatchError(
            f"inputs of row {row.row_id!r} must hold its {int(is_text.sum())} text tokens, got"
            f" {len(text_places)}. Make them from the same ids; image tokens are never trainable."
        )
    return text_places[chosen[is_text]]


def _lay_whole(
    rows: Sequence[TrainRow], inputs: Sequence[RowInputs], *, is_packed: bool
) -> _Layout:
    laid = _Layout(pixels=list(inputs))
    for row, one in zip(rows, inputs, strict=True):
        if not laid.lines or not is_packed:
            laid.lines.append(_Line())
        line = laid.lines[-1]
        line.num_segments += 1
        begin = line.append(one, 0, len(one.input_ids), line.num_segments)
        tokens = expanded_positions(row, one) + begin
        laid.places.append((len(laid.lines) - 1, tokens, tokens - 1))
    return laid


def _lay_shared(rows: Sequence[TrainRow], inputs: Sequence[RowInputs]) -> _Layout:
    laid = _Layout()
    lines: dict[str, tuple[int, int, RowInputs]] = {}
    for index, (row, one) in enumerate(zip(rows, inputs, strict=True)):
        tokens = expanded_positions(row, one)
        split = int(tokens[0]) if len(tokens) else len(one.input_ids)
        key = row.prefix_id if row.prefix_id and len(tokens) else f"\0{index}"
        if key not in lines:
            lines[key] = (len(laid.lines), split, one)
            laid.lines.append(_Line())
            laid.lines[-1].append(one, 0, split, _PREFIX)
            laid.pixels.append(one)
        number, prefix, first = lines[key]
        has_image_behind = bool((one.mm_token_type_ids[split:] != 0).any())
        if prefix != split or has_image_behind or not _begin_alike(first, one, split):
            raise BatchError(
                f"rows of prefix_id {key!r} must share one prefix and hold no image after it, got"
                f" another one in row {row.row_id!r} ({split} tokens for {prefix}). Leave prefix_id"
                " empty."
            )
        line = laid.lines[number]
        line.num_segments += 1
        begin = line.append(one, split, len(one.input_ids), line.num_segments)
        places = tokens - split + begin
        # The first token of a suffix is predicted by the last one of the prefix.
        sources = torch.where(tokens == split, prefix - 1, places - 1)
        laid.places.append((number, places, sources))
    return laid


def _begin_alike(first: RowInputs, other: RowInputs, length: int) -> bool:
    """Return whether two rows have the same images, and the same first tokens at the same positions."""
    if first is other:
        return True
    pairs = [
        (first.input_ids[:length], other.input_ids[:length]),
        (first.position_ids[..., :length], other.position_ids[..., :length]),
        (first.pixel_values, other.pixel_values),
        (first.image_grid_thw, other.image_grid_thw),
    ]
    return all(a is b or (a is not None and b is not None and torch.equal(a, b)) for a, b in pairs)


def _stack(parts: Sequence[Tensor], width: int, fill: int) -> Tensor:
    stacked = torch.full((len(parts), width), fill, dtype=torch.int64)
    for row, part in zip(stacked, parts, strict=True):
        row[: len(part)] = part
    return stacked


def _positions(lines: Sequence[_Line], width: int, *, is_packed: bool) -> Tensor:
    whole = [torch.cat(line.positions, dim=-1) for line in lines]
    if whole[0].dim() == 1:
        return _stack(whole, width, 0)
    stacked = torch.stack([_stack([line[axis] for line in whole], width, 0) for axis in range(3)])
    if not is_packed:
        return stacked
    restarts = torch.cat([torch.arange(len(part)) for part in lines[0].segments])
    return torch.cat([restarts[None, None], stacked])


def _prefix_mask(segments: Tensor) -> Tensor:
    """Return which token may attend to which, bool `[B, 1, T, T]`."""
    query, key = segments[:, :, None], segments[:, None, :]
    is_causal = torch.ones(segments.shape[1], segments.shape[1], dtype=torch.bool).tril()
    return (((query == key) | (key == _PREFIX)) & is_causal)[:, None]
