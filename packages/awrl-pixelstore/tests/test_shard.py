"""A shard between its calls: sweeping, writing behind, ending itself. The clock is manual."""

import asyncio
from collections.abc import Callable
from pathlib import Path

import numpy as np
from awrl_pixelstore import DiskConfig, DiskTierError, PixelStoreConfig, PixelStoreStatistics
from awrl_pixelstore.image import pack
from awrl_pixelstore.shard import FLUSH_IMAGES, PixelStoreShard
from awrl_pixelstore.wire import StoreSpec
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


def test_orphans_expire_without_a_call(make_array: MakeArray) -> None:
    async def scenario() -> None:
        clock = Clock()
        shard = PixelStoreShard(make_spec(lease_ttl_s=10.0), 0, clock=clock, tick_s=0.0)
        await shard.put([pack(make_array())], "a", None)
        await settle()
        assert (await shard.usage(None)).used_bytes == 144
        clock.now = 11.0
        await settle()
        assert (await shard.usage(None)).used_bytes == 0

    asyncio.run(scenario())


def test_a_shard_that_nobody_calls_ends_itself_and_keeps_its_disk(
    tmp_path: Path, make_array: MakeArray
) -> None:
    async def scenario() -> None:
        clock = Clock()
        ended: list[float] = []
        disk = DiskConfig(root=str(tmp_path), max_bytes=1000)
        spec = make_spec(idle_exit_s=50.0, disk=disk)
        end = lambda: ended.append(clock.now)  # noqa: E731
        shard = PixelStoreShard(spec, 0, clock=clock, end=end, tick_s=0.0)
        reply = await shard.put([pack(make_array())], "a", None)
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
        assert (await again.missing(reply.value, None)).value == []  # pyright: ignore[reportArgumentType]
        await again.stop(False, None)

    asyncio.run(scenario())


def test_writing_behind_follows_a_put_in_small_portions(
    tmp_path: Path, make_array: MakeArray
) -> None:
    async def scenario() -> None:
        disk = DiskConfig(root=str(tmp_path), max_bytes=10**6, mode="write_behind")
        shard = PixelStoreShard(make_spec(disk=disk), 0)
        images = [pack(make_array(seed)) for seed in range(2 * FLUSH_IMAGES + 1)]
        await shard.put(images, "a", None)
        for expected in (0, FLUSH_IMAGES, 2 * FLUSH_IMAGES, len(images)):
            statistics = (await shard.statistics(None)).value
            assert isinstance(statistics, PixelStoreStatistics)
            assert statistics.num_disk_bytes == expected * 144
            await asyncio.sleep(0)
        assert await shard.hello() is not None
        await shard.stop(True, None)
        assert await shard.hello() is None

    asyncio.run(scenario())


def test_a_shard_whose_disk_fails_at_start_says_why(tmp_path: Path) -> None:
    async def scenario() -> None:
        (tmp_path / "file").write_text("")
        disk = DiskConfig(root=str(tmp_path / "file"), max_bytes=10)
        shard = PixelStoreShard(make_spec(disk=disk), 0)
        assert isinstance(await shard.hello(), DiskTierError)
        assert isinstance((await shard.usage(None)).value, DiskTierError)

    asyncio.run(scenario())
