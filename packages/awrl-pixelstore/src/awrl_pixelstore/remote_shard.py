"""One shard as a client calls it: its methods through Ray, with a deadline and typed errors.

Invariants: every call ends within its deadline, whatever the shard does; a shard that died for good
is looked up once more by name, so that a re-created store is found; nothing but
`PixelStoreUnavailable` stands for a failure of Ray.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import ray
from ray.exceptions import ActorDiedError, RayError, RayTaskError

from awrl_pixelstore.errors import PixelStoreError, PixelStoreUnavailable
from awrl_pixelstore.image import PackedImage
from awrl_pixelstore.statistics import PixelStoreStatistics
from awrl_pixelstore.wire import NUM_PIECES, Fetched, StoreSpec, cut, glue, head_of

NAMESPACE = "awrl-pixelstore"


def actor_name(run_id: str, shard: int) -> str:
    """Return the name under which Ray knows a shard."""
    return f"{run_id}#{shard}"


def find_actor(run_id: str, shard: int) -> Any | None:
    """Return the actor of a shard; None when there is none, or no Ray in this process."""
    # Ray would start a cluster by itself: a late close() must not.
    if not ray.is_initialized():
        return None
    try:
        return ray.get_actor(actor_name(run_id, shard), namespace=NAMESPACE)
    except ValueError:
        return None


class Deadline(NamedTuple):
    """When an operation must have ended."""

    at: float
    """Moment on the clock of the running loop."""
    limit_s: float
    """Seconds that were granted, for messages."""


class RemoteShard:
    """One shard, seen from one process. Every method may raise a `PixelStoreError`.

    Args:
        find: Returns the actor of a run's shard, or None.
    """

    def __init__(
        self,
        spec: StoreSpec,
        shard: int,
        find: Callable[[str, int], Any | None] = find_actor,
    ) -> None:
        self._run_id = spec.run_id
        self._shard = shard
        self._find = find
        self._actor: Any | None = None

    async def put(
        self, trajectory_id: str, images: Sequence[PackedImage], deadline: Deadline
    ) -> None:
        """Hold images for a trajectory, all or none."""
        # Each argument costs Ray some 0.05 ms, so pieces without a byte stay here.
        pieces = [piece for piece in cut([image.payload for image in images]) if piece]
        head = (trajectory_id, head_of(images))
        await self._call(lambda actor: actor.put.remote(head, *pieces), deadline)

    async def fetch(
        self, keys: Sequence[str], deadline: Deadline
    ) -> tuple[Fetched, list[PackedImage]]:
        """Return what a fetch brought, and the images themselves, in the order of its keys."""
        fetched, *pieces = await self._call(
            lambda actor: actor.fetch.options(num_returns=1 + NUM_PIECES).remote(keys),
            deadline,
            keys,
        )
        return fetched, glue(fetched.header, pieces)

    async def missing(self, keys: Sequence[str], deadline: Deadline) -> list[str]:
        """Return the keys that a get would not find; all of them when the shard is gone."""
        try:
            return await self._call(lambda actor: actor.missing.remote(keys), deadline, keys)
        except PixelStoreUnavailable as error:
            if error.is_gone:
                return list(keys)
            raise

    async def release(self, trajectory_ids: Sequence[str], deadline: Deadline) -> int:
        """End leases; return the bytes freed: none by a shard that is gone."""
        try:
            return await self._call(lambda actor: actor.release.remote(trajectory_ids), deadline)
        except PixelStoreUnavailable as error:
            if error.is_gone:
                return 0
            raise

    async def statistics(self, deadline: Deadline) -> PixelStoreStatistics:
        """Return what it holds and did."""
        return await self._call(lambda actor: actor.statistics.remote(), deadline)

    async def stop(self, is_disk_kept: bool, deadline: Deadline) -> None:
        """End the actor, which gives its disk back first if it can."""
        try:
            await self._call(lambda actor: actor.stop.remote(is_disk_kept), deadline)
        finally:
            actor = self._find(self._run_id, self._shard)
            if actor is not None:
                ray.kill(actor, no_restart=True)

    async def _call(
        self, send: Callable[[Any], Any], deadline: Deadline, keys: Sequence[str] = ()
    ) -> Any:
        """Return the answer of the actor that is known, or else of the one found by name."""
        if self._actor is not None:
            try:
                return await self._ask(self._actor, send, deadline, keys)
            except PixelStoreUnavailable as error:
                if not error.is_gone:
                    raise
        self._actor = self._find(self._run_id, self._shard)
        if self._actor is None:
            reason = "no actor of this name: closed, or killed"
            raise PixelStoreUnavailable(reason, shard=self._shard, keys=keys, is_gone=True)
        return await self._ask(self._actor, send, deadline, keys)

    async def _ask(
        self, actor: Any, send: Callable[[Any], Any], deadline: Deadline, keys: Sequence[str]
    ) -> Any:
        first: Any = None
        try:
            async with asyncio.timeout_at(deadline.at):
                pending = send(actor)
                first, *others = pending if isinstance(pending, list) else [pending]
                answer = await first
                rest = [await other for other in others]
        except TimeoutError as error:
            ray.cancel(first)
            raise self._unavailable("no answer", keys, deadline) from error
        except RayTaskError:
            raise
        except RayError as error:
            is_gone = isinstance(error, ActorDiedError)
            raise self._unavailable(type(error).__name__, keys, deadline, is_gone) from error
        if isinstance(answer, PixelStoreError):
            raise answer
        return [answer, *rest] if others else answer

    def _unavailable(
        self, reason: str, keys: Sequence[str], deadline: Deadline, is_gone: bool = False
    ) -> PixelStoreUnavailable:
        return PixelStoreUnavailable(
            reason, shard=self._shard, keys=keys, limit_s=deadline.limit_s, is_gone=is_gone
        )
