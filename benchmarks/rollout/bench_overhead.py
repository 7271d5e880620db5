"""CPU cost of executor and controller at 1,280 slots, and real throughput on one core.

Run: `pytest benchmarks/rollout/bench_overhead.py -o python_files='bench_*.py'
--benchmark-json=F`. CPU seconds are the process's own (`time.process_time`).
"""

from __future__ import annotations

import asyncio
import time

import pytest
from awrl_rollout import (
    LocalWorker,
    RolloutController,
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

DURATIONS = lognormal_durations(mean_s=60.0, cv=1.0)
NUM_SLOTS = 1_280
NUM_EPISODES = 12_800


def executor_cpu_s() -> float:
    """Return CPU seconds per episode of the executor alone, in virtual time."""
    clock = VirtualClock()

    async def main() -> float:
        workflow = scripted_workflow(DURATIONS)
        async with WorkflowExecutor(workflow, num_slots=NUM_SLOTS, clock=clock) as executor:
            started = time.process_time()
            await executor.rollout_batch(make_group("e", NUM_EPISODES))
            return (time.process_time() - started) / NUM_EPISODES

    return clock.run(main())


def test_executor_overhead_per_episode(benchmark: BenchmarkFixture) -> None:
    per_episode_s = benchmark.pedantic(executor_cpu_s, rounds=3)
    benchmark.extra_info["cpu_ms_per_episode"] = round(1e3 * per_episode_s, 4)
    assert benchmark.disabled or per_episode_s <= 1e-3


def controller_cpu_share(group_size: int) -> tuple[float, float]:
    """Return the share of one core, and CPU seconds per episode, at 1,280 concurrent episodes.

    40 workers of 32 slots, batches of 1,280, eta = 2, episodes of 60 s. The workers' own slots run
    in the same process and are in the figure.
    """
    clock = VirtualClock()
    manager = StalenessManager(
        StalenessConfig(
            max_concurrent=NUM_SLOTS, consumer_batch_size=NUM_SLOTS, max_off_policyness=2
        )
    )
    num_steps = 5

    async def main() -> tuple[float, float]:
        workflow = scripted_workflow(DURATIONS)
        async with asyncio.TaskGroup() as group:
            executors = [
                WorkflowExecutor(workflow, num_slots=32, name=f"w{index}", clock=clock)
                for index in range(NUM_SLOTS // 32)
            ]
            for executor in executors:
                group.create_task(executor.serve())
            async with RolloutController(
                [LocalWorker(executor) for executor in executors],
                manager,
                source=endless_groups(group_size),
                clock=clock,
            ) as controller:
                cpu_started, started = time.process_time(), clock.time()
                for version in range(1, num_steps + 1):
                    await controller.prepare_batch(NUM_SLOTS)
                    controller.advance(version)
                cpu_s = time.process_time() - cpu_started
                num_episodes = controller.statistics().num_completed
                share = cpu_s / (clock.time() - started)
            for executor in executors:
                await executor.aclose()
        return share, cpu_s / num_episodes

    return clock.run(main())


@pytest.mark.parametrize("group_size", [8, 1])
def test_controller_overhead_at_1280_episodes(benchmark: BenchmarkFixture, group_size: int) -> None:
    share, per_episode_s = benchmark.pedantic(controller_cpu_share, (group_size,), rounds=1)
    benchmark.extra_info.update(
        core_share=round(share, 4), cpu_ms_per_episode=round(1e3 * per_episode_s, 4)
    )
    assert benchmark.disabled or share <= 0.05


def real_share_of_ideal() -> float:
    """Return throughput over ideal for 1,280 slots of 1 s episodes in real asyncio."""
    seconds = 10

    async def main() -> float:
        workflow = scripted_workflow(lambda request: 1.0)
        async with WorkflowExecutor(workflow, num_slots=NUM_SLOTS) as executor:
            episodes = make_group("e", NUM_SLOTS * seconds)
            await asyncio.sleep(0)
            started = time.perf_counter()
            await executor.rollout_batch(episodes)
            return seconds / (time.perf_counter() - started)

    return asyncio.run(main())


def test_real_slots_reach_the_ideal(benchmark: BenchmarkFixture) -> None:
    share = benchmark.pedantic(real_share_of_ideal, rounds=1)
    benchmark.extra_info["share_of_ideal"] = round(share, 4)
    assert benchmark.disabled or share >= 0.95
