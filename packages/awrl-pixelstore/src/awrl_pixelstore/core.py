"""All behaviour of one shard, without Ray, threads or timers of its own.

Invariants:
* content-addressed: one entry per content, whoever puts it and how often;
* an entry exists exactly as long as a trajectory holds a lease on it;
* a put happens as a whole or not at all;
* payload never exceeds the budget: a put is refused, an image in use is never evicted. With a disk
  tier every image is on disk, and memory holds copies of those used last;
* every operation is idempotent, so that a caller may repeat it after a lost answer.

Called by the shard's actor methods, or directly by a program that needs no Ray.
"""

from __future__ import annotations

import logging
import sqlite3
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NoReturn

from cachetools import LRUCache

from awrl_pixelstore.config import PixelStoreConfig
from awrl_pixelstore.disk import DiskTier, is_no_room
from awrl_pixelstore.errors import PixelNotFound, PixelStoreFull, PixelStoreUnavailable
from awrl_pixelstore.image import Image, PackedImage, pack, unpack
from awrl_pixelstore.keys import make_key, parse_key, require_trajectory_id, run_tag_of
from awrl_pixelstore.leases import LeaseTable
from awrl_pixelstore.statistics import (
    LatencyWindow,
    PixelStoreStatistics,
    Pressure,
    pressure_of,
)

logger = logging.getLogger(__name__)

SWEEPS_PER_TTL = 16
"""Expiry looks this often within a time to live: an orphan stays at most 1/16 too long."""

DISK_ERRORS = (OSError, sqlite3.Error)


def open_disk_tier(config: PixelStoreConfig, run_id: str, shard: int) -> DiskTier | None:
    """Return the disk tier of one shard of a run; None when the store has none.

    Raises:
        PixelStoreUnavailable: The folder can't be used, or another process uses it.
    """
    if config.disk_dir is None:
        return None
    folder = Path(config.disk_dir) / run_id / f"shard-{shard}"
    try:
        return DiskTier(folder)
    except DISK_ERRORS as error:
        raise PixelStoreUnavailable(
            f"the disk tier at {str(folder)!r} can't be used ({error}); disk_dir must be a "
            "writable folder that no other store uses: name another, or end the other store",
            shard=shard,
        ) from error


