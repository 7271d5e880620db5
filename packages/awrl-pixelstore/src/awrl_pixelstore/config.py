"""Settings of a store. Frozen, validated once; a shard keeps the config it was created with."""

from __future__ import annotations

from dataclasses import dataclass

MIB = 2**20
GIB = 2**30


def require_positive(name: str, value: float, hint: str) -> None:
    """Pass silently when `value` is above zero.

    Args:
        name: Name of the setting, for the message.
        hint: What to do instead.

    Raises:
        ValueError: `value` is not above zero.
    """
    if not value > 0:
        raise ValueError(f"{name} must be > 0, got {value!r}. {hint}")


@dataclass(frozen=True, kw_only=True, slots=True)
class PixelStoreConfig:
    """Budgets and limits of a store.

    Raises:
        ValueError: A value is out of range.
    """

    max_bytes: int = 2 * GIB
    """Bytes of image payload that one shard holds in memory. Never exceeded: a put is refused."""
    disk_dir: str | None = None
    """Folder on a node-local disk for the disk tier; each run and shard takes its own folder below
    it. None keeps everything in memory."""
    max_disk_bytes: int = 16 * GIB
    """Bytes of image payload that one shard holds on disk. With a disk tier this is the shard's
    capacity, and memory holds copies of what was used last."""
    lease_ttl_s: float | None = 7200.0
    """Seconds without a put after which a trajectory counts as an orphan and is released; None
    never expires."""
    call_timeout_s: float = 30.0
    """Limit of one call of a client, unless the call names another."""
    max_call_bytes: int = 128 * MIB
    """Payload that one actor call carries at most; larger batches take several calls."""
    read_cache_bytes: int = 64 * MIB
    """Bound of each client's read cache; 0 turns it off."""
    idle_exit_s: float | None = 14400.0
    """Seconds without any call after which a shard ends itself, so that a run that died without
    `close()` does not keep memory for ever; None never ends."""

    def __post_init__(self) -> None:
        require_positive("max_bytes", self.max_bytes, "Give each shard some memory.")
        require_positive("max_disk_bytes", self.max_disk_bytes, "Leave out disk_dir for none.")
        require_positive("call_timeout_s", self.call_timeout_s, "Every call needs a limit.")
        require_positive("max_call_bytes", self.max_call_bytes, "One image must fit a call.")
        if self.disk_dir == "":
            raise ValueError("disk_dir must be a folder, got ''. Name one, or use None.")
        for name, value in (("lease_ttl_s", self.lease_ttl_s), ("idle_exit_s", self.idle_exit_s)):
            if value is not None:
                require_positive(name, value, "Use None to switch it off.")
        if not self.read_cache_bytes >= 0:
            raise ValueError(
                f"read_cache_bytes must be >= 0, got {self.read_cache_bytes}. Use 0 for no cache."
            )

    @property
    def capacity_bytes(self) -> int:
        """Payload bytes that one shard can hold in all."""
        return self.max_bytes if self.disk_dir is None else self.max_disk_bytes
