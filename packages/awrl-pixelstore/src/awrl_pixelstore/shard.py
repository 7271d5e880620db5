"""One shard as async methods over `PixelStoreCore`; `store` makes a Ray actor of it.

Invariants: a method never awaits, so the core sees one call at a time; every method keeps its
arguments no longer than the copy out of them, so no image stays in Ray's object store; a refused
operation is an answer, not an exception, and carries the usage like any other.

Consumes: calls of clients. Produces: replies. Waits for: nothing but the disk. Unblocked by: Ray.
The loop's timer sweeps orphans, writes behind, and ends a shard that nobody has called for long.
"""

import asyncio
import logging
import time
import uuid
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace

import numpy as np

from awrl_pixelstore.core import PixelStoreCore
from awrl_pixelstore.errors import PixelStoreError, PixelStoreUnavailable
from awrl_pixelstore.image import PackedImage
from awrl_pixelstore.window import images_in, leave_in
from awrl_pixelstore.wire import (
    Fetched,
    FetchedImage,
    InWindow,
    Method,
    Reply,
    Seen,
    StoreSpec,
    WindowAddress,
    WindowUnreachable,
)

logger = logging.getLogger(__name__)

TICK_S = 30.0
"""Period of the timer: far below any sensible time to live, and costs nothing."""
FLUSH_IMAGES = 16
"""Images written behind in one go: calls wait a few milliseconds for them at most."""


