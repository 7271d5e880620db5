"""Connects the update engine with the rollout servers, by broadcast or by disk."""

from __future__ import annotations

from contextlib import AsyncExitStack

from awrl_trainer import XcclPublisher

from webrl.config import WebRLConfig
from webrl.system import mapping
from webrl.system.roles import System
from webrl.system.run_state import RunFolders
from webrl.system.weights import DiskWeights, RayWeightSource, WeightPublisher


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
        config: The run's.
        folders: Where snapshots go with ``weight_update_mode = "disk"``.
        system: The started roles.
        stack: Leaves the group at its end.
        version: What the ranks hold.
        run_id: Names the group.

    Raises:
        ManifestMismatchError: A server holds other weights.
        PublishError: No server could join.
    """
    if config.weight_update_mode == "disk":
        weights: WeightPublisher = DiskWeights(
            system.scheduler, system.ranks, system.receivers(), folders.published
        )
    else:
        publisher = XcclPublisher(
            RayWeightSource(system.scheduler, system.ranks),
            system.receivers(),
            mapping.publisher_config(config, await _rank_host(system), run_id),
        )
        stack.push_async_callback(publisher.aclose)
        await publisher.connect()
        weights = publisher
    if version > 0:
        await weights.publish(version)
    return weights


async def _rank_host(system: System) -> str:
    if len(system.ranks) == 1:
        return "127.0.0.1"
    return (await system.scheduler.async_call_engine(system.ranks[:1], "rendezvous"))[0][0]
