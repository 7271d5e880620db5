"""Takes one thing away from the everlasting pool, and leaves the rest as it is.

| name | taken away |
|---|---|
| `respawn` | sessions that live on: each episode opens its own and closes it, as a synchronous round does |
| `by_value` | the PixelStore: an episode's screenshots travel in its record, through Ray's object store |
| `coupled` | the decoupled loss: plain PPO against the behavior policy, no proximal forward pass |

The barrier is put back by `--etas 0`, so it is no entry here.
"""

from __future__ import annotations

import base64
import sys
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import ray
from awrl_pixelstore import (
    PixelStoreClient,
    PixelStoreStatistics,
    Pressure,
    get_or_create_pixel_store,
)
from awrl_rollout import EpisodeContext, EpisodeRequest, EpisodeResult
from webrl.config import WebRLConfig
from webrl.launch import system
from webrl.rollout import worker
from webrl.rollout.worker import RolloutWorker
from webrl.rollout.workflow import WebTaskWorkflow

NAMES = ("respawn", "by_value", "coupled")


class RespawningWorkflow(WebTaskWorkflow):
    """Opens a session before each episode and closes it after, like the synchronous pool."""

    async def __call__(
        self, request: EpisodeRequest, context: EpisodeContext
    ) -> EpisodeResult | None:
        """Run one episode in a session of its own."""
        await self.open_session(context.slot)
        try:
            return await super().__call__(request, context)
        finally:
            await self.close_session(context.slot)


class RespawningWorker(RolloutWorker):
    """A rollout worker whose slots keep no session."""

    async def start(self, server_urls: Sequence[str]) -> int:
        """Start with the other workflow."""
        worker.WebTaskWorkflow = RespawningWorkflow
        return await super().start(server_urls)


class ValueClient:
    """Stands in for a store's client; a key is the screenshot itself, as text."""

    def __init__(self, store: PixelStoreClient) -> None:
        """Keep the store for what is asked of it besides images."""
        self._store = store

    async def put_async(self, image: bytes, *, trajectory_id: str) -> str:
        """Return the image as a key."""
        del trajectory_id
        return base64.b64encode(image).decode("ascii")

    def get_many(self, keys: Sequence[str]) -> list[bytes]:
        """Return the images that the keys are."""
        return [base64.b64decode(key) for key in keys]

    async def get_many_async(self, keys: Sequence[str]) -> list[bytes]:
        """Return nothing: only samples on disk, whose files are named by keys, ask for this."""
        del keys
        return []

    async def missing_async(self, keys: Sequence[str]) -> list[str]:
        """Return nothing: values are never missing."""
        del keys
        return []

    async def release_async(self, *trajectory_ids: str) -> int:
        """Do nothing: values go with their record."""
        del trajectory_ids
        return 0

    async def statistics_async(self) -> PixelStoreStatistics:
        """Return what the store holds, which is nothing."""
        return await self._store.statistics_async()

    async def pressure_async(self) -> Pressure:
        """Return the fullness of the store, which stays empty."""
        return await self._store.pressure_async()

    async def aclose(self) -> None:
        """Close the store."""
        await self._store.aclose()


def _by_value(*args: Any, **kwargs: Any) -> Any:
    return ValueClient(get_or_create_pixel_store(*args, **kwargs))


def take_away(name: str, config: WebRLConfig) -> WebRLConfig:
    """Change this process, or the configuration, so that runs from now on lack one thing.

    Args:
        name: One of `NAMES`.
        config: Of the run.
    """
    # Workers have no path to this folder: they get the classes themselves.
    ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])
    if name == "respawn":
        system.RolloutWorker = RespawningWorker
    elif name == "by_value":
        system.get_or_create_pixel_store = _by_value
    elif name == "coupled":
        actor = replace(config.actor, use_decoupled_loss=False, recompute_logprob=False)
        return replace(config, actor=actor)
    else:
        raise SystemExit(f"--without must be one of {', '.join(NAMES)}, got {name!r}.")
    return config
