"""Text positions of a prompt with images: three axes (time, height, width), as Qwen3-VL counts.

Invariant: equal to `Qwen3VLModel.get_rope_index` for prompts with images; a function of layout only.
After an image the text goes on at the image's start plus its longer edge in tokens, so a prompt
spans fewer positions than tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

import torch

from webrl.errors import PolicyError
from webrl.policy.images import PatchGrid


def position_ids(is_image: Sequence[bool], grids: Sequence[PatchGrid]) -> torch.Tensor:
    """Return positions `[3, T]`, int64.

    Args:
        is_image: `[T]`, true where the token is an (expanded) image placeholder; images are
            separated by at least one text token.
        grids: One grid per image, in order.

    Returns:
        Positions along time, height and width.

    Raises:
        PolicyError: If runs of placeholders and grids do not match.
    """
    remaining = list(grids)
    parts: list[torch.Tensor] = []
    start = 0
    for image, run in groupby(is_image):
        length = sum(1 for _ in run)
        if not image:
            parts.append(torch.arange(start, start + length).expand(3, -1))
            start += length
            continue
        if not remaining or remaining[0].num_tokens != length:
            wanted = remaining[0].num_tokens if remaining else 0
            msg = (
                f"image placeholders must come in runs of {wanted} tokens, got {length}. "
                "Expand the placeholders for the sizes of these images."
            )
            raise PolicyError(msg)
        grid = remaining.pop(0)
        rows, columns = grid.height // grid.merge, grid.width // grid.merge
        time = torch.full((length,), start)
        row = start + torch.arange(rows).repeat_interleave(columns)
        column = start + torch.arange(columns).repeat(rows)
        parts.append(torch.stack([time, row, column]))
        start += max(grid.height, grid.width) // grid.merge
    if remaining:
        msg = (
            f"images must be as many as runs of placeholders, got {len(remaining)} more. "
            "Give one image per placeholder."
        )
        raise PolicyError(msg)
    return torch.cat(parts, dim=1) if parts else torch.zeros(3, 0, dtype=torch.int64)
