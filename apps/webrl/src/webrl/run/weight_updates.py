"""Connects the update engine with the rollout servers, by broadcast or by disk."""

from __future__ import annotations

from contextlib import AsyncExitStack
from dataclasses import replace

from awrl_trainer import WeightPublisher

from webrl.cluster.scheduler import call_worker
from webrl.config import WebRLConfig
from webrl.launch import component_configs
from webrl.launch.system import System
from webrl.records.run_folder import RunFolders
from webrl.training.actor_rank import UpdateEngine
from webrl.training.publishing import RanksSource


async def connect_weights(
    config: WebRLConfig,
    folders: RunFolders,
    system: System,
    stack: AsyncExitStack,
    *,
    version: int,
    run_id: str,
) -> WeightPublisher:
    """Return what publishes weights; after a resume the servers hold the resumed ones.

    Args:
        folders: Where snapshots go with `weight_update_mode = "disk"`.
        stack: Leaves the group at its end.
        version: What the ranks hold.
        run_id: Names the group.

    Raises:
        PublishError: A server holds other weights than the trainer, or none could join.
    """
    host, _ = await call_worker(system.ranks[0], system.start_timeout_s, UpdateEngine.rendezvous)
    limits = component_configs.publisher_config(
        config, system.server_spec, folders.published, host=host, run_id=run_id
    )
    if not system.parts.has_devices:
        limits = replace(limits, backend="gloo")
    publisher = WeightPublisher(RanksSource(system.ranks), system.receivers(), limits)
    stack.push_async_callback(publisher.aclose)
    await publisher.connect()
    if version > 0:
        await publisher.publish(version)
    return publisher
