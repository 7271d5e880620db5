"""Entries in memory and, when there is a disk tier, on disk; the byte budgets live here.

Invariants: an admission stores all of its images and its lease record, or none; payload bytes in
memory never exceed `max_bytes`, payload bytes in all never exceed the capacity; a leased image is
never dropped to make room: only its copy in memory is, once it is on disk.
"""

import errno
import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import NoReturn

from awrl_pixelstore.config import PixelStoreConfig
from awrl_pixelstore.disk import DiskTier, StoredImage
from awrl_pixelstore.errors import DiskTierError, PixelStoreFull
from awrl_pixelstore.image import PackedImage, own_bytes
from awrl_pixelstore.journal import Record
from awrl_pixelstore.keys import make_key, parse_key
from awrl_pixelstore.memory import Entry, EntryTable

logger = logging.getLogger(__name__)

NO_ROOM = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})


@dataclass(frozen=True, slots=True)
class Loaded:
    """The bytes of one entry and where they came from."""

    payload: bytes
    """The bytes as they were put."""
    is_from_disk: bool
    """Whether they had to be read from disk."""


class TieredEntries:
    """What a shard holds. Called by the core only; `flush` also by the shard's idle moments."""

    def __init__(self, config: PixelStoreConfig, run_tag: str, shard: int, disk: DiskTier | None):
        self._config = config
        self._run_tag = run_tag
        self._shard = shard
        self._disk = disk
        self.table = EntryTable()
        self.disk_bytes = 0
        self.num_lost = 0
        self.num_disk_errors = 0

    def recover(self) -> Mapping[str, list[str]]:
        """Take over what the disk tier held; return keys by trajectory."""
        if self._disk is None:
            return {}
        try:
            recovered = self._disk.recover()
        except OSError as error:
            self._refuse(error, 0)
        for digest, stored in recovered.images.items():
            entry = Entry(stored.form, stored.shape, stored.num_bytes, None, is_dirty=False)
            self.table.add(self._key(digest), entry)
        self.disk_bytes = self.table.num_bytes
        self.num_lost = len(recovered.lost)
        if self.num_lost:
            logger.warning(
                "shard %d lost %d images that were not on disk", self._shard, self.num_lost
            )
        return {
            name: [self._key(digest) for digest in digests]
            for name, digests in recovered.leases.items()
        }

    def require_room(self, num_bytes: int) -> None:
        """Pass silently when `num_bytes` more fit the capacity.

        Raises:
            PixelStoreFull: They do not.
        """
        if self.table.num_bytes + num_bytes > self._config.capacity_bytes:
            raise self._full(num_bytes, "")

    def admit(self, fresh: Mapping[str, PackedImage], record: Record) -> None:
        """Hold new images and note their lease: all of it or nothing.

        Raises:
            PixelStoreFull: The file system is full.
            DiskTierError: The disk refused for another reason.
        """
        num_bytes = sum(image.payload.nbytes for image in fresh.values())
        entries = {
            key: Entry(image.form, image.shape, image.payload.nbytes, own_bytes(image), False)
            for key, image in fresh.items()
        }
        if self._disk is not None:
            self._admit_on_disk(self._disk, entries, num_bytes, record)
        for key, entry in entries.items():
            self._make_room_without_writing(entry.num_bytes)
            if self.table.resident_bytes + entry.num_bytes > self._config.max_bytes:
                entry.payload = None
            self.table.add(key, entry)

    def _admit_on_disk(
        self, disk: DiskTier, entries: Mapping[str, Entry], num_bytes: int, record: Record
    ) -> None:
        is_behind = disk.config.mode == "write_behind" and num_bytes <= self._config.max_bytes
        written: list[str] = []
        try:
            if is_behind:
                self._make_room(disk, num_bytes)
            else:
                for key, entry in entries.items():
                    self._write(disk, key, entry)
                    written.append(key)
            disk.append(record)
        except OSError as error:
            for key in written:
                disk.remove(parse_key(key).digest)
                self.disk_bytes -= entries[key].num_bytes
            self._refuse(error, num_bytes)
        for entry in entries.values():
            entry.is_dirty = is_behind

    def note(self, record: Record, leases: Callable[[], Mapping[str, Iterable[str]]]) -> None:
        """Write a change of leases behind the fact: it stands even when the disk refuses."""
        if self._disk is None:
            return
        try:
            self._disk.append(record)
            self._disk.compact_if_long(
                lambda: {
                    name: [parse_key(key).digest for key in keys] for name, keys in leases().items()
                }
            )
        except OSError as error:
            self.num_disk_errors += 1
            logger.warning("shard %d could not note a %s: %s", self._shard, record[0], error)

    def load(self, key: str) -> Loaded | None:
        """Return the bytes of an entry; None, and no entry any more, when they are damaged."""
        entry = self.table.find(key)
        if entry is None:
            return None
        if entry.payload is not None:
            self.table.touch(key)
            return Loaded(entry.payload, is_from_disk=False)
        assert self._disk is not None
        stored = StoredImage(entry.form, entry.shape, entry.num_bytes)
        try:
            payload = self._disk.read(parse_key(key).digest, stored)
        except OSError as error:
            self._refuse(error, 0)
        if payload is None:
            logger.warning("shard %d lost %s: its file is gone or damaged", self._shard, key)
            self.num_lost += 1
            self.discard(key)
            return None
        self._make_room_without_writing(entry.num_bytes)
        if self.table.resident_bytes + entry.num_bytes <= self._config.max_bytes:
            self.table.restore_payload(key, payload)
        return Loaded(payload, is_from_disk=True)

    def discard(self, key: str) -> int:
        """Hold an image no more, in memory and on disk; return its bytes."""
        entry = self.table.remove(key)
        if self._disk is not None and not entry.is_dirty:
            self.disk_bytes -= entry.num_bytes
            try:
                self._disk.remove(parse_key(key).digest)
            except OSError as error:
                self.num_disk_errors += 1
                logger.warning("shard %d could not remove %s: %s", self._shard, key, error)
        return entry.num_bytes

    def flush(self, max_images: int | None = None) -> int:
        """Write images that are not on disk yet, oldest first; return how many are left.

        Raises:
            PixelStoreFull: The file system is full; the rest stays in memory.
            DiskTierError: The disk refused for another reason.
        """
        dirty = self.table.dirty_keys()
        if self._disk is not None:
            for key in dirty[:max_images]:
                try:
                    self._write_dirty(self._disk, key)
                except OSError as error:
                    self._refuse(error, 0)
        return len(self.table.dirty_keys())

    def close(self, *, is_kept: bool) -> None:
        """Give the disk tier's folder back, with or without what is in it."""
        if self._disk is not None:
            if is_kept:
                self.flush()
            self._disk.close(is_kept=is_kept)

    def _make_room(self, disk: DiskTier, num_bytes: int) -> None:
        while self.table.resident_bytes + num_bytes > self._config.max_bytes:
            key = self.table.least_recently_used()
            assert key is not None
            entry = self.table.find(key)
            if entry is not None and entry.is_dirty:
                self._write_dirty(disk, key)
            self.table.drop_payload(key)

    def _make_room_without_writing(self, num_bytes: int) -> None:
        while self.table.resident_bytes + num_bytes > self._config.max_bytes:
            key = self.table.least_recently_used()
            entry = None if key is None else self.table.find(key)
            if key is None or entry is None or entry.is_dirty or self._disk is None:
                return
            self.table.drop_payload(key)

    def _write_dirty(self, disk: DiskTier, key: str) -> None:
        entry = self.table.find(key)
        assert entry is not None
        self._write(disk, key, entry)
        self.table.mark_clean(key)

    def _write(self, disk: DiskTier, key: str, entry: Entry) -> None:
        assert entry.payload is not None
        disk.write(parse_key(key).digest, entry.form, entry.shape, entry.payload)
        self.disk_bytes += entry.num_bytes

    def _key(self, digest: str) -> str:
        return make_key(self._run_tag, self._shard, digest)

    def _full(self, requested: int, reason: str) -> PixelStoreFull:
        return PixelStoreFull(
            shard=self._shard,
            tier="memory" if self._config.disk is None else "disk",
            requested_bytes=requested,
            used_bytes=self.table.num_bytes,
            limit_bytes=self._config.capacity_bytes,
            reason=reason,
        )

    def _refuse(self, error: OSError, requested: int) -> NoReturn:
        self.num_disk_errors += 1
        if error.errno in NO_ROOM:
            raise self._full(requested, f"file system: {error.strerror}") from error
        raise DiskTierError(
            f"the disk tier of shard {self._shard} must answer, got {error}. "
            "The call changed nothing; check the disk."
        ) from error
