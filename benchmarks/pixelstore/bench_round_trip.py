"""Put + get of one raw screenshot, beside a no-op actor call that carries it in and out.

The rivals take turns within one run, so that whatever else the machine does meets all alike. Run:
`pytest benchmarks/pixelstore/bench_round_trip.py -o python_files='bench_*.py' --benchmark-json=F`
"""

import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import ray
from awrl_pixelstore import PixelStoreClient
from numpy.typing import NDArray
from pytest_benchmark.fixture import BenchmarkFixture

ROUNDS = 60
PNG_BYTES = 5_000


class Echo:
    """The no-op: an async actor that returns what it got."""

    async def echo(self, value: object) -> object:
        """Return the value."""
        return value


@pytest.fixture(scope="module")
def echo(cluster: None) -> Any:
    actor: Any = ray.remote(num_cpus=0)(Echo).remote()
    ray.get(actor.echo.remote(0))
    return actor


def timed(operation: Callable[[], object]) -> float:
    started = time.perf_counter()
    operation()
    return time.perf_counter() - started


def describe(samples: list[float]) -> dict[str, float]:
    p50, p99 = np.percentile(np.array(samples) * 1e3, [50, 99])
    return {"min_ms": min(samples) * 1e3, "p50_ms": float(p50), "p99_ms": float(p99)}


def test_put_and_get_beside_a_no_op_call(
    benchmark: BenchmarkFixture, store: PixelStoreClient, echo: Any, screen: NDArray[np.uint8]
) -> None:
    samples: dict[str, list[float]] = {"no_op": [], "ray_put_get": [], "put": [], "get": []}
    number = iter(range(10**9))

    def one_round() -> None:
        screen[0, 0] = (*divmod(next(number), 256), 0)
        samples["no_op"].append(timed(lambda: ray.get(echo.echo.remote(screen))))
        samples["ray_put_get"].append(timed(lambda: ray.get(ray.put(screen))))
        keys: list[str] = []
        samples["put"].append(timed(lambda: keys.append(store.put(screen, trajectory_id="a"))))
        samples["get"].append(timed(lambda: store.get_many(keys)))

    benchmark.pedantic(one_round, rounds=ROUNDS, warmup_rounds=5)
    pairs = zip(samples["put"], samples["get"], strict=True)
    both = [put + get for put, get in pairs]
    benchmark.extra_info.update({name: describe(values) for name, values in samples.items()})
    benchmark.extra_info["put_get"] = describe(both)
    for statistic in ("min_ms", "p50_ms"):
        ratio = describe(both)[statistic] / describe(samples["no_op"])[statistic]
        benchmark.extra_info[f"ratio_of_{statistic}"] = ratio
    assert len(both) >= ROUNDS


def test_put_of_a_laptop_screenshot_beside_an_empty_call(
    benchmark: BenchmarkFixture, store: PixelStoreClient, echo: Any
) -> None:
    body = np.random.default_rng(0).bytes(PNG_BYTES)
    png = b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR\0\0\0\xe0\0\0\0\xa0\x08\x02" + body
    samples: dict[str, list[float]] = {"no_op": [], "put": [], "put_of_8": []}
    number = iter(range(10**9))

    def fresh() -> bytes:
        return png + next(number).to_bytes(8, "big")

    def one_round() -> None:
        samples["no_op"].append(timed(lambda: ray.get(echo.echo.remote(0))))
        samples["put"].append(timed(lambda: store.put(fresh(), trajectory_id="a")))
        batch = [fresh() for _ in range(8)]
        samples["put_of_8"].append(timed(lambda: store.put_many(batch, trajectory_id="a")))

    benchmark.pedantic(one_round, rounds=300, warmup_rounds=20)
    benchmark.extra_info.update({name: describe(values) for name, values in samples.items()})
