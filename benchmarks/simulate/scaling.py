"""The published layout at more GPUs: throughput per GPU, and what the controller costs.

    python benchmarks/simulate/scaling.py --gpus 64 256 1024 --out benchmarks/baselines/scaling.json

Each size keeps three servers to one rank and 20 slots a GPU, once with the batch of 64 GPUs and once with
a batch that grows with them. CPU seconds are the process's own and include the simulated episodes, slots
and workers, which a run has elsewhere: the controller's share is below them.
"""

from __future__ import annotations

import argparse
import json
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from webrl.config import WebRLConfig, load_config
from webrl.simulate import resolve_assumptions, simulate_asynchronous

GPUS = 64
BATCH = 128
SLOTS = 1280
SLOTS_OF_WORKER = 32


def at_size(config: WebRLConfig, num_gpus: int, batch: int) -> WebRLConfig:
    """Return the published configuration at another size."""
    servers = num_gpus * 3 // 4
    slots = SLOTS * num_gpus // GPUS
    return replace(
        config,
        allocation_mode=f"sglang[rollout]:d{servers}+fsdp[actor]:d{num_gpus - servers}",
        cluster=replace(config.cluster, n_inference_servers=servers, n_nodes=num_gpus // 8),
        env=replace(config.env, num_workers=slots // SLOTS_OF_WORKER),
        rollout=replace(config.rollout, max_concurrent_rollouts=slots, consumer_batch_size=batch),
    )


def point(base: WebRLConfig, settings: list[str], num_gpus: int, batch: int) -> dict[str, Any]:
    """Return the figures of one size."""
    config = at_size(base, num_gpus, batch)
    assumptions = resolve_assumptions(config, settings, None)
    started = time.process_time()
    recording = simulate_asynchronous(config, assumptions.model)
    cpu_s = time.process_time() - started
    figures, num_ended = recording.figures(), recording.steps[-1].num_ended
    return {
        "gpus": num_gpus,
        "batch": batch,
        "workers": config.env.num_workers,
        "step_s": figures.step_s,
        "episodes_per_h": figures.episodes_per_h,
        "trained_per_h_per_gpu": figures.trained_per_h / num_gpus,
        "running_episodes": figures.running_episodes,
        "servers_idle": figures.servers_idle,
        "trainer_idle": figures.trainer_idle,
        "bounds": figures.bounds,
        "episodes": num_ended,
        "cpu_ms_per_episode": 1e3 * cpu_s / num_ended,
    }


def main() -> None:
    """Simulate every size and write."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--gpus", type=int, nargs="+", default=[64, 256, 1024])
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--set", action="append", default=[], help="section.key=value of the model")
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    base = load_config("webgym_48_16", [f"total_steps={arguments.steps}"]).config
    points: list[dict[str, Any]] = []
    for num_gpus in arguments.gpus:
        for batch in sorted({BATCH, BATCH * num_gpus // GPUS}):
            points.append(point(base, arguments.set, num_gpus, batch))
            print(json.dumps(points[-1]), flush=True)
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    arguments.out.write_text(
        json.dumps({"steps": arguments.steps, "sizes": points}, indent=1) + "\n"
    )


if __name__ == "__main__":
    main()
