"""Throughput and p99 of puts from 1, 8 and 32 concurrent writers of one process."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

import numpy as np
import pytest
from awrl_pixelstore import PixelStoreClient
from numpy.typing import NDArray
from pytest_benchmark.fixture import BenchmarkFixture

PUTS = 512


async def write(store: PixelStoreClient, bodies: list[bytes], samples: list[float]) -> None:
    for body in bodies:
        started = time.perf_counter()
        await store.put_async(body, trajectory_id="a")
        samples.append(time.perf_counter() - started)


async def write_all(
    store: PixelStoreClient, bodies: list[bytes], num_writers: int, samples: list[float]
) -> None:
    async with asyncio.TaskGroup() as group:
        for writer in range(num_writers):
            group.create_task(write(store, bodies[writer::num_writers], samples))


@pytest.mark.parametrize("num_writers", [1, 8, 32])
@pytest.mark.parametrize("size", [(160, 224), (720, 1280)], ids=["laptop", "full"])
def test_concurrent_writers(
    benchmark: BenchmarkFixture,
    store: PixelStoreClient,
    draw_page: Callable[..., NDArray[np.uint8]],
    encode: Callable[[NDArray[np.uint8], str], bytes],
    num_writers: int,
    size: tuple[int, int],
) -> None:
    jpeg = encode(draw_page(0, *size), "JPEG")
    samples: list[float] = []
    seconds: list[float] = []
    number = iter(range(10**9))

    def fresh() -> tuple[tuple[object, ...], dict[str, object]]:
        store.release("a")
        bodies = [jpeg + next(number).to_bytes(8, "big") for _ in range(PUTS)]
        return (bodies,), {}

    def run(bodies: list[bytes]) -> None:
        started = time.perf_counter()
        asyncio.run(write_all(store, bodies, num_writers, samples))
        seconds.append(time.perf_counter() - started)

    benchmark.pedantic(run, setup=fresh, rounds=3)
    p50, p99 = np.percentile(np.array(samples) * 1e3, [50, 99])
    statistics = store.statistics()
    benchmark.extra_info.update(
        bytes_per_put=len(jpeg) + 8,
        puts_per_s=PUTS / float(np.median(seconds)),
        p50_ms=float(p50),
        p99_ms=float(p99),
        shard_p99_ms=statistics.put_p99_s * 1e3,
    )
