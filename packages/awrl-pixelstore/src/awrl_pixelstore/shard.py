"""One shard as async methods over `PixelStoreCore`; `store` makes a Ray actor of it.

Invariants: the core sees one call at a time; no call keeps what it was given longer than the copy
out of it, so no image stays in Ray's object store; a refused operation is an answer, not an
exception; a shard whose disk can't be opened says so to every call and tries again at each.

Consumes: calls of clients. Produces: answers. Waits for: nothing but the disk. Unblocked by: Ray.
The loop's timer sweeps orphans and ends a shard that nobody has called for long.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import islice
from typing import TypeVar

from awrl_pixelstore.core import PixelStoreCore
from awrl_pixelstore.errors import PixelStoreError, PixelStoreUnavailable
from awrl_pixelstore.statistics import PixelStoreStatistics
from awrl_pixelstore.wire import Fetched, Header, StoreSpec, cut, glue, head_of

logger = logging.getLogger(__name__)

ResultT = TypeVar("ResultT")

TICK_S = 30.0
"""Period of the timer: far below any sensible time to live, and costs nothing."""
CHECKED_AT_ONCE = 16
"""Keys that `missing` checks before other calls have their turn: some milliseconds of reading."""


class PixelStoreShard:
    """One shard of a store.

    Args:
        end: Ends the actor for good; called when the shard was idle for too long.
        is_restarted: Whether an earlier process of this actor died.
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
        self._spec = spec
        self._shard = shard
        self._clock = clock
        self._end = end
        self._is_restarted = is_restarted
        self._tick_s = tick_s
        self._core: PixelStoreCore | None = None
        self._is_closed = False
        self._last_call = clock()
        self._timer: asyncio.TimerHandle | None = None

    @property
    def is_empty(self) -> bool:
        """Whether it holds no image."""
        return self._core is None or not self._core.statistics().num_entries

    async def hello(self) -> StoreSpec | PixelStoreError | None:
        """Return what the store's creator fixed; why there is no store; None once closed."""
        if self._is_closed:
            return None
        return self._answer(lambda core: self._spec)

    async def put(self, head: tuple[str, Header], *pieces: bytes) -> PixelStoreError | None:
        """Hold images for the trajectory that the head names before them."""
        trajectory_id, header = head
        answer = self._answer(
            lambda core: core.put_packed(glue(header, pieces), trajectory_id=trajectory_id)
        )
        return answer if isinstance(answer, PixelStoreError) else None

    async def fetch(
        self, keys: Sequence[str]
    ) -> tuple[Fetched | PixelStoreError, *tuple[bytes, ...]]:
        """Return images up to the payload limit of a call: what they are, and their pieces."""
        answer = self._answer(lambda core: self._fetch(core, keys))
        return (answer, *cut(())) if isinstance(answer, PixelStoreError) else answer

    async def missing(self, keys: Sequence[str]) -> list[str] | PixelStoreError:
        """Return the keys that a get would not find."""
        rest, lost = iter(keys), list[str]()
        while part := list(islice(rest, CHECKED_AT_ONCE)):
            answer = self._answer(lambda core, part=part: core.missing(part))
            if isinstance(answer, PixelStoreError):
                return answer
            lost += answer
            await asyncio.sleep(0)
        return lost

    async def release(self, trajectory_ids: Sequence[str]) -> int | PixelStoreError:
        """End leases; return the bytes freed."""
        return self._answer(lambda core: core.release(*trajectory_ids))

    async def statistics(self) -> PixelStoreStatistics | PixelStoreError:
        """Return what this shard holds and did."""
        num_restarts = int(self._is_restarted)
        return self._answer(lambda core: replace(core.statistics(), num_restarts=num_restarts))

    async def stop(self, is_disk_kept: bool) -> None:
        """Give the disk back and refuse everything from now on."""
        if self._core is not None:
            self._core.close(is_disk_kept=is_disk_kept)
        self._core = None
        self._is_closed = True
        if self._timer is not None:
            self._timer.cancel()

    def _answer(self, operation: Callable[[PixelStoreCore], ResultT]) -> ResultT | PixelStoreError:
        self._last_call = self._clock()
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(self._tick_s, self._tick)
        try:
            return operation(self._open())
        except PixelStoreError as error:
            return error

    def _open(self) -> PixelStoreCore:
        if self._is_closed:
            raise PixelStoreUnavailable("a closed store", shard=self._shard, is_gone=True)
        if self._core is None:
            self._core = PixelStoreCore(
                self._spec.config, run_id=self._spec.run_id, shard=self._shard, clock=self._clock
            )
        return self._core

    def _fetch(
        self, core: PixelStoreCore, keys: Sequence[str]
    ) -> tuple[Fetched, *tuple[bytes, ...]]:
        images = {}
        missing: list[str] = []
        rest: Sequence[str] = ()
        room = self._spec.config.max_call_bytes
        for position, key in enumerate(keys):
            image = core.load(key)
            if image is None:
                missing.append(key)
                continue
            room -= len(image.payload)
            if images and room < 0:
                rest = keys[position:]
                break
            images[key] = image
        found = Fetched(tuple(images), head_of(images.values()), tuple(missing), tuple(rest))
        return found, *cut(image.payload for image in images.values())

    def _tick(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(self._tick_s, self._tick)
        if self._core is not None:
            self._core.sweep_if_due()
        limit_s = self._spec.config.idle_exit_s
        if limit_s is not None and self._clock() - self._last_call > limit_s:
            logger.warning("no call for %g s: this shard of %r ends", limit_s, self._spec.run_id)
            self._timer.cancel()
            self._is_closed = True
            if self._core is not None:
                self._core.close(is_disk_kept=True)
            self._core = None
            self._end()
