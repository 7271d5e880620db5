"""What the true policy is made of, and how a narrow one stands in for it.

Invariants:

* the true manifest comes from the model's own class on torch's meta device: every name, shape and
  dtype is that of the published checkpoint, and no weight is ever in memory;
* a publish of the narrow policy takes as many buckets as one of the true policy.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from awrl_trainer import TensorSpec
from safetensors import safe_open
from transformers import AutoModelForImageTextToText, Qwen3VLConfig

from webrl.errors import PolicyError

TEXT: Mapping[str, Any] = {
    "vocab_size": 151936,
    "hidden_size": 4096,
    "intermediate_size": 12288,
    "num_hidden_layers": 36,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "max_position_embeddings": 262144,
    "rope_parameters": {
        "rope_type": "default",
        "rope_theta": 5_000_000.0,
        "mrope_section": [24, 20, 20],
        "mrope_interleaved": True,
    },
    "tie_word_embeddings": False,
}
"""Text model of Qwen3-VL-8B-Instruct, as its configuration file has it."""

VISION: Mapping[str, Any] = {
    "depth": 27,
    "hidden_size": 1152,
    "intermediate_size": 4304,
    "num_heads": 16,
    "patch_size": 16,
    "spatial_merge_size": 2,
    "temporal_patch_size": 2,
    "out_hidden_size": 4096,
    "num_position_embeddings": 2304,
    "deepstack_visual_indexes": [8, 16, 24],
}
"""Its vision tower."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Manifest:
    """All weights of a policy, without their values."""

    specs: tuple[TensorSpec, ...]
    """Name, dtype and shape of each, in the model's order."""

    @property
    def num_parameters(self) -> int:
        """Numbers of all weights together."""
        return sum(spec.num_elements for spec in self.specs)

    @property
    def num_bytes(self) -> int:
        """Bytes of all weights together."""
        return sum(spec.num_bytes for spec in self.specs)

    def num_buckets(self, bucket_bytes: int) -> int:
        """Return how many broadcasts carry the weights; a larger weight travels alone."""
        count, filled = 0, bucket_bytes
        for spec in self.specs:
            if filled + spec.num_bytes > bucket_bytes:
                count, filled = count + 1, 0
            filled += spec.num_bytes
        return count


def true_manifest() -> Manifest:
    """Return the weights of Qwen3-VL-8B-Instruct, in bfloat16."""
    config = Qwen3VLConfig(
        text_config=dict(TEXT), vision_config=dict(VISION), tie_word_embeddings=False
    )
    with torch.device("meta"):
        model = AutoModelForImageTextToText.from_config(config, dtype=torch.bfloat16)
    return Manifest(
        specs=tuple(
            TensorSpec(name=name, dtype="bfloat16", shape=tuple(weight.shape))
            for name, weight in model.named_parameters()
        )
    )


def manifest_of(path: Path) -> Manifest:
    """Return the weights of a checkpoint directory, sorted by name; none is read.

    Raises:
        PolicyError: It has no index of its files.
    """
    index = path / "model.safetensors.index.json"
    if not index.is_file():
        raise PolicyError(
            f"path must hold {index.name}, got none in {str(path)!r}. Write it again."
        )
    specs: list[TensorSpec] = []
    for file in sorted(set(json.loads(index.read_text())["weight_map"].values())):
        with safe_open(path / file, framework="pt") as opened:
            for name in opened.keys():  # noqa: SIM118
                part = opened.get_slice(name)
                dtype = {"BF16": "bfloat16", "F32": "float32"}[str(part.get_dtype())]
                specs.append(TensorSpec(name=name, dtype=dtype, shape=tuple(part.get_shape())))
    return Manifest(specs=tuple(sorted(specs, key=lambda spec: spec.name)))


def scaled_bucket_bytes(true: Manifest, narrow: Manifest, bucket_bytes: int) -> int:
    """Return the bucket with which a publish of `narrow` takes as many broadcasts as one of `true`.

    Its weights are brought into the order of `true`. Where no size gives the same number, which a
    few large weights can bring about, the one that comes nearest from above.
    """
    place = {spec.name: index for index, spec in enumerate(true.specs)}
    ordered = Manifest(specs=tuple(sorted(narrow.specs, key=lambda spec: place[spec.name])))
    wanted = true.num_buckets(bucket_bytes)
    low, high = 1, max(1, ordered.num_bytes)
    while low < high:
        middle = (low + high) // 2
        if ordered.num_buckets(middle) <= wanted:
            high = middle
        else:
            low = middle + 1
    return low if ordered.num_buckets(low) == wanted else max(1, low - 1)
