"""A reader's cache of images, bounded in bytes, that forgets what the store freed.

Invariants: cached bytes never exceed the bound; an image that a shard freed leaves the cache with
the next answer of that shard, whatever the call; an answer that overtook a release can't bring a
freed image back. An array that the program still holds is shared again instead of fetched.
"""

import weakref
from collections import OrderedDict
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from awrl_pixelstore.image import Image
from awrl_pixelstore.keys import parse_key
from awrl_pixelstore.wire import Reply, Seen


@dataclass(frozen=True, kw_only=True, slots=True)
class CacheStatistics:
    """One client's read cache."""

    num_entries: int
    """Images cached now."""
    num_bytes: int
    """Their payload bytes."""
    num_hits: int
    """Keys answered without a call so far."""
    num_misses: int
    """Keys that needed a call so far."""


class ReadCache:
    """Images by key, least recently used first. Called by one client only."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._images: OrderedDict[str, Image] = OrderedDict()
        self._held: weakref.WeakValueDictionary[str, NDArray[np.uint8]] = (
            weakref.WeakValueDictionary()
        )
        self._seen: dict[int, Seen] = {}
        self._keys: dict[int, set[str]] = {}
        self._num_bytes = 0
        self._num_hits = 0
        self._num_misses = 0

    def find(self, key: str) -> Image | None:
        """Return a cached image, or None."""
        image = self._images.get(key)
        if image is None:
            image = self._held.get(key)
        else:
            self._images.move_to_end(key)
        if image is None:
            self._num_misses += 1
        else:
            self._num_hits += 1
        return image

    def seen(self, shard: int) -> Seen | None:
        """Return what to tell a shard with the next call: None when nothing of it is cached."""
        return self._seen.get(shard) if self._keys.get(shard) else None

    def absorb(self, shard: int, told: Seen | None, reply: Reply) -> bool:
        """Forget what a reply says is freed.

        Args:
            shard: Who answered.
            told: What `seen` gave for the call.
            reply: The answer.

        Returns:
            Whether images of this reply may be added: it is not older than what is known.
        """
        known = self._seen.get(shard)
        now = (reply.incarnation, reply.sequence)
        if known is not None and known[0] == now[0] and known[1] > now[1]:
            return False
        if reply.freed is not None and told is not None and told[0] == now[0]:
            for key in reply.freed:
                self._drop(shard, key)
        elif self._keys.get(shard):
            if known is not None and known[0] == now[0] and told is None:
                # Others were cached while this call, which asked for nothing, was under way.
                return known[1] == now[1]
            for key in list(self._keys[shard]):
                self._drop(shard, key)
        self._seen[shard] = now
        return True

    def add(self, key: str, image: Image) -> None:
        """Cache an image, dropping the least recently used ones."""
        shard = parse_key(key).shard
        if isinstance(image, np.ndarray) and self._max_bytes:
            self._held[key] = image
            self._keys.setdefault(shard, set()).add(key)
        size = _num_bytes(image)
        if size > self._max_bytes or key in self._images:
            return
        self._images[key] = image
        self._num_bytes += size
        self._keys.setdefault(shard, set()).add(key)
        while self._num_bytes > self._max_bytes:
            oldest, dropped = self._images.popitem(last=False)
            self._num_bytes -= _num_bytes(dropped)
            del dropped
            if oldest not in self._held:
                self._keys[parse_key(oldest).shard].discard(oldest)

    def clear(self) -> None:
        """Forget everything."""
        self._images.clear()
        self._held.clear()
        self._keys.clear()
        self._num_bytes = 0

    def statistics(self) -> CacheStatistics:
        """Return what the cache holds and did."""
        return CacheStatistics(
            num_entries=len(self._images),
            num_bytes=self._num_bytes,
            num_hits=self._num_hits,
            num_misses=self._num_misses,
        )

    def _drop(self, shard: int, key: str) -> None:
        image = self._images.pop(key, None)
        if image is not None:
            self._num_bytes -= _num_bytes(image)
        self._held.pop(key, None)
        self._keys.get(shard, set[str]()).discard(key)


def _num_bytes(image: Image) -> int:
    return len(image) if isinstance(image, bytes) else image.nbytes
