"""The sending side of one weight update to one server: rank 0 of a group of two.

Invariant: `RankZero` opens its group as SGLang's clients do, and never touches the default group of
its process.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from datetime import timedelta
from types import TracebackType
from typing import Any, cast

import torch
import torch.distributed as dist
from awrl_rollout import SGLangClient, UnwrappedTaskGroup, WeightBucket
from torch.distributed.distributed_c10d import (
    Backend,
    PrefixStore,
    _new_process_group_helper,  # pyright: ignore[reportPrivateUsage]
    _world,  # pyright: ignore[reportPrivateUsage]
)
from torch.distributed.rendezvous import rendezvous


class RankZero:
    """The sending side of a weight group; a context manager that leaves the group at its end."""

    def __init__(
        self, *, port: int, group_name: str, world_size: int = 2, timeout_s: float = 20.0
    ) -> None:
        """Remember where the group meets; `open` waits for its members."""
        self.port = port
        self.group_name = group_name
        self.world_size = world_size
        self._timeout = timedelta(seconds=timeout_s)
        self._group: dist.ProcessGroup | None = None

    def open(self) -> None:
        """Open the group as rank 0; blocks until every member came."""
        iterator = rendezvous(
            f"tcp://127.0.0.1:{self.port}", 0, self.world_size, timeout=self._timeout
        )
        store, rank, world_size = next(iterator)
        store.set_timeout(self._timeout)
        group, _ = _new_process_group_helper(
            world_size,
            rank,
            [],
            Backend("gloo"),
            PrefixStore(self.group_name, store),
            group_name=cast("Any", self.group_name),
            timeout=self._timeout,
        )
        _world.pg_group_ranks[group] = {i: i for i in range(world_size)}
        self._group = cast("dist.ProcessGroup", group)

    def send(
        self,
        tensors: Mapping[str, torch.Tensor],
        *,
        is_flattened: bool,
        as_bytes: bool = True,
    ) -> None:
        """Broadcast `tensors` in order, as one bucket or one by one.

        Args:
            is_flattened: One bucket.
            as_bytes: View the bucket as uint8; else keep the dtype, which all must then share.
        """
        assert self._group is not None
        if is_flattened:
            pieces = [tensor.detach().contiguous().reshape(-1) for tensor in tensors.values()]
            if as_bytes:
                pieces = [piece.view(torch.uint8) for piece in pieces]
            dist.broadcast(torch.cat(pieces), src=0, group=self._group)
            return
        for tensor in tensors.values():
            dist.broadcast(tensor.detach().contiguous(), src=0, group=self._group)

    def close(self) -> None:
        """Leave the group; a second call is harmless."""
        group, self._group = self._group, None
        if group is not None:
            dist.destroy_process_group(group)

    def __enter__(self) -> RankZero:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


def bucket_of(tensors: Mapping[str, torch.Tensor], *, is_flattened: bool) -> WeightBucket:
    """Return what a broadcast of `tensors` carries."""
    return WeightBucket(
        names=list(tensors),
        dtypes=[str(tensor.dtype).removeprefix("torch.") for tensor in tensors.values()],
        shapes=[list(tensor.shape) for tensor in tensors.values()],
        is_flattened=is_flattened,
    )


async def join(client: SGLangClient, rank_zero: RankZero) -> None:
    """Open the group from both sides at once."""
    async with UnwrappedTaskGroup() as group:
        group.create_task(asyncio.to_thread(rank_zero.open))
        group.create_task(
            client.weights.join(
                master_address="127.0.0.1",
                master_port=rank_zero.port,
                rank_offset=1,
                world_size=rank_zero.world_size,
                group_name=rank_zero.group_name,
                backend="gloo",
            )
        )


async def publish(
    client: SGLangClient,
    rank_zero: RankZero,
    tensors: dict[str, torch.Tensor],
    *,
    is_flattened: bool,
    weight_version: int | None,
    flush_cache: bool = True,
) -> None:
    """Broadcast `tensors` while the server receives them.

    Args:
        rank_zero: The sending side of a group that both have joined.
        is_flattened: One bucket.
        weight_version: Label from this update on.
        flush_cache: Drop the prefix cache too; the server must then be idle.
    """
    async with UnwrappedTaskGroup() as group:
        group.create_task(asyncio.to_thread(rank_zero.send, tensors, is_flattened=is_flattened))
        group.create_task(
            client.weights.receive(
                bucket_of(tensors, is_flattened=is_flattened),
                group_name=rank_zero.group_name,
                weight_version=weight_version,
                flush_cache=flush_cache,
            )
        )
