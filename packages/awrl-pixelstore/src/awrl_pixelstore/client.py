"""The handle that programs hold: every operation awaiting, and the same one blocking.

Invariants: a client is plain data and pickles anywhere that can reach the same Ray cluster; it keeps
no image but in its bounded read cache; every call ends within its limit, with a result or a typed
error; repeating a call after an error is always safe.

An operation is written once, as a coroutine; its blocking form runs it on a loop that all blocking
calls of the process share, in a thread of its own. Use the awaiting form in an event loop.
"""

from __future__ import annotations

import asyncio
import functools
import math
import threading
from collections.abc import Callable, Coroutine, Iterable, Sequence
from typing import Any, Concatenate, ParamSpec, TypeVar

import ray
from cachetools import LRUCache

from awrl_pixelstore.errors import PixelNotFound, PixelStoreError
from awrl_pixelstore.image import Image, PackedImage, pack, unpack
from awrl_pixelstore.keys import make_key, parse_key, require_trajectory_id, run_tag_of
from awrl_pixelstore.remote_shard import Deadline, RemoteShard
from awrl_pixelstore.statistics import (
    PixelStoreStatistics,
    Pressure,
    merge_statistics,
    pressure_of,
)
from awrl_pixelstore.wire import StoreSpec

ClientT = TypeVar("ClientT")
ItemT = TypeVar("ItemT")
ParamsT = ParamSpec("ParamsT")
ResultT = TypeVar("ResultT")


@functools.cache
def _loop_of_blocking_calls() -> asyncio.AbstractEventLoop:
    loop = asyncio.new_event_loop()
    # Blocking calls work in any thread then, also in one whose own loop is running.
    thread = threading.Thread(  # noqa: TID251 - it runs a loop, and ends with the process
        target=loop.run_forever, name="awrl-pixelstore", daemon=True
    )
    thread.start()
    return loop


def _blocking(
    operation: Callable[Concatenate[ClientT, ParamsT], Coroutine[Any, Any, ResultT]],
) -> Callable[Concatenate[ClientT, ParamsT], ResultT]:
    """Return the blocking form of an operation."""

    @functools.wraps(operation)
    def call(self: ClientT, *args: ParamsT.args, **kwargs: ParamsT.kwargs) -> ResultT:
        coroutine = operation(self, *args, **kwargs)
        future = asyncio.run_coroutine_threadsafe(coroutine, _loop_of_blocking_calls())
        try:
            return future.result()
        finally:
            future.cancel()  # Of an interrupted call; one that has ended is not touched by it.

    return call


