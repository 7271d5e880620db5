"""What one shard holds, and everything that reads it. `PixelStoreCore` adds what changes it.

Invariants: reading changes nothing but counts, the order of use, and an entry found damaged, which
leaves the store with all its leases.
"""

from collections.abc import Callable, Sequence

from awrl_pixelstore.config import PixelStoreConfig
from awrl_pixelstore.disk import DiskTier
from awrl_pixelstore.errors import PixelNotFound
from awrl_pixelstore.freed import FreedLog
from awrl_pixelstore.image import Image, ImageInfo, StoredPayload, unpack
from awrl_pixelstore.keys import parse_key, run_tag_of
from awrl_pixelstore.leases import LeaseTable
from awrl_pixelstore.pressure import Pressure, merge_pressure
from awrl_pixelstore.statistics import LatencyWindow, PixelStoreStatistics
from awrl_pixelstore.tiers import TieredEntries

_COUNTED = (
    "num_puts",
    "num_dedup_puts",
    "num_put_bytes",
    "num_dedup_bytes",
    "num_gets",
    "num_memory_hits",
    "num_disk_hits",
    "num_misses",
    "num_refused",
    "num_expired",
)


class Holdings:
    """Images, leases and counts of one shard; the readable side of `PixelStoreCore`."""

    def __init__(
        self,
        config: PixelStoreConfig,
        run_id: str,
        shard: int,
        clock: Callable[[], float],
        disk: DiskTier | None,
    ) -> None:
        self.config = config
        self.freed = FreedLog()
        self._run_tag = run_tag_of(run_id)
        self._shard = shard
        self._clock = clock
        if disk is None and config.disk is not None:
            disk = DiskTier(config.disk, run_id=run_id, shard=shard)
        self._tiers = TieredEntries(config, self._run_tag, shard, disk)
        self._leases = LeaseTable()
        self._put_latency = LatencyWindow()
        self._get_latency = LatencyWindow()
        self._counts = dict.fromkeys(_COUNTED, 0)
        for trajectory_id, keys in self._tiers.recover().items():
            self._leases.acquire(trajectory_id, keys, clock())

    def load(self, key: str) -> StoredPayload | None:
        """Return what is stored under a key, without a copy; None when it is not held.

        Raises:
            TypeError: `key` is not a string.
            InvalidKey: It has not the form of a key.
        """
        started = self._clock()
        parse_key(key)
        loaded = self._tiers.load(key)
        self._counts["num_gets"] += 1
        if loaded is None:
            self._counts["num_misses"] += 1
            self._bury_lost(key)
            return None
        self._counts["num_disk_hits" if loaded.is_from_disk else "num_memory_hits"] += 1
        entry = self._tiers.table.find(key)
        assert entry is not None
        self._get_latency.observe(self._clock() - started)
        return StoredPayload(entry.form, entry.shape, loaded.payload)

    def get(self, key: str) -> Image:
        """Return one image as it was put; see `get_many`."""
        return self.get_many([key])[0]

    def get_many(self, keys: Sequence[str]) -> list[Image]:
        """Return images as they were put, in the order of `keys`.

        Args:
            keys: From puts; repeats are allowed.

        Returns:
            Encoded bytes or read-only uint8 arrays `[H, W, C]`, not copied.

        Raises:
            TypeError: A key is not a string.
            InvalidKey: A string has not the form of a key.
            PixelNotFound: Some are not held; the error carries the others.
        """
        found: dict[str, Image] = {}
        for key in dict.fromkeys(keys):
            stored = self.load(key)
            if stored is not None:
                found[key] = unpack(stored.form, stored.shape, stored.payload)
        lost = [key for key in dict.fromkeys(keys) if key not in found]
        if lost:
            raise PixelNotFound(lost, found=found)
        return [found[key] for key in keys]

    def missing(self, keys: Sequence[str]) -> list[str]:
        """Return the keys that are not held, in order, each once; nothing is read.

        Raises:
            TypeError: A key is not a string.
            InvalidKey: A string has not the form of a key.
        """
        for key in keys:
            parse_key(key)
        return [key for key in dict.fromkeys(keys) if key not in self._tiers.table]

    def describe(self, keys: Sequence[str]) -> list[ImageInfo]:
        """Return form, shape, size and reference count of each key, in order; nothing is read.

        Raises:
            TypeError: A key is not a string.
            InvalidKey: A string has not the form of a key.
            PixelNotFound: Some are not held.
        """
        if lost := self.missing(keys):
            raise PixelNotFound(lost)
        return [self._info(key) for key in keys]

    def usage(self) -> tuple[int, int]:
        """Return payload bytes held and payload bytes that can be held."""
        return self._tiers.table.num_bytes, self.config.capacity_bytes

    def pressure(self) -> Pressure:
        """Return how full this shard is."""
        return merge_pressure([self.usage()])

    def statistics(self) -> PixelStoreStatistics:
        """Return what this shard holds and did."""
        tiers = self._tiers
        return PixelStoreStatistics(
            num_entries=len(tiers.table),
            num_bytes=tiers.table.num_bytes,
            num_memory_bytes=tiers.table.resident_bytes,
            num_disk_bytes=tiers.disk_bytes,
            capacity_bytes=self.config.capacity_bytes,
            num_trajectories=self._leases.num_trajectories,
            num_references=self._leases.num_references,
            num_lost=tiers.num_lost,
            num_disk_errors=tiers.num_disk_errors,
            put_p99_s=self._put_latency.p99_s(),
            get_p99_s=self._get_latency.p99_s(),
            **self._counts,
        )

    def _bury_lost(self, key: str) -> None:
        if self._leases.count(key):
            self._leases.forget(key)
            self.freed.append(key)

    def _info(self, key: str) -> ImageInfo:
        entry = self._tiers.table.find(key)
        assert entry is not None
        return ImageInfo(
            key=key,
            form=entry.form,
            shape=entry.shape,
            num_bytes=entry.num_bytes,
            num_references=self._leases.count(key),
        )
