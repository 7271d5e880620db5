"""A least-recently-used cache bounded by the bytes of what it holds.

Invariants:

* The sum of the sizes never exceeds the bound; an entry bigger than the bound is not kept.
* `get` makes an entry the most recent; `put` drops the least recent ones.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from typing import Generic, TypeVar

KeyT = TypeVar("KeyT", bound=Hashable)
ValueT = TypeVar("ValueT")


class ByteCache(Generic[KeyT, ValueT]):
    """Entries by key, each with a size in bytes."""

    def __init__(self, max_bytes: int) -> None:
        """Hold at most `max_bytes`; 0 holds nothing."""
        self._max_bytes = max_bytes
        self._entries: OrderedDict[KeyT, tuple[ValueT, int]] = OrderedDict()
        self._num_bytes = 0

    @property
    def num_bytes(self) -> int:
        """Bytes held now."""
        return self._num_bytes

    def get(self, key: KeyT) -> ValueT | None:
        """Return the entry, now the most recent, or `None`."""
        entry = self._entries.get(key)
        if entry is None:
            return None
        self._entries.move_to_end(key)
        return entry[0]

    def put(self, key: KeyT, value: ValueT, num_bytes: int) -> None:
        """Keep `value`, of `num_bytes`, as the most recent entry."""
        previous = self._entries.pop(key, None)
        if previous is not None:
            self._num_bytes -= previous[1]
        if num_bytes > self._max_bytes:
            return
        self._entries[key] = (value, num_bytes)
        self._num_bytes += num_bytes
        while self._num_bytes > self._max_bytes:
            _, (_, dropped) = self._entries.popitem(last=False)
            self._num_bytes -= dropped

    def clear(self) -> None:
        """Drop everything."""
        self._entries.clear()
        self._num_bytes = 0

    def __len__(self) -> int:
        return len(self._entries)
