"""Slot idle share under heavy-tailed episodes: the everlasting pool beside `SyncPool`.

Virtual clock; lognormal episodes of mean 60 s and cv 1; no warm-up charged to the synchronous pool,
so its idle share is the barrier alone. The everlasting figure is taken over a window in which it is
fed without end, as in a run. Run: `pytest benchmarks/rollout/bench_idle_share.py
-o python_files='bench_*.py' --benchmark-json=F`.
"""

from __future__ import annotations

import pytest
from awrl_rollout import (
    LocalWorker,
    RolloutController,
    SyncPool,
    VirtualClock,
    WorkflowExecutor,
)
from awrl_rollout.testing import (
    endless_groups,
    lognormal_durations,
    make_group,
    scripted_workflow,
)
from awrl_staleness import StalenessConfig, StalenessManager
from pytest_benchmark.fixture import BenchmarkFixture

MEAN_S = 60.0
DURATIONS = lognormal_durations(mean_s=MEAN_S, cv=1.0)
NUM_ROUNDS = 10


def everlasting_share(num_slots: int) -> float:
    """Return the executor's idle share with a line that never empties."""
    clock = VirtualClock()

    async def main() -> float:
        workflow = scripted_workflow(DURATIONS)
        async with WorkflowExecutor(workflow, num_slots=num_slots, clock=clock) as executor:
            executor.submit(make_group("e", num_slots * NUM_ROUNDS * 3))
            await clock.sleep(MEAN_S * NUM_ROUNDS)
            return executor.statistics().idle_share

    return clock.run(main())


def controlled_share(num_slots: int, eta: int = 2) -> tuple[float, float]:
    """Return idle share and mean staleness of the whole controller, groups of 4, instant updates."""
    clock = VirtualClock()
    batch = num_slots
    manager = StalenessManager(
        StalenessConfig(max_concurrent=num_slots, consumer_batch_size=batch, max_off_policyness=eta)
    )

    async def main() -> tuple[float, float]:
        workflow = scripted_workflow(DURATIONS)
        async with (
            WorkflowExecutor(workflow, num_slots=num_slots, clock=clock) as executor,
            RolloutController(
                [LocalWorker(executor)], manager, source=endless_groups(4), clock=clock
            ) as controller,
        ):
            for version in range(1, NUM_ROUNDS + 1):
                await controller.prepare_batch(batch)
                controller.advance(version)
            seen = manager.statistics()
            return executor.statistics().idle_share, seen.mean_off_policyness

    return clock.run(main())


def synchronous_share(num_slots: int) -> float:
    """Return the synchronous pool's idle share."""
    clock = VirtualClock()

    async def main() -> float:
        pool = SyncPool(scripted_workflow(DURATIONS), num_slots=num_slots, clock=clock)
        for index in range(NUM_ROUNDS):
            await pool.run_round(make_group(f"r{index}", num_slots))
        return pool.statistics().idle_share

    return clock.run(main())


@pytest.mark.parametrize("num_slots", [16, 128, 1_280])
def test_idle_share(benchmark: BenchmarkFixture, num_slots: int) -> None:
    everlasting = benchmark.pedantic(everlasting_share, (num_slots,), rounds=1)
    controlled, staleness = controlled_share(num_slots)
    benchmark.extra_info.update(
        everlasting=round(everlasting, 4),
        everlasting_controlled_eta_2=round(controlled, 4),
        mean_staleness_controlled=round(staleness, 2),
        synchronous=round(synchronous_share(num_slots), 4),
    )
    assert benchmark.disabled or everlasting <= 0.03
