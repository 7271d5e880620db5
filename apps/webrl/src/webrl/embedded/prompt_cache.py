"""Prompts whose prefill is shared by the requests that bring the same one.

Invariants:

* An entry was computed under the current weights: `clear` is called by every weight update.
* The key is the prompt's token ids and a digest of each image's bytes, so equal keys mean equal
  model inputs.
* At most `max_tokens` tokens are held; the least recently used go first.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from webrl.embedded.kv_cache import PromptKV

__all__ = ["PromptCache", "PromptKey", "PromptState", "prompt_key"]

PromptKey = tuple[tuple[int, ...], tuple[bytes, ...]]
"""Token ids with one placeholder per image, and the images' digests."""


def prompt_key(token_ids: Sequence[int], images: Sequence[bytes]) -> PromptKey:
    """Return the key of a prompt."""
    digests = tuple(hashlib.blake2b(image, digest_size=16).digest() for image in images)
    return tuple(token_ids), digests


@dataclass(frozen=True, kw_only=True, slots=True)
class PromptState:
    """What a prefill leaves behind."""

    kv: PromptKV
    """Keys and values of the whole prompt."""
    logits: torch.Tensor
    """[V] logits of the token after the prompt."""
    next_position: int
    """Rotary position of the token after the prompt."""


class PromptCache:
    """Least recently used prompts, bounded by tokens."""

    def __init__(self, max_tokens: int) -> None:
        """Hold at most `max_tokens` tokens; 0 holds none."""
        self._max_tokens = max_tokens
        self._entries: OrderedDict[PromptKey, PromptState] = OrderedDict()
        self.num_tokens = 0
        self.num_hits = 0
        self.num_misses = 0

    def get(self, key: PromptKey) -> PromptState | None:
        """Return the entry, now the most recent, or `None`; counts a hit or a miss."""
        entry = self._entries.get(key)
        if entry is None:
            self.num_misses += 1
            return None
        self._entries.move_to_end(key)
        self.num_hits += 1
        return entry

    def put(self, key: PromptKey, entry: PromptState) -> None:
        """Keep `entry` as the most recent; drops old ones to stay within the bound."""
        if entry.kv.num_tokens > self._max_tokens:
            return
        previous = self._entries.pop(key, None)
        if previous is not None:
            self.num_tokens -= previous.kv.num_tokens
        self._entries[key] = entry
        self.num_tokens += entry.kv.num_tokens
        while self.num_tokens > self._max_tokens:
            _, oldest = self._entries.popitem(last=False)
            self.num_tokens -= oldest.kv.num_tokens

    def clear(self) -> None:
        """Drop everything."""
        self._entries.clear()
        self.num_tokens = 0

    def __len__(self) -> int:
        return len(self._entries)
