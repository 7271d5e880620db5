"""A bounded log of freed keys, by which readers learn what to drop from their caches.

Invariant: `since(n)` names every key freed after event `n`, or says that it can't; it never names
only some of them.
"""

from collections import deque
from itertools import islice

FREED_LOG_LENGTH = 16384
"""Keys remembered: several batches of a large run, about 2 MB. A reader that slept longer empties
its cache, which costs it some reads and nothing else."""


class FreedLog:
    """The last keys that a shard freed. Called by the core only."""

    def __init__(self, length: int = FREED_LOG_LENGTH) -> None:
        self._keys: deque[str] = deque(maxlen=length)
        self._sequence = 0

    @property
    def sequence(self) -> int:
        """Events so far; a reader remembers it."""
        return self._sequence

    def append(self, key: str) -> None:
        """Record that `key` is no longer held."""
        self._keys.append(key)
        self._sequence += 1

    def since(self, sequence: int) -> tuple[str, ...] | None:
        """Return the keys freed after `sequence`, or None when the log no longer knows."""
        behind = self._sequence - sequence
        if not 0 <= behind <= len(self._keys):
            return None
        return tuple(islice(self._keys, len(self._keys) - behind, None))
