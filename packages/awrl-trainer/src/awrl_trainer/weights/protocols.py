"""Who takes part in a publish: the trainer's side, and receivers of any kind."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from awrl_trainer.weights.manifest import Bucket, PublishPlan, TensorSpec

__all__ = [
    "BucketTiming",
    "GroupMembership",
    "GroupRequest",
    "IndexedReceiver",
    "VerifiableReceiver",
    "WeightReceiver",
    "WeightSource",
]


@dataclass(frozen=True, kw_only=True, slots=True)
class GroupRequest:
    """What the trainer's rank 0 needs in order to open a group."""

    host: str
    """Address of rank 0 that receivers can reach."""

    world_size: int
    """Members, rank 0 included."""

    group_name: str
    """Unique per group."""

    backend: str
    """`nccl` or `gloo`."""

    timeout_s: float
    """Limit of forming the group and of each broadcast, seconds."""


@dataclass(frozen=True, kw_only=True, slots=True)
class GroupMembership:
    """What a receiver needs in order to join; the fields of SGLang's request."""

    master_address: str
    """Address of the store."""

    master_port: int
    """Port of the store."""

    rank_offset: int
    """Rank of the receiver's first device."""

    world_size: int
    """Members, rank 0 included."""

    group_name: str
    """Unique per group."""

    backend: str
    """`nccl` or `gloo`."""


@dataclass(frozen=True, kw_only=True, slots=True)
class BucketTiming:
    """What one bucket cost on rank 0."""

    gather_s: float
    """Seconds of gathering shards that nothing overlapped."""

    broadcast_s: float
    """Seconds from the start of the broadcast to its end; the next gather runs meanwhile."""


class WeightSource(Protocol):
    """The trainer's side: each call reaches *all* ranks and returns rank 0's answer.

    An application with ranks in other processes adapts its handles; `LocalWeightSource` serves an
    actor of one rank in this process.
    """

    async def publish_plan(self) -> PublishPlan:
        """Return what would be sent."""
        ...

    async def bind_weights_group(self, request: GroupRequest) -> int:
        """Bind the rendezvous store and return its port; doesn't wait for anybody."""
        ...

    async def join_weights_group(self) -> None:
        """Form the group; returns when all receivers have joined."""
        ...

    async def broadcast_bucket(self, index: int) -> BucketTiming:
        """Gather and broadcast one bucket; receivers must be receiving it at the same time."""
        ...

    async def close_weights_group(self) -> None:
        """Leave the group, if there is one."""
        ...

    async def weight_checksums(self, names: Sequence[str]) -> Mapping[str, str]:
        """Return the checksum of each named weight as it was sent."""
        ...


class WeightReceiver(Protocol):
    """An inference server, or anything that takes weights. Methods mirror SGLang's HTTP.

    Any exception means that the receiver failed in that part; `CancelledError` passes.
    """

    @property
    def name(self) -> str:
        """Unique name, for reports and errors."""
        ...

    @property
    def num_ranks(self) -> int:
        """Members that it brings into the group: its tensor-parallel size."""
        ...

    async def init_weights_group(self, membership: GroupMembership) -> None:
        """Join the group; returns when it is formed."""
        ...

    async def pause_generation(self) -> None:
        """Stop generating; idempotent."""
        ...

    async def update_weights_from_distributed(
        self, bucket: Bucket, *, group_name: str, weight_version: int | None
    ) -> None:
        """Receive one flattened bucket and load it.

        Args:
            bucket: Names, dtypes and shapes.
            group_name: The group to receive from.
            weight_version: Version of the weights after this bucket; None before the last one.
        """
        ...

    async def continue_generation(self) -> None:
        """Generate again; idempotent."""
        ...

    async def destroy_weights_group(self, group_name: str) -> None:
        """Leave the group; succeeds when it is not a member."""
        ...


@runtime_checkable
class IndexedReceiver(Protocol):
    """A receiver that may know what its checkpoint holds; the check is skipped for others."""

    async def weight_index(self) -> Sequence[TensorSpec] | None:
        """Return each weight of its checkpoint, tied ones once; None when the server can't say."""
        ...


@runtime_checkable
class VerifiableReceiver(Protocol):
    """A receiver that may know which bytes it holds; the check is skipped for others."""

    async def weight_checksums(self, names: Sequence[str]) -> Mapping[str, str] | None:
        """Return the checksum of each named weight (`tensor_checksum`).

        None when the server can't say.
        """
        ...
