"""Put + get of one JPEG of 160 kB, beside two bare Ray calls that carry the same bytes in and out.

The rivals take turns within one run, in random order, so that whatever else the machine does meets
all alike. The store is in its steady state: as much is released as is put. Beside the bar of 1.5
stand its parts, the awaiting form, the disk tier, and the same for a raw screenshot. Run:
`pytest benchmarks/pixelstore/bench_round_trip.py -o python_files='bench_*.py' --benchmark-json=F`
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import ray
from awrl_pixelstore import PixelStoreClient, PixelStoreConfig, get_or_create_pixel_store
from numpy.typing import NDArray
from pytest_benchmark.fixture import BenchmarkFixture

BAR = 1.5
"""Put + get beside the two bare calls, in the median."""
ROUNDS = 300
RAW_ROUNDS = 100
WARM_UP = 30
PNG_BYTES = 5_000


class Echo:
    """An async actor that takes a value, or gives the one it keeps."""

    async def keep(self, value: bytes | NDArray[np.uint8]) -> None:
        """Keep a copy to give."""
        self._kept = bytes(value) if isinstance(value, bytes) else value.copy()

    async def sink(self, value: object) -> None:
        """Take the value."""

    async def source(self) -> object:
        """Return what was kept."""
        return self._kept


@pytest.fixture(scope="module")
def echo(cluster: None) -> Any:
    return ray.remote(num_cpus=0)(Echo).remote()


def timed(operation: Callable[[], object]) -> float:
    started = time.perf_counter()
    operation()
    return time.perf_counter() - started


def describe(samples: list[float]) -> dict[str, float]:
    p50, p99 = np.percentile(np.array(samples) * 1e3, [50, 99])
    return {"min_ms": min(samples) * 1e3, "p50_ms": float(p50), "p99_ms": float(p99)}


def measure(
    benchmark: BenchmarkFixture, rounds: int, rivals: dict[str, Callable[[], float]]
) -> dict[str, float]:
    """Let rivals take turns, note their figures, and return their medians in ms."""
    generator = np.random.default_rng(0)
    samples: dict[str, list[float]] = {name: [] for name in rivals}

    def one_round() -> None:
        for index in generator.permutation(len(rivals)):
            name = list(rivals)[index]
            samples[name].append(rivals[name]())

    benchmark.pedantic(one_round, rounds=rounds, warmup_rounds=WARM_UP)
    parts = {name: describe(values[WARM_UP:] or values) for name, values in samples.items()}
    benchmark.extra_info.update(parts)
    return {name: part["p50_ms"] for name, part in parts.items()}


class RoundTrip:
    """Puts and gets images that no one has put before; each is released after it was timed."""

    def __init__(self, store: PixelStoreClient, fresh: Callable[[], Any]) -> None:
        self._store = store
        self._fresh = fresh

    def blocking(self) -> float:
        """Return the seconds of a blocking put and get."""
        image = self._fresh()
        seconds = timed(lambda: self._store.get_many([self._store.put(image, trajectory_id="a")]))
        self._store.release("a")
        return seconds

    def awaiting(self) -> float:
        """Return the seconds of an awaited put and get."""
        return asyncio.run(self._await(self._fresh()))

    async def _await(self, image: Any) -> float:
        started = time.perf_counter()
        await self._store.get_many_async([await self._store.put_async(image, trajectory_id="a")])
        seconds = time.perf_counter() - started
        await self._store.release_async("a")
        return seconds


def test_put_and_get_of_a_jpeg_beside_two_bare_calls(
    benchmark: BenchmarkFixture,
    store: PixelStoreClient,
    echo: Any,
    tmp_path: Path,
    draw_page: Callable[..., NDArray[np.uint8]],
    encode: Callable[[NDArray[np.uint8], str], bytes],
) -> None:
    jpeg = encode(draw_page(0), "JPEG")
    number = iter(range(10**9))
    ray.get(echo.keep.remote(jpeg))
    config = PixelStoreConfig(disk_dir=str(tmp_path), read_cache_bytes=0)
    on_disk = get_or_create_pixel_store("benchmarks-disk", num_shards=1, config=config)

    def fresh() -> bytes:
        return jpeg + next(number).to_bytes(8, "big")

    p50 = measure(
        benchmark,
        ROUNDS,
        {
            "put_get": RoundTrip(store, fresh).blocking,
            "put_get_awaiting": RoundTrip(store, fresh).awaiting,
            "put_get_disk": RoundTrip(on_disk, fresh).blocking,
            "ray_in": lambda: timed(lambda: ray.get(echo.sink.remote(jpeg))),
            "ray_out": lambda: timed(lambda: ray.get(echo.source.remote())),
            "ray_empty": lambda: timed(lambda: ray.get(echo.sink.remote(0))),
        },
    )
    on_disk.close()
    two_bare_calls = p50["ray_in"] + p50["ray_out"]
    ratios = {
        f"{name}_ratio": p50[name] / two_bare_calls
        for name in ("put_get", "put_get_awaiting", "put_get_disk")
    }
    benchmark.extra_info.update(bytes_per_put=len(jpeg) + 8, **ratios)
    assert store.statistics().num_entries == 0
    # Run once, without warm-up, a time says nothing.
    assert benchmark.disabled or max(ratios.values()) <= BAR, ratios


def test_put_and_get_of_raw_pixels_beside_two_bare_calls(
    benchmark: BenchmarkFixture, store: PixelStoreClient, echo: Any, screen: NDArray[np.uint8]
) -> None:
    number = iter(range(10**9))
    ray.get(echo.keep.remote(screen))

    def fresh() -> NDArray[np.uint8]:
        screen[0, :2] = (*divmod(next(number), 256), 0)
        return screen

    p50 = measure(
        benchmark,
        RAW_ROUNDS,
        {
            "put_get": RoundTrip(store, fresh).blocking,
            "ray_in": lambda: timed(lambda: ray.get(echo.sink.remote(screen))),
            "ray_out": lambda: timed(lambda: ray.get(echo.source.remote())),
        },
    )
    benchmark.extra_info["put_get_ratio"] = p50["put_get"] / (p50["ray_in"] + p50["ray_out"])


def test_put_of_a_laptop_screenshot_beside_an_empty_call(
    benchmark: BenchmarkFixture, store: PixelStoreClient, echo: Any
) -> None:
    body = np.random.default_rng(0).bytes(PNG_BYTES)
    png = b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR\0\0\0\xe0\0\0\0\xa0\x08\x02" + body
    number = iter(range(10**9))

    def fresh() -> bytes:
        return png + next(number).to_bytes(8, "big")

    def put_of_8() -> float:
        batch = [fresh() for _ in range(8)]
        return timed(lambda: store.put_many(batch, trajectory_id="a"))

    measure(
        benchmark,
        ROUNDS,
        {
            "ray_empty": lambda: timed(lambda: ray.get(echo.sink.remote(0))),
            "put": lambda: timed(lambda: store.put(fresh(), trajectory_id="a")),
            "put_of_8": put_of_8,
        },
    )
