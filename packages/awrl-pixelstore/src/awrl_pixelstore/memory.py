"""The entries of a shard and which of them are in memory. Pure bookkeeping, no I/O.

Invariants: `num_bytes` is the sum over entries, `resident_bytes` over those with a payload; an
entry without a payload is on disk; a dirty entry (not on disk yet) always has its payload, so that
dropping a clean payload never loses an image.
"""

from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass

from awrl_pixelstore.headers import Shape
from awrl_pixelstore.image import Form


@dataclass(slots=True)
class Entry:
    """One image of a shard."""

    form: Form
    """Encoding, or `array` for raw pixels."""
    shape: Shape
    """`(H, W, C)`."""
    num_bytes: int
    """Payload bytes."""
    payload: bytes | None
    """The bytes, or None when they are only on disk."""
    is_dirty: bool
    """Whether a disk tier has yet to write it."""


class EntryTable:
    """Entries by key, with the least recently used resident ones first. Called by the core only."""

    def __init__(self) -> None:
        self._entries: dict[str, Entry] = {}
        self._resident: OrderedDict[str, None] = OrderedDict()
        self._dirty: dict[str, None] = {}
        self.num_bytes = 0
        self.resident_bytes = 0

    def __len__(self) -> int:
        """Return the number of entries."""
        return len(self._entries)

    def __contains__(self, key: str) -> bool:
        """Return whether the key is held."""
        return key in self._entries

    def find(self, key: str) -> Entry | None:
        """Return the entry of a key, or None."""
        return self._entries.get(key)

    def add(self, key: str, entry: Entry) -> None:
        """Hold a new entry."""
        assert key not in self._entries
        self._entries[key] = entry
        self.num_bytes += entry.num_bytes
        if entry.is_dirty:
            self._dirty[key] = None
        if entry.payload is not None:
            self._resident[key] = None
            self.resident_bytes += entry.num_bytes

    def remove(self, key: str) -> Entry:
        """Stop holding an entry and return it."""
        self.drop_payload(key)
        self._dirty.pop(key, None)
        entry = self._entries.pop(key)
        self.num_bytes -= entry.num_bytes
        return entry

    def touch(self, key: str) -> None:
        """Make a resident entry the most recently used one."""
        if key in self._resident:
            self._resident.move_to_end(key)

    def restore_payload(self, key: str, payload: bytes) -> None:
        """Keep the bytes of an entry in memory again."""
        entry = self._entries[key]
        assert entry.payload is None
        entry.payload = payload
        self._resident[key] = None
        self.resident_bytes += entry.num_bytes

    def drop_payload(self, key: str) -> None:
        """Forget the bytes of an entry in memory; the entry stays."""
        entry = self._entries[key]
        if entry.payload is not None:
            entry.payload = None
            del self._resident[key]
            self.resident_bytes -= entry.num_bytes

    def mark_clean(self, key: str) -> None:
        """Record that an entry is on disk."""
        self._entries[key].is_dirty = False
        self._dirty.pop(key, None)

    def dirty_keys(self) -> list[str]:
        """Return the keys that are not on disk yet, oldest first."""
        return list(self._dirty)

    def least_recently_used(self) -> str | None:
        """Return the resident key to drop first, or None."""
        return next(iter(self._resident), None)

    def keys(self) -> Iterator[str]:
        """Iterate over all keys."""
        return iter(self._entries)
