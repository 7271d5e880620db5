"""Cost of the staleness manager: admit/finish pairs a second, and its independence of the flight.

Run: `pytest benchmarks/staleness/bench_staleness.py -o python_files='bench_*.py'
--benchmark-json=F`. Every round handles whole batches, so consume and advance are in the figure.
"""

from __future__ import annotations

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
        """Admit and finish every id; each batch is consumed and the version advances."""
        manager = self.manager
        started_s = time.process_time()
        for ids in self.ids:
            for episode_id in ids:
                manager.try_admit(episode_id)
                manager.finish(episode_id)
            manager.consume(ids)
            manager.advance(manager.version + 1)
        self.cpu_s.append(time.process_time() - started_s)


def dict_pairs_cpu_s() -> float:
    """Return the CPU time of as many pairs of a dict: what other machines are compared by."""
    ids = [f"pair-{index}" for index in range(NUM_PAIRS)]
    flying: dict[str, int] = {}
    started_s = time.process_time()
    for episode_id in ids:
        flying[episode_id] = 0
        flying.pop(episode_id)
    return time.process_time() - started_s


@pytest.mark.parametrize("num_in_flight", [0, 1_280, 128_000])
def test_admit_and_finish(benchmark: BenchmarkFixture, num_in_flight: int) -> None:
    run = Run(num_in_flight)
    ratios: list[float] = []

    def one_round() -> None:
        run.pairs()
        ratios.append(run.cpu_s[-1] / dict_pairs_cpu_s())

    benchmark.pedantic(one_round, rounds=25, warmup_rounds=1)
    cpu_s = statistics.median(run.cpu_s)
    pairs_per_cpu_s = round(NUM_PAIRS / cpu_s)
    benchmark.extra_info.update(
        pairs_per_cpu_s=pairs_per_cpu_s, pair_over_dict_pair=round(statistics.median(ratios), 1)
    )
    assert run.manager.statistics().num_running == num_in_flight
    if num_in_flight <= 1_280 and not benchmark.disabled:
        assert pairs_per_cpu_s >= 200_000
