"""Put + get of one raw screenshot, beside a no-op actor call that carries it in and out.

The rivals take turns within one run, in random order, so that whatever else the machine does meets
all alike. The store is in its steady state: as much is released as is put. Beside the ratio stand
its parts, what Ray alone takes for two calls that carry the array one way each, and the same store
for a client that takes its shard for one of another node, so that Ray carries the bytes. Run:
`pytest benchmarks/pixelstore/bench_round_trip.py -o python_files='bench_*.py' --benchmark-json=F`
"""

import hashlib
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import ray
from awrl_pixelstore import PixelStoreClient
from numpy.typing import NDArray
from pytest_benchmark.fixture import BenchmarkFixture

ROUNDS = 100
HELD = 16
"""Screenshots in the store while it is measured."""
PNG_BYTES = 5_000


class Echo:
    """The no-op: an async actor that returns what it got; or takes it only, or gives it only."""

    async def echo(self, value: object) -> object:
        """Return the value."""
        return value

    async def keep(self, value: NDArray[np.uint8]) -> None:
        """Keep a copy to give."""
        self._kept = value.copy()

    async def sink(self, value: object) -> None:
        """Take the value."""

    async def source(self) -> NDArray[np.uint8]:
        """Return what was kept."""
        return self._kept


@pytest.fixture(scope="module")
def echo(cluster: None, screen: NDArray[np.uint8]) -> Any:
    actor: Any = ray.remote(num_cpus=0)(Echo).remote()
    ray.get(actor.keep.remote(screen))
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
    keys: list[str] = []
    far = PixelStoreClient(store.spec._replace(layout=("another node",)))
    number = iter(range(10**9))
    generator = np.random.default_rng(0)

    def put_get() -> None:
        samples["put"].append(timed(lambda: keys.append(store.put(screen, trajectory_id="t"))))
        samples["get"].append(timed(lambda: store.get_many(keys[-1:])))

    def put_get_by_ray() -> None:
        screen[0, 1] = 1 - screen[0, 1]
        far.get_many([far.put(screen, trajectory_id=f"held-{len(keys)}")])
        screen[0, 1] = 1 - screen[0, 1]

    rivals: dict[str, Callable[[], object]] = {
        "put_get": put_get,
        "put_get_by_ray": put_get_by_ray,
        "no_op": lambda: ray.get(echo.echo.remote(screen)),
        "ray_in": lambda: ray.get(echo.sink.remote(screen)),
        "ray_out": lambda: ray.get(echo.source.remote()),
        "ray_empty": lambda: ray.get(echo.sink.remote(0)),
        "ray_put_get": lambda: ray.get(ray.put(screen)),
        "sha256": lambda: hashlib.sha256(screen.data).digest(),
    }
    samples: dict[str, list[float]] = {name: [] for name in ("put", "get", *rivals)}

    def one_round() -> None:
        screen[0, :2] = (*divmod(next(number), 256), 0)
        for index in generator.permutation(len(rivals)):
            name = list(rivals)[index]
            samples[name].append(timed(rivals[name]))
        store.transfer("t", f"held-{len(keys)}")
        store.release(f"held-{len(keys) - HELD}")

    benchmark.pedantic(one_round, rounds=ROUNDS, warmup_rounds=HELD)
    store.release_many([f"held-{number}" for number in range(len(keys) + 1)])
    parts = {name: describe(values[HELD:] or values) for name, values in samples.items()}
    benchmark.extra_info.update(parts)
    for statistic in ("min_ms", "p50_ms"):
        cost = {name: parts[name][statistic] for name in rivals}
        cost["two_bare_calls"] = cost["ray_in"] + cost["ray_out"]
        for name in ("put_get", "put_get_by_ray", "two_bare_calls"):
            benchmark.extra_info[f"{name}_ratio_of_{statistic}"] = cost[name] / cost["no_op"]
    assert store.statistics().num_entries == 0


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
