"""Image features for the prefill: each image goes through the vision tower once per weights.

Invariants:

* A feature was computed under the current weights: `clear` is called by every weight update. (A
  server that keeps features across updates answers with wrong log-probs for every page that it has
  seen before.)
* Features are those of HF's vision tower. What depends on the image's size alone (rotary positions,
  interpolation of position embeddings) is computed once per size with HF's own functions, and the
  patch embedding, a convolution whose stride is its kernel, runs as the matrix product that it is.

Legend: `N` image tokens, `H` hidden size of the text model, `P` patches.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, cast

import torch
from cachetools import LRUCache
from torch import nn
from transformers.vision_utils import (
    get_vision_bilinear_indices_and_weights,
    get_vision_position_ids,
)

from webrl.embedded.request import PreparedPrompt

_NUM_SIZES = 64
"""Image sizes whose layout is kept; a run has a handful of viewports."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ImageFeatures:
    """What the text model takes of one or more images."""

    embeddings: torch.Tensor
    """[N, H] that replace the placeholders' embeddings."""
    deepstack: tuple[torch.Tensor, ...]
    """[N, H] that are added after the first text layers, one per layer."""

    @property
    def num_bytes(self) -> int:
        """Memory that they hold."""
        tensors = (self.embeddings, *self.deepstack)
        return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


class _PatchProduct(nn.Module):
    """The patch embedding as a matrix product; `proj` keeps its name and its parameters."""

    def __init__(self, proj: nn.Conv3d) -> None:
        super().__init__()
        self.proj = proj

    def forward(self, patches: torch.Tensor) -> torch.Tensor:
        weight = self.proj.weight.flatten(1)
        return nn.functional.linear(patches.to(weight.dtype), weight, self.proj.bias)


class VisionEncoder:
    """Vision tower of a Qwen3-VL model with a cache of its features.

    Args:
        body: Its `visual` is used, and its patch embedding replaced.
        cache_bytes: Bytes of features that are kept.
    """

    def __init__(self, body: nn.Module, *, cache_bytes: int) -> None:
        """Wrap the tower of `body`, HF's model without its head."""
        self._tower = cast("Any", body).visual
        proj = self._tower.patch_embed.proj
        if tuple(proj.stride) == tuple(proj.kernel_size):
            self._tower.patch_embed = _PatchProduct(proj)
        self._merge = int(self._tower.spatial_merge_size)
        self._cache: LRUCache[bytes, ImageFeatures] = LRUCache(
            cache_bytes, getsizeof=lambda features: features.num_bytes
        )
        self._layout = lru_cache(_NUM_SIZES)(self._make_layout)

    def clear(self) -> None:
        """Drop all features: the weights have changed."""
        self._cache.clear()

    def features(self, prompts: Sequence[PreparedPrompt]) -> ImageFeatures | None:
        """Return the features of all images of `prompts` in order; `None` without images."""
        known: dict[bytes, ImageFeatures] = {}
        missing: dict[bytes, tuple[torch.Tensor, tuple[int, int, int]]] = {}
        order: list[bytes] = []
        for prompt in prompts:
            for digest, patches, grid in _images(prompt):
                order.append(digest)
                found = known.get(digest) or self._cache.get(digest)
                if found is None:
                    missing.setdefault(digest, (patches, grid))
                else:
                    known[digest] = found
        if missing:
            known.update(self._encode(missing))
        if not order:
            return None
        parts = [known[digest] for digest in order]
        return ImageFeatures(
            embeddings=torch.cat([part.embeddings for part in parts]),
            deepstack=tuple(
                torch.cat(layer) for layer in zip(*(p.deepstack for p in parts), strict=True)
            ),
        )

    def _encode(
        self, images: dict[bytes, tuple[torch.Tensor, tuple[int, int, int]]]
    ) -> dict[bytes, ImageFeatures]:
        grids = [grid for _, grid in images.values()]
        layouts = [self._layout(grid) for grid in grids]
        device = self._tower.patch_embed.proj.weight.device
        output = self._tower(
            torch.cat([patches for patches, _ in images.values()]).to(device),
            grid_thw=torch.tensor(grids, device=device),
            bilinear_indices=torch.cat([layout[0] for layout in layouts], dim=1),
            bilinear_weights=torch.cat([layout[1] for layout in layouts], dim=1),
            position_ids=torch.cat([layout[2] for layout in layouts]),
            return_dict=True,
        )
        sizes = [t * h * w // self._merge**2 for t, h, w in grids]
        embeddings = torch.split(output.pooler_output, sizes)
        deepstack = [torch.split(layer, sizes) for layer in output.deepstack_features]
        encoded: dict[bytes, ImageFeatures] = {}
        for index, digest in enumerate(images):
            # Clones: a view would keep the features of the whole batch alive.
            features = ImageFeatures(
                embeddings=embeddings[index].clone(),
                deepstack=tuple(layer[index].clone() for layer in deepstack),
            )
            encoded[digest] = features
            if features.num_bytes <= self._cache.maxsize:
                self._cache[digest] = features
        return encoded

    def _make_layout(
        self, grid: tuple[int, int, int]
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        thw = torch.tensor([grid], device=self._tower.patch_embed.proj.weight.device)
        indices, weights = get_vision_bilinear_indices_and_weights(
            thw,
            num_grid_per_side=self._tower.num_grid_per_side,
            spatial_merge_size=self._merge,
        )
        return indices, weights, get_vision_position_ids(thw, self._merge)


def _images(
    prompt: PreparedPrompt,
) -> list[tuple[bytes, torch.Tensor, tuple[int, int, int]]]:
    """Return digest, patches [P, D] and grid of each image of a prompt."""
    inputs = prompt.inputs
    if inputs.pixel_values is None or inputs.image_grid_thw is None:
        return []
    grids = [(int(t), int(h), int(w)) for t, h, w in inputs.image_grid_thw.tolist()]
    patches = torch.split(inputs.pixel_values, [t * h * w for t, h, w in grids])
    return list(zip(prompt.key[1], patches, grids, strict=True))
