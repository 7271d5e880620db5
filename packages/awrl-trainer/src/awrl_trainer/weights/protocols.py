"""Who takes part in a publish: the trainer's ranks, and receivers of any kind."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Concatenate, ParamSpec, Protocol, TypeVar

from awrl_trainer.weights.plan import Bucket, TensorSpec
from awrl_trainer.weights.sender import WeightSender

WHOLE = ""
"""Name of a checksum of everything that a receiver holds."""

ParamsT = ParamSpec("ParamsT")
ResultT = TypeVar("ResultT")


@dataclass(frozen=True, kw_only=True, slots=True)
class GroupMembership:
    """What a receiver needs in order to join a group; the fields of SGLang's request."""

    master_address: str
    """Address of the store."""
    master_port: int
    """Port of the store."""
    rank_offset: int
    """Rank of the receiver's first device."""
    world_size: int
    """Members, rank 0 of the trainer included."""
    group_name: str
    """Unique per group."""
    backend: str
    """`nccl` or `gloo`."""


class WeightSource(Protocol):
    """The trainer's side of a publish: calls methods of every rank's `WeightSender`.

    An application with ranks in other processes sends method and arguments there; `LocalSource`
    serves one rank in this process.
    """

    async def send(
        self,
        method: Callable[Concatenate[WeightSender, ParamsT], ResultT],
        *args: ParamsT.args,
        **kwargs: ParamsT.kwargs,
    ) -> ResultT:
        """Call a method of `WeightSender` on *all* ranks and return rank 0's result.

        Args:
            method: Such as `WeightSender.broadcast_bucket`.
            args: Equal on every rank.
            kwargs: Equal on every rank.
        """
        ...


class LocalSource:
    """The `WeightSource` of a trainer of one rank in this process; calls run in a worker thread."""

    def __init__(self, sender: WeightSender) -> None:
        self._sender = sender

    async def send(
        self,
        method: Callable[Concatenate[WeightSender, ParamsT], ResultT],
        *args: ParamsT.args,
        **kwargs: ParamsT.kwargs,
    ) -> ResultT:
        """Call a method of the sender."""
        return await asyncio.to_thread(method, self._sender, *args, **kwargs)


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

    async def weight_index(self) -> Sequence[TensorSpec] | None:
        """Return each weight of its checkpoint, tied ones once; None when the server can't say."""
        ...

    async def pause_generation(self) -> None:
        """Stop generating; idempotent."""
        ...

    async def continue_generation(self) -> None:
        """Generate again; idempotent."""
        ...

    async def init_weights_group(self, membership: GroupMembership) -> None:
        """Join the group; returns when it is formed."""
        ...

    async def update_weights_from_distributed(
        self, bucket: Bucket, *, group_name: str, weight_version: int | None
    ) -> None:
        """Receive one flattened bucket and load it.

        Args:
            bucket: Names, dtypes and shapes.
            weight_version: Version of the weights after this bucket; None before the last one.
        """
        ...

    async def destroy_weights_group(self, group_name: str) -> None:
        """Leave the group; succeeds when it is not a member."""
        ...

    async def update_weights_from_disk(self, path: str, *, weight_version: int) -> None:
        """Load a snapshot in the Hugging Face format."""
        ...

    async def weight_checksums(self, names: Sequence[str]) -> Mapping[str, str] | None:
        """Return the `tensor_checksum` of each named weight; None when the server can't say.

        A server that knows no such checksums may give one of all that it holds, of whatever kind, as
        `{WHOLE: checksum}`: it tells an update that changed nothing.
        """
        ...
