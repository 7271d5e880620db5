"""Cost of the staleness manager: admit/finish pairs a second, and its independence of the flight.

Run: `pytest benchmarks/staleness/bench_staleness.py -o python_files='bench_*.py'
--benchmark-json=F`. Every round handles whole batches, so consume and publish are in the figure.
"""

import statistics
import time

import pytest
from awrl_staleness import StalenessConfig, StalenessManager
from pytest_benchmark.fixture import BenchmarkFixture

BATCH = 128
NUM_BATCHES = 100
NUM_PAIRS = BATCH * NUM_BATCHES


class Run:
    """A manager with episodes in flight that never end, and ids for one round."""

    def __init__(self, num_in_flight: int) -> None:
        self.manager = StalenessManager(
            StalenessConfig(
                max_concurrent=num_in_flight + BATCH,
                consumer_batch_size=num_in_flight + BATCH,
                max_off_policyness=0,
            )
        )
        for index in range(num_in_flight):
            assert self.manager.try_admit(f"flying-{index}")
        self.cpu_s: list[float] = []
        self.ids = [[f"{batch}-{index}" for index in range(BATCH)] for batch in range(NUM_BATCHES)]

    def pairs(self) -> None:
        """Admit and finish every id; each batch is consumed and published."""
        manager = self.manager
        started_s = time.process_time()
        for ids in self.ids:
            for episode_id in ids:
                manager.try_admit(episode_id)
                manager.finish(episode_id)
            manager.consume(ids)
            manager.publish(manager.version + 1)
        self.cpu_s.append(time.process_time() - started_s)


@pytest.mark.parametrize("num_in_flight", [0, 1_280, 128_000])
def test_admit_and_finish(benchmark: BenchmarkFixture, num_in_flight: int) -> None:
    run = Run(num_in_flight)
    benchmark.pedantic(run.pairs, rounds=9, warmup_rounds=1)
    pairs_per_cpu_s = round(NUM_PAIRS / statistics.median(run.cpu_s))
    benchmark.extra_info["pairs_per_cpu_s"] = pairs_per_cpu_s
    assert run.manager.statistics().num_running == num_in_flight
    if num_in_flight <= 1_280 and not benchmark.disabled:
        assert pairs_per_cpu_s >= 200_000
