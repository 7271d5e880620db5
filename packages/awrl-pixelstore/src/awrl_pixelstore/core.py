"""All behaviour of one shard, without Ray, threads or I/O of its own.

Invariants:
* content-addressed: one entry per content, whoever puts it and how often;
* an entry exists exactly as long as a trajectory holds a lease on it;
* a put, put_many or acquire happens as a whole or not at all;
* payload never exceeds the budget: a put is refused, an image in use is never evicted;
* every operation is idempotent, so that a caller may repeat it after a lost answer.

Called by the shard's actor methods, or directly by a program that needs no Ray.
"""

import time
from collections.abc import Callable, Sequence

from awrl_pixelstore.config import PixelStoreConfig
from awrl_pixelstore.disk import DiskTier
from awrl_pixelstore.errors import PixelNotFound, PixelStoreFull
from awrl_pixelstore.holdings import Holdings
from awrl_pixelstore.image import Image, PackedImage, pack
from awrl_pixelstore.journal import Record
from awrl_pixelstore.keys import make_key, parse_key, require_trajectory_id

SWEEPS_PER_TTL = 16
"""Expiry looks this often within a time to live: an orphan stays at most 1/16 too long."""


class PixelStoreCore(Holdings):
    """One shard's images, leases and budgets. Single-threaded.

    Args:
        config: Budgets; the defaults when None.
        run_id: Name of the run; part of every key.
        shard: Index of this shard; part of every key.
        clock: Monotonic seconds, for expiry and service times.
        disk: The disk tier; made from `config.disk` when None.

    Raises:
        ValueError: `run_id` can't name a run.
        DiskTierError: The disk tier's folder can't be used.
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
        super().__init__(config or PixelStoreConfig(), run_id, shard, clock, disk)
        self._next_sweep = clock()

    def put(self, data: Image, *, trajectory_id: str, shape: tuple[int, ...] | None = None) -> str:
        """Hold one image for a trajectory.

        Args:
            data: Encoded bytes, or a uint8 array `[H, W, C]`.
            trajectory_id: Who holds it until `release`.
            shape: Declared `(H, W)` or `(H, W, C)`, checked when given.

        Returns:
            Its key: the same for the same content.

        Raises:
            TypeError: `data` is neither bytes nor an array.
            InvalidImage: `data` is not an image that the store holds.
            PixelStoreFull: It does not fit.
            DiskTierError: The disk tier refused.
        """
        return self.put_packed([pack(data, shape)], trajectory_id=trajectory_id)[0]

    def put_many(self, images: Sequence[Image], *, trajectory_id: str) -> list[str]:
        """Hold several images for a trajectory, all or none.

        Args:
            images: As `put` takes them.
            trajectory_id: Who holds them until `release`.

        Returns:
            Their keys, in order.

        Raises:
            TypeError: An image is neither bytes nor an array.
            InvalidImage: One is not an image that the store holds.
            PixelStoreFull: They do not fit.
            DiskTierError: The disk tier refused.
        """
        return self.put_packed([pack(image) for image in images], trajectory_id=trajectory_id)

    def put_packed(self, images: Sequence[PackedImage], *, trajectory_id: str) -> list[str]:
        """Hold validated images for a trajectory, all or none; the payload is copied when new.

        Args:
            images: From `pack`.
            trajectory_id: Who holds them until `release`.

        Returns:
            Their keys, in order.

        Raises:
            ValueError: `trajectory_id` is empty.
            PixelStoreFull: They do not fit.
            DiskTierError: The disk tier refused.
        """
        started = self._clock()
        require_trajectory_id(trajectory_id)
        self.sweep_if_due()
        keys = [make_key(self._run_tag, self._shard, image.digest) for image in images]
        table = self._tiers.table
        fresh = {k: image for k, image in zip(keys, images, strict=True) if k not in table}
        num_fresh_bytes = sum(image.payload.nbytes for image in fresh.values())
        record: Record = ("lease", trajectory_id, tuple(image.digest for image in images))
        try:
            self._tiers.require_room(num_fresh_bytes)
            self._tiers.admit(fresh, record)
        except PixelStoreFull:
            self._counts["num_refused"] += len(images)
            raise
        self._leases.acquire(trajectory_id, keys, started)
        num_bytes = sum(image.payload.nbytes for image in images)
        self._counts["num_puts"] += len(images)
        self._counts["num_dedup_puts"] += len(images) - len(fresh)
        self._counts["num_put_bytes"] += num_bytes
        self._counts["num_dedup_bytes"] += num_bytes - num_fresh_bytes
        self._put_latency.observe(self._clock() - started)
        return keys

    def acquire(self, trajectory_id: str, keys: Sequence[str]) -> None:
        """Let one more trajectory hold images that are held already, all or none.

        Raises:
            ValueError: `trajectory_id` is empty.
            TypeError: A key is not a string.
            InvalidKey: A string has not the form of a key.
            PixelNotFound: Some are not held; nothing was acquired.
        """
        require_trajectory_id(trajectory_id)
        if lost := self.missing(keys):
            raise PixelNotFound(lost)
        self._leases.acquire(trajectory_id, keys, self._clock())
        digests = tuple(parse_key(key).digest for key in keys)
        self._tiers.note(("lease", trajectory_id, digests), self._leases.snapshot)

    def release(self, trajectory_id: str) -> int:
        """End a trajectory's lease; images that nobody else holds are gone.

        Args:
            trajectory_id: Who held them; one that holds nothing is no error.

        Returns:
            Bytes freed.
        """
        freed = self._leases.release(trajectory_id)
        self._tiers.note(("release", trajectory_id, ()), self._leases.snapshot)
        return sum(self._discard(key) for key in freed)

    def transfer(self, source: str, target: str) -> None:
        """Hand everything that one trajectory holds to another; nothing is freed.

        Args:
            source: Who holds it; one that holds nothing is no error.
            target: Who holds it afterwards, beside what it held.

        Raises:
            ValueError: `target` is empty.
        """
        require_trajectory_id(target)
        self._leases.transfer(source, target, self._clock())
        self._tiers.note(("transfer", source, (target,)), self._leases.snapshot)

    def renew(self, trajectory_ids: Sequence[str]) -> list[str]:
        """Keep trajectories from expiring; return those that hold nothing here."""
        now = self._clock()
        return [name for name in trajectory_ids if not self._leases.renew(name, now)]

    def expire(self) -> list[str]:
        """Release every trajectory whose time to live has passed; return their names."""
        if self.config.lease_ttl_s is None:
            return []
        overdue = self._leases.overdue(self._clock() - self.config.lease_ttl_s)
        for trajectory_id in overdue:
            self.release(trajectory_id)
        self._counts["num_expired"] += len(overdue)
        return overdue

    def sweep_if_due(self) -> None:
        """Expire orphans, at most `SWEEPS_PER_TTL` times within a time to live."""
        if self.config.lease_ttl_s is not None and self._clock() >= self._next_sweep:
            self._next_sweep = self._clock() + self.config.lease_ttl_s / SWEEPS_PER_TTL
            self.expire()

    def flush(self, max_images: int | None = None) -> int:
        """Write to disk what a write-behind tier still owes; return how many images are left.

        Args:
            max_images: At most so many now; None writes all.

        Raises:
            PixelStoreFull: The file system is full; the rest stays in memory.
            DiskTierError: The disk refused for another reason.
        """
        return self._tiers.flush(max_images)

    def close(self, *, is_disk_kept: bool = False) -> None:
        """Give the disk tier's folder back; the core must not be used afterwards.

        Args:
            is_disk_kept: Whether the images on disk stay for a later core of the same run.

        Raises:
            PixelStoreFull: The file system is full and something was still to be written.
            DiskTierError: The disk refused for another reason.
        """
        self._tiers.close(is_kept=is_disk_kept)

    def _discard(self, key: str) -> int:
        self.freed.append(key)
        return self._tiers.discard(key)
