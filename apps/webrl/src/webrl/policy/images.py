"""Encoded screenshots to the vision tower's patches, once per image and bit-equal to HF.

Invariants:

* `PatchExtractor` gives the same bits as the Hugging Face image processor of the checkpoint (its
  PIL implementation) for 8-bit images, so server and trainer see one input whoever computes it;
* the size of the resized image follows from height and width alone (`grid`).

Normalisation of 8-bit values is a table of 256 entries per channel, filled by the Hugging Face
functions themselves; what remains is decode, resize and one gather.
"""

from __future__ import annotations

import io
import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from transformers.image_transforms import normalize, rescale
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import (
    Qwen2VLImageProcessorPil,
    smart_resize,
)

from webrl.policy.files import reading_policy

# P patches, D values per patch (channel, frame, row, column); an image has h x w patches.


@dataclass(frozen=True, slots=True)
class PatchGrid:
    """Patches of one image."""

    height: int
    """Patches along the height."""
    width: int
    """Patches along the width."""
    merge: int
    """Edge of the square of patches that becomes one image token."""

    @property
    def num_tokens(self) -> int:
        """Image tokens in the text model."""
        return self.height * self.width // self.merge**2


def size_within(height: int, width: int, max_pixels: int | None) -> tuple[int, int]:
    """Return `(height, width)` of an image that is made no larger than `max_pixels`, its shape kept."""
    if max_pixels is None or height * width <= max_pixels:
        return height, width
    scale = math.sqrt(max_pixels / (height * width))
    return max(1, int(height * scale)), max(1, int(width * scale))


def image_within(data: bytes, max_pixels: int, *, jpeg_quality: int) -> bytes:
    """Return an encoded image made no larger than `max_pixels`, in its own format.

    Args:
        jpeg_quality: For what was a JPEG, 1 to 100.

    Raises:
        PIL.UnidentifiedImageError: If `data` is no image.
    """
    with Image.open(io.BytesIO(data)) as image:
        height, width = size_within(image.height, image.width, max_pixels)
        if (height, width) == (image.height, image.width):
            return data
        smaller = image.convert("RGB").resize((width, height), Image.Resampling.LANCZOS)
        encoded = io.BytesIO()
        settings = {"quality": jpeg_quality} if image.format == "JPEG" else {}
        smaller.save(encoded, format=image.format, **settings)
        return encoded.getvalue()


class PatchExtractor:
    """Turns encoded screenshots into patches as one Hugging Face image processor does."""

    def __init__(self, processor: Qwen2VLImageProcessorPil) -> None:
        self._patch = int(processor.patch_size)
        self._merge = int(processor.merge_size)
        self._frames = int(processor.temporal_patch_size)
        self._min_pixels = int(processor.size["shortest_edge"])
        self._max_pixels = int(processor.size["longest_edge"])
        self._resample = Image.Resampling(int(processor.resample))
        self._table = _normalisation_table(processor)

    def grid(self, height: int, width: int) -> PatchGrid:
        """Return the patches that an image of `height` x `width` pixels becomes."""
        rows, columns = smart_resize(
            height,
            width,
            factor=self._patch * self._merge,
            min_pixels=self._min_pixels,
            max_pixels=self._max_pixels,
        )
        return PatchGrid(rows // self._patch, columns // self._patch, self._merge)

    def decode(self, data: bytes) -> Image.Image:
        """Decode an encoded image to RGB.

        Raises:
            PIL.UnidentifiedImageError: If `data` is no image.
        """
        with Image.open(io.BytesIO(data)) as image:
            return image.convert("RGB")

    def patches(self, image: Image.Image) -> tuple[torch.Tensor, PatchGrid]:
        """Return float32 patches `[P, D]` of an RGB image, and their grid."""
        grid = self.grid(image.height, image.width)
        size = (grid.width * self._patch, grid.height * self._patch)
        if image.size != size:
            image = image.resize(size, self._resample)
        pixels = np.asarray(image)
        planes = np.stack([self._table[c][pixels[..., c]] for c in range(3)])
        return torch.from_numpy(self._split(planes, grid)), grid

    def _split(self, planes: np.ndarray, grid: PatchGrid) -> np.ndarray:
        merge, patch = self._merge, self._patch
        blocks = planes.reshape(
            3, grid.height // merge, merge, patch, grid.width // merge, merge, patch
        ).transpose(1, 4, 2, 5, 0, 3, 6)
        frames = np.repeat(blocks[..., None, :, :], self._frames, axis=5)
        return frames.reshape(grid.height * grid.width, -1)


def image_tokens(path: Path, height: int, width: int) -> int:
    """Return how many tokens an image in pixels becomes for the checkpoint at `path`.

    Raises:
        PolicyError: Its image processor can not be read.
    """
    with reading_policy(path):
        extractor = PatchExtractor(Qwen2VLImageProcessorPil.from_pretrained(path))
    return extractor.grid(height, width).num_tokens


def _normalisation_table(processor: Qwen2VLImageProcessorPil) -> np.ndarray:
    values = np.tile(np.arange(256, dtype=np.uint8)[None, :, None], (3, 1, 1))
    table = values
    if processor.do_rescale:
        table = rescale(table, processor.rescale_factor, input_data_format="channels_first")
    if processor.do_normalize:
        table = normalize(
            table, processor.image_mean, processor.image_std, input_data_format="channels_first"
        )
    return np.ascontiguousarray(table[..., 0], dtype=np.float32)
