"""How long the published layout takes to simulate: 64 GPUs, 1,280 slots, 300 steps; bar: a minute.

Run: `pytest benchmarks/simulate -o python_files='bench_*.py' --benchmark-json=F`.
"""

from __future__ import annotations

import time

from pytest_benchmark.fixture import BenchmarkFixture
from webrl.config import load_config
from webrl.simulate import resolve_assumptions, simulate_asynchronous

NUM_STEPS = 300
NUM_SMOKE_STEPS = 10


def test_the_published_layout_simulates_in_a_minute(benchmark: BenchmarkFixture) -> None:
    num_steps = NUM_SMOKE_STEPS if benchmark.disabled else NUM_STEPS
    config = load_config("webgym_48_16", [f"total_steps={num_steps}"]).config
    model = resolve_assumptions(config, [], None).model
    started = time.process_time()
    recording = benchmark.pedantic(simulate_asynchronous, (config, model), rounds=1)
    cpu_s = time.process_time() - started
    benchmark.extra_info.update(
        cpu_s=round(cpu_s, 1),
        episodes=recording.steps[-1].num_ended,
        cpu_ms_per_episode=round(1e3 * cpu_s / recording.steps[-1].num_ended, 3),
    )
    assert benchmark.disabled or cpu_s < 60.0
