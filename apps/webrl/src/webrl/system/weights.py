"""Adapters of a weight update: trainer ranks as a source, SGLang servers as receivers.

Invariant: every call of the source reaches all ranks, so that their collectives stay in step.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Protocol

from awrl_rollout import ServerRefusedError, SGLangClient, WeightBucket
from awrl_trainer import (
    Bucket,
    BucketTiming,
    GroupMembership,
    GroupRequest,
    PublishPlan,
    PublishReport,
)

from webrl.system.scheduler import RayScheduler, WorkerHandle
from webrl.system.task_scope import task_scope

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

    async def publish(self, version: int) -> PublishReport:
        """Publish the current weights as ``version``."""
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
        self._receivers = receivers
        self._root = root
        self._clock = clock

    async def publish(self, version: int) -> PublishReport:
        """Write a snapshot, pause every server, load, and go on.

        Raises:
            EngineCallError: The snapshot could not be written.
            RolloutError: A server refused it, or gave no answer.
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
        return PublishReport(
            version=version,
            receivers=tuple(receiver.name for receiver in self._receivers),
            quarantined={},
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
            for receiver in self._receivers:
                group.create_task(getattr(receiver, method)(*args))


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
