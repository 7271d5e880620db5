"""A shard between its calls: sweeping, ending itself, trying its disk again. The clock is manual."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from awrl_pixelstore import PixelStoreConfig, PixelStoreStatistics, PixelStoreUnavailable
from awrl_pixelstore import core as core_module
from awrl_pixelstore.disk import DiskTier
from awrl_pixelstore.image import pack
from awrl_pixelstore.keys import make_key, run_tag_of
from awrl_pixelstore.shard import CHECKED_AT_ONCE, PixelStoreShard
from awrl_pixelstore.wire import StoreSpec, cut, head_of
from numpy.typing import NDArray

MakeArray = Callable[..., NDArray[np.uint8]]


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


async def settle() -> None:
    """Let the loop's timers of no delay fire several times."""
    for _ in range(10):
        await asyncio.sleep(0)


def make_spec(**config: object) -> StoreSpec:
    return StoreSpec("run", PixelStoreConfig(**config), ("n0",))  # pyright: ignore[reportArgumentType]


async def put(shard: PixelStoreShard, *images: NDArray[np.uint8], name: str = "a") -> list[str]:
    """Put as a client does; return the keys."""
    packed = [pack(image) for image in images]
    answer = await shard.put((name, head_of(packed)), *cut(image.payload for image in packed))
    assert answer is None
    return [make_key(run_tag_of("run"), 0, image.digest) for image in packed]


async def num_entries(shard: PixelStoreShard) -> int:
    answer = await shard.statistics()
    assert isinstance(answer, PixelStoreStatistics)
    return answer.num_entries


def test_orphans_expire_without_a_call(make_array: MakeArray) -> None:
    async def scenario() -> None:
        clock = Clock()
        shard = PixelStoreShard(make_spec(lease_ttl_s=10.0), 0, clock=clock, tick_s=0.0)
        await put(shard, make_array())
        await settle()
        assert await num_entries(shard) == 1
        clock.now = 11.0
        await settle()
        assert await num_entries(shard) == 0

    asyncio.run(scenario())


def test_a_shard_that_nobody_calls_ends_itself_and_keeps_its_disk(
    tmp_path: Path, make_array: MakeArray
) -> None:
    async def scenario() -> None:
        clock = Clock()
        ended: list[float] = []
        spec = make_spec(idle_exit_s=50.0, disk_dir=str(tmp_path))
        end = lambda: ended.append(clock.now)  # noqa: E731
        shard = PixelStoreShard(spec, 0, clock=clock, end=end, tick_s=0.0)
        keys = await put(shard, make_array())
        clock.now = 50.0
        await settle()
        await shard.hello()
        clock.now = 100.0
        await settle()
        assert ended == []
        clock.now = 100.5
        await settle()
        assert ended == [100.5]
        again = PixelStoreShard(spec, 0, clock=clock)
        assert await again.missing(keys) == []
        await again.stop(False)
        assert await again.hello() is None

    asyncio.run(scenario())


def test_other_calls_have_their_turn_while_a_shard_looks_for_what_is_missing(
    make_array: MakeArray,
) -> None:
    async def scenario() -> None:
        shard = PixelStoreShard(make_spec(), 0)
        keys = await put(shard, *(make_array(seed) for seed in range(2 * CHECKED_AT_ONCE + 1)))
        ended: list[str] = []

        async def note(call: Callable[[], object], name: str) -> None:
            await call()  # pyright: ignore
            ended.append(name)

        async with asyncio.TaskGroup() as group:
            group.create_task(note(lambda: shard.missing(keys), "missing"))
            group.create_task(note(lambda: put(shard, make_array(99)), "put"))
        assert ended == ["put", "missing"]
        assert await shard.missing(keys) == []

    asyncio.run(scenario())


def test_a_shard_whose_disk_fails_at_start_says_why_and_tries_again(
    tmp_path: Path, make_array: MakeArray
) -> None:
    async def scenario() -> None:
        (tmp_path / "file").write_text("")
        shard = PixelStoreShard(make_spec(disk_dir=str(tmp_path / "file")), 0)
        for _ in range(2):
            answer = await shard.hello()
            assert isinstance(answer, PixelStoreUnavailable)
            assert "disk_dir must be a writable folder" in str(answer)
        assert isinstance(await shard.statistics(), PixelStoreUnavailable)
        (tmp_path / "file").unlink()
        await put(shard, make_array())
        assert await num_entries(shard) == 1
        await shard.stop(False)

    asyncio.run(scenario())


def test_a_shard_that_can_not_even_open_its_full_disk_accepts_once_room_is_made(
    tmp_path: Path, make_array: MakeArray, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(folder: Path) -> DiskTier:
        raise sqlite3.OperationalError(f"database or disk is full: {folder}")

    async def scenario() -> None:
        shard = PixelStoreShard(make_spec(disk_dir=str(tmp_path)), 0)
        with monkeypatch.context() as patch:
            patch.setattr(core_module, "DiskTier", full)
            assert "disk is full" in str(await shard.hello())
        await put(shard, make_array())
        assert await num_entries(shard) == 1
        await shard.stop(False)

    asyncio.run(scenario())
