"""The lease journal: an append-only file from which a killed shard learns who held what.

Invariants: one line per change, with a checksum, written by a single `write`; a torn or damaged
line is skipped and counted, never misread; a failed append leaves the file as it was.
"""

import json
import os
import zlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Literal, TypeAlias, cast

Record: TypeAlias = tuple[Literal["lease", "release", "transfer"], str, tuple[str, ...]]
"""What happened, to which trajectory, with which digests (of a transfer: the target's id)."""

COMPACT_AFTER_LINES = 4096
"""Appended lines before a rewrite is worth it: below 1 MB, replayed in a few milliseconds."""


def _encode(record: Record) -> bytes:
    body = json.dumps(record, separators=(",", ":")).encode()
    return b"%08x %s\n" % (zlib.crc32(body), body)


def _decode(line: bytes) -> Record | None:
    checksum, _, body = line.partition(b" ")
    if checksum != b"%08x" % zlib.crc32(body):
        return None
    kind, trajectory_id, rest = json.loads(body)
    return cast("Record", (kind, trajectory_id, tuple(rest)))


class Journal:
    """Leases on disk. Called by the disk tier only."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        self._size = os.lseek(self._fd, 0, os.SEEK_END)
        self._num_appended = 0
        self._num_rewritten = 0
        self.num_damaged = 0

    @property
    def is_long(self) -> bool:
        """Whether a rewrite would pay: more was appended than a rewrite writes."""
        return self._num_appended >= max(COMPACT_AFTER_LINES, self._num_rewritten)

    def append(self, record: Record) -> None:
        """Write one change.

        Raises:
            OSError: The disk refused; the file is as before.
        """
        line = _encode(record)
        written = 0
        try:
            while written < len(line):
                written += os.pwrite(self._fd, line[written:], self._size + written)
        except OSError:
            os.ftruncate(self._fd, self._size)
            raise
        self._size += len(line)
        self._num_appended += 1

    def replay(self) -> dict[str, dict[str, None]]:
        """Return digests by trajectory, least recently changed first."""
        leases: dict[str, dict[str, None]] = {}
        for line in self._path.read_bytes().splitlines():
            record = _decode(line)
            if record is None:
                self.num_damaged += 1
            else:
                _apply(leases, record)
        return leases

    def rewrite(self, leases: Mapping[str, Iterable[str]]) -> None:
        """Replace the file by the leases that stand now, in one step.

        Raises:
            OSError: The disk refused; the file is as before.
        """
        lines = [_encode(("lease", name, tuple(digests))) for name, digests in leases.items()]
        fresh = self._path.with_suffix(".tmp")
        fresh.write_bytes(b"".join(lines))
        fresh.replace(self._path)
        os.close(self._fd)
        self._fd = os.open(self._path, os.O_RDWR)
        self._size = os.lseek(self._fd, 0, os.SEEK_END)
        self._num_appended = 0
        self._num_rewritten = len(lines)

    def close(self) -> None:
        """Give the file back."""
        os.close(self._fd)


def _apply(leases: dict[str, dict[str, None]], record: Record) -> None:
    kind, trajectory_id, rest = record
    if kind == "lease":
        keys = leases.pop(trajectory_id, {})
        keys.update(dict.fromkeys(rest))
        leases[trajectory_id] = keys
    elif kind == "release":
        leases.pop(trajectory_id, None)
    else:
        moved = leases.pop(trajectory_id, None)
        if moved is not None:
            target = leases.pop(rest[0], {})
            leases[rest[0]] = {**target, **moved}
