"""Shapes of public Qwen3-VL models, with random weights, and rows that fill them."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from awrl_trainer import TrainRow
from transformers import Qwen3VLConfig

IMAGE, VIDEO, START, END = 151655, 151656, 151652, 151653


@dataclass(frozen=True)
class Shape:
    """What distinguishes the models of the family."""

    hidden: int
    layers: int
    heads: int
    intermediate: int
    vision_hidden: int = 1024
    vision_layers: int = 24
    vision_intermediate: int = 4096
    vocabulary: int = 151936
    row_tokens: int = 2048
    is_tied: bool = True


SHAPES = {
    "2b": Shape(hidden=2048, layers=28, heads=16, intermediate=6144),
    "4b": Shape(hidden=2560, layers=36, heads=32, intermediate=9728),
    "8b": Shape(
        hidden=4096,
        layers=36,
        heads=32,
        intermediate=12288,
        vision_hidden=1152,
        vision_layers=27,
        vision_intermediate=4304,
        is_tied=False,
    ),
    # 131 million weights, for a publish on a CPU.
    "cpu": Shape(
        hidden=512, layers=8, heads=8, intermediate=2048, vision_hidden=64, vision_layers=3
    ),
    # For a look at the scripts on a CPU.
    "tiny": Shape(
        hidden=64,
        layers=2,
        heads=2,
        intermediate=128,
        vision_hidden=64,
        vision_layers=3,
        vision_intermediate=128,
        row_tokens=64,
    ),
}


def config_of(shape: Shape) -> Any:
    """Return the transformers config of a shape."""
    return Qwen3VLConfig(
        text_config={
            "hidden_size": shape.hidden,
            "num_hidden_layers": shape.layers,
            "num_attention_heads": shape.heads,
            "num_key_value_heads": max(1, min(8, shape.heads // 2)),
            "head_dim": 128,
            "intermediate_size": shape.intermediate,
            "vocab_size": shape.vocabulary,
            "max_position_embeddings": 262144,
            "rope_parameters": {
                "rope_type": "default",
                "rope_theta": 5000000.0,
                "mrope_section": [24, 20, 20],
                "mrope_interleaved": True,
            },
        },
        vision_config={
            "hidden_size": shape.vision_hidden,
            "depth": shape.vision_layers,
            "num_heads": 16 if shape.vision_hidden >= 512 else 4,
            "intermediate_size": shape.vision_intermediate,
            "patch_size": 16,
            "spatial_merge_size": 2,
            "temporal_patch_size": 2,
            "out_hidden_size": shape.hidden,
            "deepstack_visual_indexes": [0, 1, 2] if shape.vision_layers < 24 else [5, 11, 17],
            "num_position_embeddings": 2304,
        },
        image_token_id=IMAGE,
        video_token_id=VIDEO,
        vision_start_token_id=START,
        vision_end_token_id=END,
        tie_word_embeddings=shape.is_tied,
    )


@dataclass(frozen=True)
class Inputs:
    """Model inputs of one row; see `awrl_trainer.RowInputs`."""

    input_ids: torch.Tensor
    mm_token_type_ids: torch.Tensor
    position_ids: torch.Tensor
    pixel_values: torch.Tensor | None
    image_grid_thw: torch.Tensor | None


def make_row(
    index: int, *, num_tokens: int, num_trainable: int, grid: tuple[int, int], num_images: int
) -> tuple[TrainRow, Inputs]:
    """Return a row of `num_tokens` model tokens: images, random text, a trainable end.

    Args:
        index: Names the row and seeds it.
        num_tokens: Tokens in the model, images included.
        num_trainable: Trainable tokens at the end.
        grid: Patch rows and columns of an image; a 2 x 2 square of patches becomes one token.
        num_images: Images at the start.
    """
    rng = np.random.default_rng(index)
    height, width = grid[0] // 2, grid[1] // 2
    image = [START, *[IMAGE] * (height * width), END]
    positions: list[tuple[int, int, int]] = []
    ids: list[int] = []
    for _ in range(num_images):
        place = positions[-1][0] + 1 if positions else 0
        positions.append((place, place, place))
        positions += [
            (place + 1, place + 1 + i // width, place + 1 + i % width)
            for i in range(height * width)
        ]
        place += 1 + max(height, width)
        positions.append((place, place, place))
        ids += image
    text = rng.integers(0, 150000, num_tokens - len(ids))
    place = positions[-1][0] + 1 if positions else 0
    positions += [(place + i, place + i, place + i) for i in range(len(text))]
    expanded = np.concatenate([np.array(ids, dtype=np.int64), text]).astype(np.int64)
    folded = np.concatenate([np.array([START, IMAGE, END] * num_images, dtype=np.int64), text])
    # The prompt ends in text, so that the first trainable token is not the first of the row.
    num_trainable = min(num_trainable, len(text) - 1)
    row = TrainRow(
        input_ids=folded,
        loss_mask=np.arange(len(folded)) >= len(folded) - num_trainable,
        behavior_logprobs=np.full(len(folded), -11.9, dtype=np.float32),
        advantages=float(rng.normal()),
        image_keys=tuple(f"{index}/{i}" for i in range(num_images)),
        row_id=str(index),
        num_model_tokens=num_tokens,
    )
    ids_tensor = torch.from_numpy(expanded)
    pixels = noise(num_images * grid[0] * grid[1]) if num_images else None
    return row, Inputs(
        input_ids=ids_tensor,
        mm_token_type_ids=(ids_tensor == IMAGE).long(),
        position_ids=torch.tensor(positions).T.contiguous(),
        pixel_values=pixels,
        image_grid_thw=torch.tensor([[1, *grid]] * num_images) if num_images else None,
    )


@functools.cache
def noise(num_patches: int) -> torch.Tensor:
    """Return patches of random pixels, shared by all rows."""
    generator = torch.Generator().manual_seed(0)
    return torch.randn(num_patches, 3 * 2 * 16 * 16, generator=generator)


def useful_flops(model: Any, shape: Shape, rows: list[TrainRow], grid: tuple[int, int]) -> float:
    """Return floating-point operations that one pass over these rows can't do without.

    The usual count: six per weight and token (forward and backward) for the blocks, the head on
    trainable tokens only (nothing else is computed, and all tokens would flatter the figure), causal
    attention at half of the square; nothing for recomputation, norms, the embedding or the optimizer.
    The vision tower counts alike, its attention in full; its mergers see a quarter of the patches.
    """
    named = [(name, p.numel()) for name, p in model.named_parameters()]
    blocks = sum(count for name, count in named if ".layers." in name)
    mergers = sum(count for name, count in named if ".visual." in name and "merger" in name)
    vision = sum(count for name, count in named if ".visual." in name and "pos_embed" not in name)
    total = 0.0
    for row in rows:
        tokens, images = row.cost_tokens, len(row.image_keys)
        patches = grid[0] * grid[1]
        total += 6 * blocks * tokens
        total += 6 * shape.hidden * shape.vocabulary * row.num_trainable_tokens
        total += 6 * shape.layers * shape.heads * 128 * tokens**2
        total += images * 6 * (vision - mergers + mergers / 4) * patches
        total += images * 12 * shape.vision_layers * shape.vision_hidden * patches**2
    return total