class PixelStoreCore:
    """One shard's images, leases and budgets. Single-threaded.

    Args:
        run_id: Name of the run; part of every key.
        shard: Index of this shard; part of every key.
        clock: Monotonic seconds, for expiry and service times.
        disk: The disk tier; opened below `config.disk_dir` when None.

    Raises:
        ValueError: `run_id` can't name a run.
        PixelStoreUnavailable: The disk tier's folder can't be used.
    """

    def __init__(
        self,
        config: PixelStoreConfig | None = None,
        *,
        run_id: str = "local",
        shard: int = 0,
        clock: Callable[[], float] = time.monotonic,
        disk: DiskTier | None = None,
    ) -> None:
        self.config = config or PixelStoreConfig()
        self._shard = shard
        self._run_tag = run_tag_of(run_id)
        self._clock = clock
        self._next_sweep = clock()
        self._disk = disk or open_disk_tier(self.config, run_id, shard)
        self._sizes: dict[str, int] = {}
        self._num_bytes = 0
        # Without a disk tier the budget keeps it from evicting: then it holds every image.
        self._memory: LRUCache[str, PackedImage] = LRUCache(self.config.max_bytes, _num_bytes)
        self._leases = LeaseTable()
        self._is_disk_behind = False
        self._put_latency = LatencyWindow()
        self._get_latency = LatencyWindow()
        self._counts: Counter[str] = Counter()
        if self._disk is not None:
            self._recover(self._disk)

    def put(self, data: Image, *, trajectory_id: str) -> str:
        """Hold one image for a trajectory, as `put_many` does, and return its key."""
        return self.put_many([data], trajectory_id=trajectory_id)[0]

    def put_many(self, images: Sequence[Image], *, trajectory_id: str) -> list[str]:
        """Hold images for a trajectory until `release`, all or none.

        Args:
            images: Encoded PNG, JPEG or WebP bytes, or uint8 arrays `[H, W, C]`.

        Returns:
            Their keys, in order: the same key for the same content.

        Raises:
            TypeError: An image is neither bytes nor an array.
            InvalidImage: One is not an image that the store holds.
            ValueError: `trajectory_id` is empty.
            PixelStoreFull: They do not fit the budget, or the file system.
            PixelStoreUnavailable: The disk refused for another reason.
        """
        return self.put_packed([pack(image) for image in images], trajectory_id=trajectory_id)

    def put_packed(self, images: Sequence[PackedImage], *, trajectory_id: str) -> list[str]:
        """Do as `put_many` does, with images from `pack`."""
        started = self._clock()
        require_trajectory_id(trajectory_id)
        self.sweep_if_due()
        keys = [make_key(self._run_tag, self._shard, image.digest) for image in images]
        # Looked for, not only looked up: what the disk lost meanwhile is stored again.
        fresh = {k: i for k, i in zip(keys, images, strict=True) if self._find(k) is None}
        num_fresh_bytes = sum(map(_num_bytes, fresh.values()))
        try:
            self._note_put(trajectory_id, keys, fresh, num_fresh_bytes)
        except PixelStoreFull:
            self._counts["num_refused"] += len(images)
            raise
        for key, image in fresh.items():
            self._sizes[key] = _num_bytes(image)
            self._remember(key, image)
        self._num_bytes += num_fresh_bytes
        self._leases.acquire(trajectory_id, keys, started)
        num_bytes = sum(map(_num_bytes, images))
        self._counts["num_puts"] += len(images)
        self._counts["num_dedup_puts"] += len(images) - len(fresh)
        self._counts["num_put_bytes"] += num_bytes
        self._counts["num_dedup_bytes"] += num_bytes - num_fresh_bytes
        self._put_latency.observe(self._clock() - started)
        return keys

    def load(self, key: str) -> PackedImage | None:
        """Return what is stored under a key; None when it is not held.

        Raises:
            TypeError: `key` is not a string.
            ValueError: It has not the form of a key.
            PixelStoreUnavailable: The disk can't be read.
        """
        started = self._clock()
        is_in_memory = key in self._memory
        image = self._find(key)
        self._counts["num_gets"] += 1
        if image is None:
            self._counts["num_misses"] += 1
        else:
            self._counts["num_memory_hits" if is_in_memory else "num_disk_hits"] += 1
            self._get_latency.observe(self._clock() - started)
        return image

    def get_many(self, keys: Sequence[str]) -> list[Image]:
        """Return images as they were put, in the order of `keys`; repeats are allowed.

        Returns:
            Encoded bytes, or uint8 arrays `[H, W, C]` that are the caller's own.

        Raises:
            TypeError: A key is not a string.
            ValueError: A string has not the form of a key.
            PixelNotFound: Some are not held; the error carries the others.
            PixelStoreUnavailable: The disk can't be read.
        """
        loaded = {key: self.load(key) for key in dict.fromkeys(keys)}
        found = {key: image for key, image in loaded.items() if image is not None}
        if len(found) < len(loaded):
            raise PixelNotFound(
                [key for key in loaded if key not in found],
                found={key: unpack(image) for key, image in found.items()},
            )
        return [unpack(found[key]) for key in keys]

    def missing(self, keys: Sequence[str]) -> list[str]:
        """Return the keys that a get would not find, in order, each once.

        What is not in memory is read from disk and checked, so that a row that is gone or damaged
        is found before somebody relies on it.

        Raises:
            TypeError: A key is not a string.
            ValueError: A string has not the form of a key.
            PixelStoreUnavailable: The disk can't be read.
        """
        return [key for key in dict.fromkeys(keys) if self._find(key) is None]

    def release(self, *trajectory_ids: str) -> int:
        """End leases; images that nobody else holds are gone.

        Args:
            trajectory_ids: Who held them; one that holds nothing is no error.

        Returns:
            Bytes freed.
        """
        holders = [name for name in dict.fromkeys(trajectory_ids) if self._leases.is_holder(name)]
        freed = [key for name in holders for key in self._leases.release(name)]
        num_bytes = sum(self._drop(key) for key in freed)
        self._note_removal(holders, freed)
        return num_bytes

    def expire(self) -> list[str]:
        """Release every trajectory whose time to live has passed; return their names."""
        if self.config.lease_ttl_s is None:
            return []
        overdue = self._leases.overdue(self._clock() - self.config.lease_ttl_s)
        if overdue:
            self.release(*overdue)
        self._counts["num_expired"] += len(overdue)
        return overdue

    def sweep_if_due(self) -> None:
        """Expire orphans, at most `SWEEPS_PER_TTL` times within a time to live."""
        if self.config.lease_ttl_s is not None and self._clock() >= self._next_sweep:
            self._next_sweep = self._clock() + self.config.lease_ttl_s / SWEEPS_PER_TTL
            self.expire()

    def pressure(self) -> Pressure:
        """Return how full this shard is."""
        return pressure_of([self.statistics()])

    def statistics(self) -> PixelStoreStatistics:
        """Return what this shard holds and did."""
        return PixelStoreStatistics(
            num_entries=len(self._sizes),
            num_bytes=self._num_bytes,
            num_memory_bytes=int(self._memory.currsize),
            num_disk_bytes=0 if self._disk is None else self._num_bytes,
            capacity_bytes=self.config.capacity_bytes,
            num_trajectories=self._leases.num_trajectories,
            num_references=self._leases.num_references,
            put_p99_s=self._put_latency.p99_s(),
            get_p99_s=self._get_latency.p99_s(),
            **self._counts,
        )

    def close(self, *, is_disk_kept: bool = False) -> None:
        """Give the disk tier's folder back; the core must not be used afterwards.

        Args:
            is_disk_kept: Whether the images on disk stay for a later core of the same run.
        """
        if self._disk is not None:
            self._disk.close(is_kept=is_disk_kept)

    def _recover(self, disk: DiskTier) -> None:
        sizes, leases = disk.recovered
        for trajectory_id, key in leases:
            if key in sizes:
                self._sizes[key] = sizes[key]
                self._leases.acquire(trajectory_id, [key], self._clock())
        self._num_bytes = sum(self._sizes.values())
        num_lost = len({key for _, key in leases} - sizes.keys())
        if num_lost:
            logger.warning("shard %d lost %d images that were on disk", self._shard, num_lost)
        self._counts["num_lost"] = num_lost
        self._is_disk_behind = num_lost > 0
        self._note_removal((), ())

    def _find(self, key: str) -> PackedImage | None:
        parse_key(key)
        image = self._memory.get(key)
        if image is not None or key not in self._sizes or self._disk is None:
            return image
        try:
            image = self._disk.read(key)
        except DISK_ERRORS as error:
            self._refuse(error, 0)
        if image is None:
            logger.warning("shard %d lost %s: it is gone or damaged on disk", self._shard, key)
            self._counts["num_lost"] += 1
            self._leases.forget(key)
            self._drop(key)
            self._note_removal((), [key])
        else:
            self._remember(key, image)
        return image

    def _remember(self, key: str, image: PackedImage) -> None:
        if _num_bytes(image) <= self.config.max_bytes:
            self._memory[key] = image

    def _drop(self, key: str) -> int:
        self._memory.pop(key, None)
        num_bytes = self._sizes.pop(key)
        self._num_bytes -= num_bytes
        return num_bytes

    def _note_put(
        self,
        trajectory_id: str,
        keys: Sequence[str],
        fresh: Mapping[str, PackedImage],
        num_fresh_bytes: int,
    ) -> None:
        """Refuse a put that does not fit, and note on disk one that does."""
        if self._num_bytes + num_fresh_bytes > self.config.capacity_bytes:
            raise self._full(num_fresh_bytes)
        if self._disk is not None:
            try:
                self._catch_up(self._disk)
                self._disk.add(trajectory_id, keys, fresh)
            except DISK_ERRORS as error:
                self._refuse(error, num_fresh_bytes)

    def _note_removal(self, trajectory_ids: Sequence[str], keys: Sequence[str]) -> None:
        """Note behind the fact: a removal stands even when the disk refuses to note it."""
        if self._disk is None:
            return
        try:
            self._disk.remove(trajectory_ids, keys)
            self._catch_up(self._disk)
        except DISK_ERRORS as error:
            self._is_disk_behind = True
            self._counts["num_disk_errors"] += 1
            logger.warning("shard %d could not note a removal on disk: %s", self._shard, error)

    def _catch_up(self, disk: DiskTier) -> None:
        """Remove from disk what an earlier call could not."""
        if self._is_disk_behind:
            disk.keep_only(self._leases)
            self._is_disk_behind = False

    def _full(self, requested: int, reason: str = "") -> PixelStoreFull:
        return PixelStoreFull(
            shard=self._shard,
            tier="memory" if self._disk is None else "disk",
            requested_bytes=requested,
            used_bytes=self._num_bytes,
            limit_bytes=self.config.capacity_bytes,
            reason=reason,
        )

    def _refuse(self, error: OSError | sqlite3.Error, requested: int) -> NoReturn:
        self._counts["num_disk_errors"] += 1
        if is_no_room(error):
            raise self._full(requested, f"file system: {error}") from error
        raise PixelStoreUnavailable(
            f"a disk that fails ({error}); the call changed nothing", shard=self._shard
        ) from error


def _num_bytes(image: PackedImage) -> int:
    return len(image.payload)
