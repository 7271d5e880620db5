"""Configuration of a publish, and what it reports."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from awrl_trainer.weights.snapshot import SnapshotWriter


@dataclass(frozen=True, kw_only=True, slots=True)
class PublisherConfig:
    """The way that weights take, and its deadlines."""

    snapshots: SnapshotWriter | None = None
    """Publishes through files that this writes and receivers load; None broadcasts."""
    backend: str = "gloo"
    """`nccl` between GPUs; `gloo` on CPUs and where trainer and server share a GPU."""
    host: str = "127.0.0.1"
    """Address of the trainer's rank 0 that receivers can reach."""
    group_prefix: str = "awrl-weights"
    """Start of group names; unique per run on a host."""
    handshake_deadline_s: float = 60.0
    """Limit of forming a group."""
    pause_deadline_s: float = 30.0
    """Limit of pausing all receivers."""
    broadcast_deadline_s: float = 120.0
    """Limit of each bucket, broadcast and load; of comparing checksums too."""
    snapshot_deadline_s: float = 300.0
    """Limit of writing a snapshot, and of loading it."""
    resume_deadline_s: float = 30.0
    """Limit of resuming all receivers."""
    num_verified_tensors: int | None = None
    """Weights whose checksums are compared before receivers generate again, drawn anew for each
    publish; None compares all, 0 none."""

    def __post_init__(self) -> None:
        if self.backend not in ("nccl", "gloo"):
            raise ValueError(
                f"backend must be 'nccl' or 'gloo', got {self.backend!r}. Use gloo on a CPU."
            )
        for name in ("handshake", "pause", "broadcast", "snapshot", "resume"):
            value: float = getattr(self, f"{name}_deadline_s")
            if value <= 0:
                raise ValueError(f"{name}_deadline_s must be > 0, got {value}. Give seconds.")
        if self.num_verified_tensors is not None and self.num_verified_tensors < 0:
            raise ValueError(
                f"num_verified_tensors must be >= 0 or None, got {self.num_verified_tensors}. Use 0."
            )


@dataclass(frozen=True, kw_only=True, slots=True)
class PublishReport:
    """What a publish did and what its window cost."""

    version: int
    """Version that the receivers hold now."""
    receivers: tuple[str, ...]
    """Names of those that hold it."""
    quarantined: Mapping[str, str]
    """Names of those that don't, with the reason."""
    num_bytes: int
    """Bytes sent to each receiver."""
    handshake_s: float
    """Forming the group, when there was a reason to; outside of the window."""
    pause_s: float
    """Pausing all receivers."""
    gather_s: float
    """Gathering shards, as far as no broadcast overlapped it; writing the snapshot, before the window."""
    broadcast_s: float
    """Broadcasts, summed over buckets."""
    switch_s: float
    """What receivers still needed after the broadcasts: loading, and switching the version."""
    resume_s: float
    """Resuming all receivers."""
    window_s: float
    """From the first pause request to the last resume answer."""
    verify_s: float
    """Asking receivers for checksums and comparing them, within the window."""
    unverified: str | None = None
    """Why the trainer's checksums could not be had; None when they were compared."""

    def as_metrics(self) -> dict[str, float]:
        """Return the parts by metric name."""
        parts = (
            "handshake",
            "pause",
            "gather",
            "broadcast",
            "switch",
            "verify",
            "resume",
            "window",
        )
        metrics = {f"publish/{part}_s": float(getattr(self, f"{part}_s")) for part in parts}
        metrics["publish/num_bytes"] = float(self.num_bytes)
        metrics["publish/num_receivers"] = float(len(self.receivers))
        metrics["publish/num_quarantined"] = float(len(self.quarantined))
        return metrics
