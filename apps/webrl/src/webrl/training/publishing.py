"""Adapters of a weight update: trainer ranks as a source, SGLang servers as receivers.

Invariant: every call of the source reaches all ranks, so that their collectives stay in step.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Protocol, cast

from awrl_rollout import RolloutError, ServerRefusedError, SGLangClient, WeightBucket
from awrl_trainer import (
    Bucket,
    BucketTiming,
    GroupMembership,
    GroupRequest,
    PublishError,
    PublishPlan,
    PublishReport,
    TensorSpec,
)

from webrl.cluster.scheduler import RayScheduler, WorkerHandle
from webrl.cluster.unwrapped_group import task_scope

CALL_DEADLINE_S = 300.0
"""Above the publisher's own deadlines, which are the ones that bind."""


class RayWeightSource:
    """The trainer's ranks as a ``WeightSource``."""

    def __init__(self, scheduler: RayScheduler, ranks: Sequence[WorkerHandle]) -> None:
        """Speak for all ranks of the update engine.

        Args:
            scheduler: Fans the calls out.
            ranks: Every rank, rank 0 first.
        """
        self._scheduler = scheduler
        self._ranks = ranks

    async def publish_plan(self) -> PublishPlan:
        """Return what would be sent."""
        return await self._first("publish_plan")

    async def bind_weights_group(self, request: GroupRequest) -> int:
        """Bind the rendezvous store and return its port."""
        return await self._first("bind_weights_group", request)

    async def join_weights_group(self) -> None:
        """Form the group."""
        await self._first("join_weights_group")

    async def broadcast_bucket(self, index: int) -> BucketTiming:
        """Gather and broadcast one bucket."""
        return await self._first("broadcast_bucket", index)

    async def close_weights_group(self) -> None:
        """Leave the group."""
        await self._first("close_weights_group")

    async def weight_checksums(self, names: Sequence[str]) -> Mapping[str, str]:
        """Return checksums of the weights as they were sent."""
        return await self._first("weight_checksums", tuple(names))

    async def _first(self, method: str, *args: object):
        answers = await self._scheduler.async_call_engine(
            self._ranks, method, *args, timeout_s=CALL_DEADLINE_S
        )
        return answers[0]


class WeightPublisher(Protocol):
    """Brings every rollout server to the trainer's weights."""

    @property
    def quarantined(self) -> Mapping[str, str]:
        """Servers that got no update, with the reason."""
        ...

    async def publish(self, version: int) -> PublishReport:
        """Publish the current weights as ``version``."""
        ...

    async def rejoin(self, receiver: SGLangReceiver) -> None:
        """Take a restarted server into the next publish; it is paused until then."""
        ...


class DiskWeights:
    """``weight_update_mode = "disk"``: a snapshot that every server loads.

    Generation goes on while the snapshot is written; it pauses only for the load.
    """

    def __init__(
        self,
        scheduler: RayScheduler,
        ranks: Sequence[WorkerHandle],
        receivers: Sequence[SGLangReceiver],
        root: Path,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        """Publish through a folder that trainer and servers share.

        Args:
            scheduler: Fans calls out to the ranks.
            ranks: Every rank of the update engine.
            receivers: The rollout servers.
            root: Folder of the published snapshots; the newest one stays.
            clock: Seconds, for the report.
        """
        self._scheduler = scheduler
        self._ranks = ranks
        self._receivers = {receiver.name: receiver for receiver in receivers}
        self._quarantined: dict[str, str] = {}
        self._root = root
        self._clock = clock

    @property
    def quarantined(self) -> Mapping[str, str]:
        """Servers that did not load a snapshot, with the reason."""
        return dict(self._quarantined)

    async def rejoin(self, receiver: SGLangReceiver) -> None:
        """Take a restarted server into the next publish; it is paused until then.

        Raises:
            PublishError: It can't be paused.
        """
        try:
            await receiver.pause_generation()
        except RolloutError as error:
            raise PublishError(
                f"server {receiver.name!r} must pause before it joins, got {error}.",
                phase="pause",
                receivers=(receiver.name,),
            ) from error
        self._receivers[receiver.name] = receiver
        self._quarantined.pop(receiver.name, None)

    async def publish(self, version: int) -> PublishReport:
        """Write a snapshot, pause every server, load, and go on.

        A server that refuses it or gives no answer is left out until it joins again.

        Raises:
            EngineCallError: The snapshot could not be written.
            PublishError: No server took it.
        """
        written = self._clock()
        paths = await self._scheduler.async_call_engine(
            self._ranks, "write_snapshot", str(self._root), 1, timeout_s=CALL_DEADLINE_S
        )
        folder = Path(paths[0])
        started = self._clock()
        try:
            await self._each("pause_generation")
            paused = self._clock()
            await self._each("load_from_disk", str(folder), version)
            loaded = self._clock()
        finally:
            await self._each("continue_generation")
        ended = self._clock()
        if not self._active():
            raise PublishError(
                f"at least one server must load version {version}, got none: {self.quarantined}.",
                phase="switch",
                receivers=tuple(self._quarantined),
            )
        return PublishReport(
            version=version,
            receivers=tuple(self._active()),
            quarantined=self.quarantined,
            num_bytes=(folder / "model.safetensors").stat().st_size,
            handshake_s=0.0,
            pause_s=paused - started,
            gather_s=started - written,
            broadcast_s=0.0,
            switch_s=loaded - paused,
            resume_s=ended - loaded,
            window_s=ended - started,
            verify_s=0.0,
        )

    async def _each(self, method: str, *args: object) -> None:
        async with task_scope() as group:
            for receiver in self._active().values():
                group.create_task(self._call(receiver, method, *args))

    async def _call(self, receiver: SGLangReceiver, method: str, *args: object) -> None:
        try:
            await getattr(receiver, method)(*args)
        except RolloutError as error:
            self._quarantined[receiver.name] = f"{method}: {error}"

    def _active(self) -> dict[str, SGLangReceiver]:
        return {n: r for n, r in self._receivers.items() if n not in self._quarantined}


class SGLangReceiver:
    """An inference server as a ``WeightReceiver``."""

    def __init__(self, name: str, client: SGLangClient) -> None:
        """Adapt a client.

        Args:
            name: Unique among the receivers, such as ``rollout/0``.
            client: Client of the server; not owned.
        """
        self._name = name
        self._client = client
        self._lists_weights = False

    @property
    def name(self) -> str:
        """Return the receiver's name."""
        return self._name

    @property
    def num_ranks(self) -> int:
        """Return the members it brings into the group: one GPU a server."""
        return 1

    async def init_weights_group(self, membership: GroupMembership) -> None:
        """Join the group."""
        await self._client.init_weights_update_group(
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
        await self._client.update_weights_from_distributed(
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
        """Return checksums of what the server holds; None where it lists no weights by name."""
        if not self._lists_weights:
            return None
        return (await self._client.weights_checksums(names)).by_name

    async def load_from_disk(self, path: str, version: int) -> None:
        """Load a snapshot; the prefix cache of the weights before goes."""
        await self._client.update_weights_from_disk(path, weight_version=version, flush_cache=True)

    async def continue_generation(self) -> None:
        """Generate again."""
        await self._client.continue_generation()

    async def destroy_weights_group(self, group_name: str) -> None:
        """Leave the group; a server that is not a member refuses, which is as good."""
        with contextlib.suppress(ServerRefusedError):
            await self._client.destroy_weights_update_group(group_name)
