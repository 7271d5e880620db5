"""Frozen snapshots of what a store holds and did, and how full it is."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields

from awrl_pixelstore.config import require_positive

LATENCY_WINDOW = 1024
"""Service times kept for the p99: ten samples lie above it, and sorting them takes 0.1 ms."""


class LatencyWindow:
    """The last `LATENCY_WINDOW` durations and their 99th percentile."""

    def __init__(self) -> None:
        self._samples: deque[float] = deque(maxlen=LATENCY_WINDOW)

    def observe(self, seconds: float) -> None:
        """Add one duration."""
        self._samples.append(seconds)

    def p99_s(self) -> float:
        """Return the 99th percentile in seconds, 0 without samples."""
        ordered = sorted(self._samples)
        return ordered[min(len(ordered) - 1, len(ordered) * 99 // 100)] if ordered else 0.0


@dataclass(frozen=True, kw_only=True, slots=True)
class PixelStoreStatistics:
    """One shard, or the sum of several (percentiles: the worst shard's)."""

    num_entries: int = 0
    """Images held now."""
    num_bytes: int = 0
    """Payload bytes held now, in memory or on disk, each image once."""
    num_memory_bytes: int = 0
    """Payload bytes in memory now."""
    num_disk_bytes: int = 0
    """Payload bytes on disk now."""
    capacity_bytes: int = 0
    """Payload bytes that can be held."""
    num_trajectories: int = 0
    """Trajectories that hold a lease now."""
    num_references: int = 0
    """Pairs of trajectory and image now."""
    num_puts: int = 0
    """Images put so far."""
    num_dedup_puts: int = 0
    """Of these, images whose content was already held."""
    num_put_bytes: int = 0
    """Payload bytes put so far."""
    num_dedup_bytes: int = 0
    """Of these, bytes that were already held."""
    num_gets: int = 0
    """Keys asked for so far."""
    num_memory_hits: int = 0
    """Of these, keys answered from memory."""
    num_disk_hits: int = 0
    """Of these, keys read from disk."""
    num_misses: int = 0
    """Of these, keys not held."""
    num_refused: int = 0
    """Puts refused because a budget was full."""
    num_expired: int = 0
    """Trajectories released by the clock."""
    num_lost: int = 0
    """Leased images that were gone or damaged on disk."""
    num_disk_errors: int = 0
    """Times that the disk refused."""
    num_restarts: int = 0
    """Shards whose process died and was started again: without a disk tier they began empty."""
    put_p99_s: float = 0.0
    """99th percentile of the service time of a put call, in the shard."""
    get_p99_s: float = 0.0
    """99th percentile of the service time of a key that was found, in the shard."""

    @property
    def dedup_share(self) -> float:
        """Share of put bytes that needed no room."""
        return self.num_dedup_bytes / self.num_put_bytes if self.num_put_bytes else 0.0

    def as_metrics(self) -> dict[str, float]:
        """Return everything as `pixelstore/<name>` for a metrics sink."""
        values = asdict(self) | {"dedup_share": self.dedup_share}
        return {f"pixelstore/{name}": float(value) for name, value in values.items()}


def merge_statistics(shards: Sequence[PixelStoreStatistics]) -> PixelStoreStatistics:
    """Return the sum over shards; of percentiles the largest."""
    merged: dict[str, float] = {}
    for name in (field.name for field in fields(PixelStoreStatistics)):
        values = [getattr(shard, name) for shard in shards]
        merged[name] = max(values, default=0.0) if name.endswith("_p99_s") else sum(values)
    return PixelStoreStatistics(**merged)  # pyright: ignore[reportArgumentType]


@dataclass(frozen=True, kw_only=True, slots=True)
class Pressure:
    """How full a store is, for an admission gate."""

    value: float
    """0 (empty) to 1 (full), of the fullest shard: it is the one that refuses first."""
    used_bytes: int
    """Payload bytes held, over all shards."""
    capacity_bytes: int
    """Payload bytes that can be held, over all shards."""
    free_bytes: int
    """Room in the fullest shard times the number of shards: what can be promised."""

    def num_episodes_that_fit(self, bytes_per_episode: int) -> int:
        """Return how many more episodes the free room takes, as an admission bound.

        Raises:
            ValueError: `bytes_per_episode` is not above zero.
        """
        require_positive("bytes_per_episode", bytes_per_episode, "Measure some episodes.")
        return self.free_bytes // bytes_per_episode


def pressure_of(shards: Sequence[PixelStoreStatistics]) -> Pressure:
    """Return the fullness of a store from a snapshot of each of its shards, of which it has one."""
    free_bytes = min(shard.capacity_bytes - shard.num_bytes for shard in shards)
    return Pressure(
        value=min(max(shard.num_bytes / shard.capacity_bytes for shard in shards), 1.0),
        used_bytes=sum(shard.num_bytes for shard in shards),
        capacity_bytes=sum(shard.capacity_bytes for shard in shards),
        free_bytes=max(free_bytes, 0) * len(shards),
    )