class PixelStoreShard:
    """One shard of a store.

    Args:
        spec: What the store's creator fixed.
        shard: Index of this shard.
        clock: Monotonic seconds.
        end: Ends the actor for good; called when the shard was idle for too long.
        is_restarted: Whether an earlier process of this actor died.
        tick_s: Period of the timer.
    """

    def __init__(
        self,
        spec: StoreSpec,
        shard: int,
        *,
        clock: Callable[[], float] = time.monotonic,
        end: Callable[[], None] = lambda: None,
        is_restarted: bool = False,
        tick_s: float = TICK_S,
    ) -> None:
        self._end = end
        self._tick_s = tick_s
        self._is_restarted = is_restarted
        self._spec = spec
        self._clock = clock
        self._core: PixelStoreCore | None = None
        self._refusal: PixelStoreError = PixelStoreUnavailable("a closed store", is_gone=True)
        self._is_closed = False
        try:
            self._core = PixelStoreCore(spec.config, run_id=spec.run_id, shard=shard, clock=clock)
        except PixelStoreError as error:
            # An exception here would reach callers as "actor died"; this way they see the reason.
            self._refusal = error
        self._incarnation = uuid.uuid4().hex
        self._last_call = clock()
        self._timer: asyncio.TimerHandle | None = None
        self._is_flushing = False

    @property
    def is_empty(self) -> bool:
        """Whether it holds no image."""
        return self._core is None or not self._core.usage()[0]

    async def hello(self) -> StoreSpec | PixelStoreError | None:
        """Return what the store's creator fixed; why there is no store; None once closed."""
        self._note_call()
        if self._is_closed:
            return None
        return self._refusal if self._core is None else self._spec

    async def ask(self, question: tuple[Method, tuple[object, ...]]) -> Reply:
        """Answer a call that came as one argument: method and its arguments."""
        method, arguments = question
        answer: Callable[..., Awaitable[Reply]] = getattr(self, method)
        return await answer(*arguments)

    async def put(
        self, images: Sequence[PackedImage] | InWindow, trajectory_id: str, seen: Seen | None
    ) -> Reply:
        """Hold images for a trajectory; the value is their keys, or a `WindowUnreachable`."""
        reply = self._answer(lambda core: _put(core, images, trajectory_id), seen)
        disk = self._spec.config.disk
        if disk is not None and disk.mode == "write_behind":
            self._flush_soon()
        return reply

    async def fetch(
        self, keys: Sequence[str], seen: Seen | None, window: WindowAddress | None = None
    ) -> Reply:
        """Return images up to the payload limit of a call; the value is a `Fetched`."""
        reply = self._answer(lambda core: self._fetch(core, keys), seen)
        if window is not None and isinstance(reply.value, Fetched):
            return reply._replace(value=leave_in(window, reply.value))
        return reply

    async def missing(self, keys: Sequence[str], seen: Seen | None) -> Reply:
        """Return as value the keys that are not held."""
        return self._answer(lambda core: core.missing(keys), seen)

    async def describe(self, keys: Sequence[str], seen: Seen | None) -> Reply:
        """Return as value an `ImageInfo` of each key."""
        return self._answer(lambda core: core.describe(keys), seen)

    async def acquire(self, trajectory_id: str, keys: Sequence[str], seen: Seen | None) -> Reply:
        """Let one more trajectory hold keys; the value is None."""
        return self._answer(lambda core: core.acquire(trajectory_id, keys), seen)

    async def release(self, trajectory_ids: Sequence[str], seen: Seen | None) -> Reply:
        """End leases; the value is the number of bytes freed."""
        return self._answer(
            lambda core: sum(core.release(trajectory_id) for trajectory_id in trajectory_ids), seen
        )

    async def transfer(self, source: str, target: str, seen: Seen | None) -> Reply:
        """Hand a lease over; the value is None."""
        return self._answer(lambda core: core.transfer(source, target), seen)

    async def renew(self, trajectory_ids: Sequence[str], seen: Seen | None) -> Reply:
        """Keep leases from expiring; the value is the ids that hold nothing here."""
        return self._answer(lambda core: core.renew(trajectory_ids), seen)

    async def usage(self, seen: Seen | None) -> Reply:
        """Return no value: every reply carries the usage."""
        return self._answer(lambda core: None, seen)

    async def statistics(self, seen: Seen | None) -> Reply:
        """Return as value the shard's `PixelStoreStatistics`."""
        num_restarts = int(self._is_restarted)
        return self._answer(
            lambda core: replace(core.statistics(), num_restarts=num_restarts), seen
        )

    async def stop(self, is_disk_kept: bool, seen: Seen | None) -> Reply:
        """Give the disk back and refuse everything from now on; the value is None."""
        reply = self._answer(lambda core: core.close(is_disk_kept=is_disk_kept), seen)
        self._core = None
        self._is_closed = True
        if self._timer is not None:
            self._timer.cancel()
        return reply

    def _answer(self, operation: Callable[[PixelStoreCore], object], seen: Seen | None) -> Reply:
        self._note_call()
        core = self._core
        if core is None:
            return Reply(self._refusal, 0, 0, self._incarnation, 0, None)
        value: object
        try:
            value = operation(core)
        except PixelStoreError as error:
            value = error
        used, capacity = core.usage()
        is_known = seen is not None and seen[0] == self._incarnation
        freed = core.freed.since(seen[1]) if seen is not None and is_known else None
        return Reply(value, used, capacity, self._incarnation, core.freed.sequence, freed)

    def _fetch(self, core: PixelStoreCore, keys: Sequence[str]) -> Fetched:
        images: list[FetchedImage] = []
        missing: list[str] = []
        num_bytes = 0
        for position, key in enumerate(keys):
            stored = core.load(key)
            if stored is None:
                missing.append(key)
                continue
            num_bytes += len(stored.payload)
            if images and num_bytes > self._spec.config.max_call_bytes:
                return Fetched(tuple(images), tuple(missing), tuple(keys[position:]))
            view = np.frombuffer(stored.payload, np.uint8)
            images.append(FetchedImage(key, stored.form, stored.shape, view))
        return Fetched(tuple(images), tuple(missing), ())

    def _note_call(self) -> None:
        self._last_call = self._clock()
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(self._tick_s, self._tick)

    def _tick(self) -> None:
        core = self._core
        if core is None:
            return
        core.sweep_if_due()
        self._flush_soon()
        limit_s = self._spec.config.idle_exit_s
        if limit_s is not None and self._clock() - self._last_call > limit_s:
            logger.warning("no call for %g s: this shard of %r ends", limit_s, self._spec.run_id)
            self._core = None
            try:
                core.close(is_disk_kept=True)
            except PixelStoreError as error:
                logger.warning("an idle shard ends with images that are not on disk: %s", error)
            self._end()
            return
        self._timer = asyncio.get_running_loop().call_later(self._tick_s, self._tick)

    def _flush_soon(self) -> None:
        if not self._is_flushing:
            self._is_flushing = True
            asyncio.get_running_loop().call_soon(self._flush)

    def _flush(self) -> None:
        self._is_flushing = False
        if self._core is None:
            return
        try:
            num_left = self._core.flush(FLUSH_IMAGES)
        except PixelStoreError as error:
            logger.warning("writing behind is put off until the next tick: %s", error)
        else:
            if num_left:
                self._flush_soon()


def _put(
    core: PixelStoreCore, images: Sequence[PackedImage] | InWindow, trajectory_id: str
) -> list[str] | WindowUnreachable:
    if isinstance(images, InWindow):
        try:
            images = images_in(images)
        except OSError as error:
            return WindowUnreachable(str(error))
    return core.put_packed(images, trajectory_id=trajectory_id)
