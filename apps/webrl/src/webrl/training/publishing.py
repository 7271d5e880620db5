"""Adapters of a weight update: trainer ranks as a source, SGLang servers as receivers.

Invariant: every call of the source reaches all ranks, so that their collectives stay in step.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Concatenate, ParamSpec, TypeVar, cast

from awrl_rollout import ServerRefusedError, SGLangClient, WeightBucket
from awrl_trainer import (
    WHOLE,
    Bucket,
    GroupMembership,
    TensorSpec,
    WeightReceiver,
    WeightSender,
    WeightSource,
)

from webrl.cluster.scheduler import WorkerHandle, async_call_engine
from webrl.training.actor_rank import UpdateEngine

logger = logging.getLogger(__name__)

ParamsT = ParamSpec("ParamsT")
ResultT = TypeVar("ResultT")

CALL_DEADLINE_S = 600.0
"""Above the publisher's own deadlines, which are the ones that bind."""


class RanksSource(WeightSource):
    """The trainer's ranks as the source of a publish.

    Args:
        ranks: Every rank, rank 0 first.
    """

    def __init__(self, ranks: Sequence[WorkerHandle[UpdateEngine]]) -> None:
        self._ranks = ranks

    async def send(
        self,
        method: Callable[Concatenate[WeightSender, ParamsT], ResultT],
        *args: ParamsT.args,
        **kwargs: ParamsT.kwargs,
    ) -> ResultT:
        """Call a method of `WeightSender` on every rank and return rank 0's result."""
        results = await async_call_engine(
            self._ranks, CALL_DEADLINE_S, UpdateEngine.send, method, *args, **kwargs
        )
        return results[0]


class SGLangReceiver(WeightReceiver):
    """An inference server as a receiver of weights.

    Args:
        name: Unique among the receivers, such as `rollout/0`.
        client: Client of the server; not owned.
        num_ranks: Its tensor-parallel size; each of its devices is a member of the group.
    """

    def __init__(self, name: str, client: SGLangClient, *, num_ranks: int = 1) -> None:
        self._name = name
        self._num_ranks = num_ranks
        self._client = client
        self._lists_weights = False

    @property
    def name(self) -> str:
        """Return the receiver's name."""
        return self._name

    @property
    def num_ranks(self) -> int:
        """Return the members it brings into the group."""
        return self._num_ranks

    async def init_weights_group(self, membership: GroupMembership) -> None:
        """Join the group."""
        await self._client.weights.join(
            master_address=membership.master_address,
            master_port=membership.master_port,
            rank_offset=membership.rank_offset,
            world_size=membership.world_size,
            group_name=membership.group_name,
            backend=membership.backend,
        )

    async def pause_generation(self) -> None:
        """End requests in flight with what they have, and stop generating."""
        await self._client.pause_generation("abort")

    async def update_weights_from_distributed(
        self, bucket: Bucket, *, group_name: str, weight_version: int | None
    ) -> None:
        """Receive one flattened bucket and load it."""
        await self._client.weights.receive(
            WeightBucket(names=bucket.names, dtypes=bucket.dtypes, shapes=bucket.shapes),
            group_name=group_name,
            weight_version=weight_version,
            # Requests were aborted by the pause, so nothing runs on the prefix cache.
            flush_cache=weight_version is not None,
        )

    async def weight_index(self) -> Sequence[TensorSpec] | None:
        """Return what the server holds, where it says so: SGLang itself lists no weights."""
        info = await self._client.server_info()
        if "weight_shapes" not in info:
            return None
        self._lists_weights = True
        shapes = cast("Mapping[str, Sequence[int]]", info["weight_shapes"])
        dtype = str(info["dtype"])
        return [
            TensorSpec(name=name, dtype=dtype, shape=tuple(shape)) for name, shape in shapes.items()
        ]

    async def weight_checksums(self, names: Sequence[str]) -> Mapping[str, str] | None:
        """Return checksums of what the server holds: by name, or one of everything from SGLang.

        SGLang's are of weights that it has fused, in a way of its own; without CUDA it may have none.
        """
        if self._lists_weights:
            return (await self._client.weights.checksums(names)).by_name
        try:
            return {WHOLE: (await self._client.weights.checksums()).total}
        except ServerRefusedError as error:
            logger.warning(
                "%s gives no checksums, its updates are not verified: %s", self._name, error
            )
            return None

    async def update_weights_from_disk(self, path: str, *, weight_version: int) -> None:
        """Load a snapshot; the prefix cache of the weights before goes."""
        await self._client.weights.load(path, weight_version=weight_version, flush_cache=True)

    async def continue_generation(self) -> None:
        """Generate again."""
        await self._client.continue_generation()

    async def destroy_weights_group(self, group_name: str) -> None:
        """Leave the group; a server that is not a member refuses, which is as good."""
        with contextlib.suppress(ServerRefusedError):
            await self._client.weights.leave(group_name)