class PixelStoreClient:
    """A store, seen from one process. Made by `get_or_create_pixel_store`, or unpickled.

    One thread or event loop at a time uses a client; give each its own: `copy.copy` is cheap.

    `timeout_s` is the limit of a call in every operation; None takes that of the store. Where it
    is passed, every operation raises `PixelStoreUnavailable`.

    Args:
        spec: What the store's creator fixed.
        node_id: Ray node whose shards get the puts; that of this process when None.
        shards: The shards; those of Ray when None.
    """

    def __init__(
        self,
        spec: StoreSpec,
        *,
        node_id: str | None = None,
        shards: Sequence[RemoteShard] | None = None,
    ) -> None:
        if node_id is None:
            node_id = ray.get_runtime_context().get_node_id()
        numbers = range(len(spec.layout))
        near = [shard for shard in numbers if spec.layout[shard] == node_id]
        self.spec = spec
        self._run_tag = run_tag_of(spec.run_id)
        self._shards = shards or [RemoteShard(spec, shard) for shard in numbers]
        self._near = near or list(numbers)
        self._cache: LRUCache[str, PackedImage] = LRUCache(
            spec.config.read_cache_bytes, lambda image: len(image.payload)
        )

    def __reduce__(self) -> tuple[object, ...]:
        """Pickle as the spec alone: cache and actor handles stay in their process."""
        return type(self), (self.spec,)

    async def put_async(
        self, data: Image, *, trajectory_id: str, timeout_s: float | None = None
    ) -> str:
        """Store one screenshot and return its key; see `put_many_async`."""
        keys = await self.put_many_async([data], trajectory_id=trajectory_id, timeout_s=timeout_s)
        return keys[0]

    async def put_many_async(
        self, images: Sequence[Image], *, trajectory_id: str, timeout_s: float | None = None
    ) -> list[str]:
        """Store screenshots in one call per near shard and return their keys in order.

        Args:
            images: Encoded PNG, JPEG or WebP bytes, or uint8 arrays `[H, W, C]`.
            trajectory_id: Trajectory that holds them until it is released.

        Returns:
            One key for each image: the same for the same content on the same shard.

        Raises:
            TypeError: An image is neither bytes nor an array.
            InvalidImage: One is not an image that the store holds; nothing was stored.
            ValueError: `trajectory_id` is empty.
            PixelStoreFull: They do not fit; nothing of the call to that shard was stored.
        """
        require_trajectory_id(trajectory_id)
        deadline = self._deadline(timeout_s)
        packed = [pack(image) for image in images]
        shards = [self._near[int(image.digest[:8], 16) % len(self._near)] for image in packed]
        by_shard = _grouped(zip(shards, packed, strict=True))
        await _all_of(
            self._put(self._shards[shard], trajectory_id, mine, deadline)
            for shard, mine in by_shard.items()
        )
        return [
            make_key(self._run_tag, shard, image.digest)
            for shard, image in zip(shards, packed, strict=True)
        ]

    async def get_many_async(
        self, keys: Sequence[str], *, timeout_s: float | None = None
    ) -> list[Image]:
        """Return screenshots as they were put, in the order of `keys`.

        One call per shard brings all that the read cache lacks; repeats cost nothing.

        Returns:
            Encoded bytes, or uint8 arrays `[H, W, C]` that are the caller's own.

        Raises:
            TypeError: A key is not a string.
            ValueError: A string has not the form of a key.
            PixelNotFound: Some are not held; the error names them and carries the others.
        """
        deadline = self._deadline(timeout_s)
        ours = self._ours(keys)
        found = {key: self._cache[key] for key in ours if key in self._cache}
        by_shard = _grouped((shard, key) for key, shard in ours.items() if key not in found)
        for images in await _all_of(
            self._fetch(self._shards[shard], mine, deadline) for shard, mine in by_shard.items()
        ):
            found.update(images)
        if lost := [key for key in dict.fromkeys(keys) if key not in found]:
            raise PixelNotFound(lost, found={key: unpack(image) for key, image in found.items()})
        return [unpack(found[key]) for key in keys]

    async def missing_async(
        self, keys: Sequence[str], *, timeout_s: float | None = None
    ) -> list[str]:
        """Return the keys that the store does not hold, in order, each once.

        What a shard has on disk only is read and checked there, so a get that follows finds it.

        Args:
            keys: Keys from puts, of any run.

        Returns:
            The lost ones: of another run, never put, released, expired, damaged on disk, or lost
            with a shard.

        Raises:
            TypeError: A key is not a string.
            ValueError: A string has not the form of a key.
        """
        deadline = self._deadline(timeout_s)
        ours = self._ours(keys)
        by_shard = _grouped((shard, key) for key, shard in ours.items())
        answers = await _all_of(
            self._shards[shard].missing(mine, deadline) for shard, mine in by_shard.items()
        )
        lost = {key for answer in answers for key in answer}
        return [key for key in dict.fromkeys(keys) if key in lost or key not in ours]

    async def release_async(self, *trajectory_ids: str, timeout_s: float | None = None) -> int:
        """End what trajectories hold, in one call per shard; what no other holds is gone.

        Args:
            trajectory_ids: Any names; those that hold nothing are no error.

        Returns:
            Bytes freed.
        """
        deadline = self._deadline(timeout_s)
        return sum(await _all_of(s.release(trajectory_ids, deadline) for s in self._shards))

    async def statistics_async(self, *, timeout_s: float | None = None) -> PixelStoreStatistics:
        """Return what the store holds and did, summed over its shards."""
        return merge_statistics(await self._statistics(timeout_s))

    async def pressure_async(self, *, timeout_s: float | None = None) -> Pressure:
        """Return how full the store is."""
        return pressure_of(await self._statistics(timeout_s))

    async def aclose(self, *, is_disk_kept: bool = False) -> None:
        """End the store's actors, for every client; no error when they are gone already.

        Args:
            is_disk_kept: Whether images on disk stay for a later store of the same run.
        """
        deadline = self._deadline(None)
        await _settled([shard.stop(is_disk_kept, deadline) for shard in self._shards])
        self._cache.clear()

    put = _blocking(put_async)
    put_many = _blocking(put_many_async)
    get_many = _blocking(get_many_async)
    missing = _blocking(missing_async)
    release = _blocking(release_async)
    statistics = _blocking(statistics_async)
    pressure = _blocking(pressure_async)
    close = _blocking(aclose)

    def _deadline(self, limit_s: float | None) -> Deadline:
        limit_s = self.spec.config.call_timeout_s if limit_s is None else limit_s
        if math.isnan(limit_s):  # it would never pass
            raise ValueError(
                "timeout_s must be a number of seconds, got nan. Use None for the store's."
            )
        return Deadline(asyncio.get_running_loop().time() + limit_s, limit_s)

    def _ours(self, keys: Sequence[str]) -> dict[str, int]:
        """Return the shard of each key of this store."""
        if isinstance(keys, str):
            raise TypeError(
                f"keys must be a sequence of keys, got the str {keys!r}. Put it in a list."
            )
        parsed = {key: parse_key(key) for key in keys}
        return {
            key: parts.shard
            for key, parts in parsed.items()
            if parts.run_tag == self._run_tag and parts.shard < len(self._shards)
        }

    async def _statistics(self, timeout_s: float | None) -> list[PixelStoreStatistics]:
        deadline = self._deadline(timeout_s)
        return await _all_of(shard.statistics(deadline) for shard in self._shards)

    async def _put(
        self,
        shard: RemoteShard,
        trajectory_id: str,
        images: Sequence[PackedImage],
        deadline: Deadline,
    ) -> None:
        room, batch = self.spec.config.max_call_bytes, list[PackedImage]()
        for image in images:
            if batch and sum(len(i.payload) for i in (*batch, image)) > room:
                await shard.put(trajectory_id, batch, deadline)
                batch = []
            batch.append(image)
        await shard.put(trajectory_id, batch, deadline)

    async def _fetch(
        self, shard: RemoteShard, keys: Sequence[str], deadline: Deadline
    ) -> dict[str, PackedImage]:
        """Return the images that a shard holds of these."""
        found: dict[str, PackedImage] = {}
        while keys:
            fetched, images = await shard.fetch(keys, deadline)
            for key, image in zip(fetched.keys, images, strict=True):
                found[key] = image
                if len(image.payload) <= self._cache.maxsize:
                    self._cache[key] = image
            keys = fetched.rest
        return found


def _grouped(pairs: Iterable[tuple[int, ItemT]]) -> dict[int, list[ItemT]]:
    grouped: dict[int, list[ItemT]] = {}
    for shard, item in pairs:
        grouped.setdefault(shard, []).append(item)
    return grouped


async def _settled(
    calls: Sequence[Coroutine[Any, Any, ResultT]],
) -> list[ResultT | PixelStoreError]:
    """Return the results of calls that run at the same time, or the errors that they end in."""

    async def settle(call: Coroutine[Any, Any, ResultT]) -> ResultT | PixelStoreError:
        try:
            return await call
        except PixelStoreError as error:
            return error

    if len(calls) == 1:
        return [await settle(calls[0])]
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(settle(call)) for call in calls]
    except BaseExceptionGroup as failures:  # its caller catches errors by their own types
        raise failures.exceptions[0] from failures.exceptions[0].__cause__
    return [task.result() for task in tasks]


async def _all_of(calls: Iterable[Coroutine[Any, Any, ResultT]]) -> list[ResultT]:
    """Return the results of calls that run at the same time; raise the first error, once all ended."""
    results: list[ResultT] = []
    for result in await _settled(list(calls)):
        if isinstance(result, PixelStoreError):
            raise result
        results.append(result)
    return results
