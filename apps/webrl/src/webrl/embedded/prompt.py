"""A prompt as the server knows it: what identifies it, and what its prefill leaves behind."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from webrl.embedded.kv_cache import PromptKV
from webrl.policy import ModelInputs

__all__ = ["PreparedPrompt", "PromptKey", "PromptState", "prepared_key"]

PromptKey = tuple[tuple[int, ...], tuple[bytes, ...]]
"""Token ids with one placeholder per image, and a digest of each image's bytes; equal keys mean
equal model inputs."""


def prepared_key(token_ids: Sequence[int], images: Sequence[bytes]) -> PromptKey:
    """Return the key of a prompt."""
    digests = tuple(hashlib.blake2b(image, digest_size=16).digest() for image in images)
    return tuple(token_ids), digests


@dataclass(frozen=True, kw_only=True, slots=True)
class PreparedPrompt:
    """A prompt that is ready for a prefill."""

    key: PromptKey
    """What it shares with equal prompts."""
    inputs: ModelInputs
    """Tensors of the forward."""

    @property
    def num_tokens(self) -> int:
        """Tokens, image tokens included."""
        return len(self.inputs.input_ids)


@dataclass(frozen=True, kw_only=True, slots=True)
class PromptState:
    """What a prefill leaves behind."""

    kv: PromptKV
    """Keys and values of the whole prompt."""
    logits: torch.Tensor
    """[V] float32 logits of the token after the prompt."""
    next_position: int
    """Rotary position of the token after the prompt."""

    @property
    def num_bytes(self) -> int:
        """Memory that it holds."""
        tensors = (*self.kv.keys, *self.kv.values, self.logits)
        return sum(tensor.numel() * tensor.element_size() for tensor in tensors)
