"""Settings of a store. Frozen, validated once; a shard keeps the config it was created with."""

from dataclasses import dataclass
from typing import Literal

MIB = 2**20
GIB = 2**30


def require_positive(name: str, value: float, hint: str) -> None:
    """Pass silently when `value` is above zero.

    Args:
        name: Name of the setting, for the message.
        value: Its value.
        hint: What to do instead.

    Raises:
        ValueError: `value` is not above zero.
    """
    if not value > 0:
        raise ValueError(f"{name} must be > 0, got {value!r}. {hint}")


@dataclass(frozen=True, kw_only=True, slots=True)
class DiskConfig:
    """Where and how a shard keeps its entries on disk.

    Raises:
        ValueError: A value is out of range.
    """

    root: str
    """Folder on a node-local disk; each run and shard takes its own folder below it."""
    max_bytes: int
    """Byte budget of one shard on disk; with a disk tier this is the shard's capacity."""
    mode: Literal["write_through", "write_behind"] = "write_through"
    """`write_through`: a put is on disk when it returns. `write_behind`: soon after."""
    is_synced: bool = False
    """Whether each file is fsynced: needed against a power cut, not against a killed process."""

    def __post_init__(self) -> None:
        if not self.root:
            raise ValueError(f"root must be a folder, got {self.root!r}. Name a local disk.")
        require_positive("max_bytes", self.max_bytes, "Or leave the disk tier out.")
        if self.mode not in ("write_through", "write_behind"):
            raise ValueError(
                f"mode must be 'write_through' or 'write_behind', got {self.mode!r}. "
                "Use 'write_through' to lose nothing when a shard is killed."
            )


@dataclass(frozen=True, kw_only=True, slots=True)
class PixelStoreConfig:
    """Budgets and limits of a store.

    Raises:
        ValueError: A value is out of range.
    """

    max_bytes: int = 2 * GIB
    """Bytes of image payload that one shard holds in memory. Never exceeded: a put is refused."""
    disk: DiskConfig | None = None
    """Disk tier of each shard; None keeps everything in memory."""
    lease_ttl_s: float | None = 7200.0
    """Seconds without a put, acquire, transfer or renew after which a trajectory counts as an
    orphan and is released; None never expires."""
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
        require_positive("call_timeout_s", self.call_timeout_s, "Every call needs a limit.")
        require_positive("max_call_bytes", self.max_call_bytes, "One image must fit a call.")
        for name, value in (("lease_ttl_s", self.lease_ttl_s), ("idle_exit_s", self.idle_exit_s)):
            if value is not None:
                require_positive(name, value, "Use None to switch it off.")
        if self.read_cache_bytes < 0:
            raise ValueError(
                f"read_cache_bytes must be >= 0, got {self.read_cache_bytes}. Use 0 for no cache."
            )

    @property
    def capacity_bytes(self) -> int:
        """Payload bytes that one shard can hold in all."""
        return self.max_bytes if self.disk is None else self.disk.max_bytes
