"""Everlasting pool beside synchronous pool on one workload: only the pool differs.

    python benchmarks/pools/measure.py --slots 16 --etas 0 1 2 4 --out pools-16.json
    python benchmarks/pools/measure.py --slots 16 --etas 2 --no-sync --without respawn --out respawn.json
    python benchmarks/pools/measure.py --scale smoke --out pools-smoke.json     # under a minute

Same page, seeds, lengths (see `mix.py`), page latency, browsers, policy, server and trainer; a batch
is one episode a slot, as in the published synchronous pool. Ideal: slots over the mean time of an
episode in its slot, no barrier, no warm-up; `declared_ideal` counts the page latency alone, fixed
before anything ran.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import ablations
from mix import Mix, mix_tasks, published_mix, stream_of, uniform_mix
from rich.console import Console
from webrl.config import WebRLConfig, load_config, to_toml
from webrl.launch import component_configs, run_tasks
from webrl.run.compare import synchronous_config
from webrl.run.run import run_training

GROUP = 4
"""Episodes of a group; a batch is one episode a slot."""
SCALES = {
    "full": {"steps_s": 75.0, "latency_s": 0.5, "warmup": 1},
    "smoke": {"steps_s": 6.0, "latency_s": 0.05, "warmup": 1},
}


def configuration(slots: int, eta: int, latency_s: float, cv: float, seconds: float) -> WebRLConfig:
    """Return the asynchronous configuration of one point."""
    return load_config(
        "laptop",
        [
            "tasks=[{name='bench/mix'}]",
            # A policy that learns to answer otherwise would change what a step costs.
            "actor.optimizer.lr=1e-9",
            f"env.slots_per_worker={slots}",
            f"env.page_latency_s={latency_s}",
            f"env.page_latency_cv={cv}",
            f"rollout.max_concurrent_rollouts={slots}",
            f"rollout.consumer_batch_size={slots}",
            f"rollout.max_head_offpolicyness={eta}",
            f"gconfig.n_samples={GROUP}",
            f"inference.max_running_requests={2 * slots}",
            "policy.init.num_updates=20",
            "actor.ppo_n_minibatches=1",
            "actor.entropy_coef=0",
            "total_steps=100000",
            f"time_limit_s={seconds}",
            "test_rollout.enabled=false",
            "checkpoint.save_every=100000",
            "logging.tracker=none",
        ],
    ).config


def run_mode(config: WebRLConfig, folder: Path, policy: Path | None) -> Path:
    """Run one mode and return its folder."""
    folder.mkdir(parents=True)
    chosen = replace(config, run_dir=str(folder))
    if policy is not None:
        chosen = replace(chosen, policy=replace(chosen.policy, path=str(policy)))
    if run_training(chosen, resume=False, console=Console(stderr=True)) != 0:
        raise SystemExit("interrupted")
    return folder


def figures(folder: Path, config: WebRLConfig, mix: Mix, warmup: int) -> dict[str, Any]:
    """Return the figures of one mode over the steps after the warm-up."""
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    steps = [line for line in lines if "eval/success" not in line]
    groups = [json.loads(line) for line in (folder / "episodes.jsonl").read_text().splitlines()]
    warmup = min(warmup + config.off_policyness_bound, len(steps) - 1)
    counted = steps[warmup:]
    seconds = sum(step["time/step_s"] for step in counted)
    before = steps[warmup - 1]["rollout/episodes_total"] if warmup else 0.0
    ended = counted[-1]["rollout/episodes_total"] - before
    members = [member for group in groups for member in group["members"]]
    mean_work_s = mean_work(members, ended)
    slots = config.env.slots_per_worker
    rate = ended / seconds

    def mean(key: str) -> float:
        known = [(step[key], step["time/step_s"]) for step in counted if step.get(key) is not None]
        total = sum(weight for _, weight in known)
        return sum(value * weight for value, weight in known) / total if total else 0.0

    return {
        "mode": "synchronous" if config.is_synchronous else "asynchronous",
        "eta": config.off_policyness_bound,
        "slots": slots,
        "steps": len(counted),
        "seconds": seconds,
        "episodes": ended,
        "episodes_per_s": rate,
        "rows_per_s": sum(step.get("batch/num_rows") or 0.0 for step in counted) / seconds,
        "mean_episode_s": mean_work_s,
        "mean_steps": sum(len(m["generate_s"]) for m in members) / len(members),
        "share_of_ideal": rate * mean_work_s / slots,
        "share_of_declared_ideal": rate * mix.mean_steps * config.env.page_latency_s / slots,
        "slots_idle": mean("idle/rollout_share"),
        "trainer_idle": 1.0 - sum(step["time/train_s"] for step in counted) / seconds,
        "window_ms": 1e3 * mean("publish/window_s"),
        "off_policyness": steps[-1].get("staleness/off_policyness_mean_versions") or 0.0,
        "off_policyness_histogram": _off_policyness(folder),
        "expired": steps[-1].get("rollout/expired_episodes") or 0.0,
        "wasted": steps[-1].get("staleness/wasted_episodes") or 0.0,
        "all_episodes": steps[-1]["rollout/episodes_total"],
        "load_average": round(os.getloadavg()[0], 1),
        "warmup_s_per_round": _warmup_s(groups, counted, slots) if config.is_synchronous else 0.0,
    }


def mean_work(members: Sequence[Any], num_episodes: float) -> float:
    """Return the mean seconds of the last `num_episodes` recorded episodes: those that are counted."""
    counted = members[-int(num_episodes) :]
    return sum(member["ended_s"] - member["started_s"] for member in counted) / len(counted)


def _off_policyness(folder: Path) -> dict[str, int]:
    """Return versions behind -> episodes, over everything that was trained on."""
    lines = (folder / "batches.jsonl").read_text().splitlines()
    counts = Counter(age for line in lines for age in json.loads(line)["off_policyness"].values())
    return {str(age): counts[age] for age in sorted(counts)}


def _warmup_s(groups: Sequence[Any], counted: Sequence[Any], slots: int) -> float:
    """Return the mean time of a synchronous round outside of its episodes: spawn and tear-down."""
    size = slots // GROUP
    rounds = [groups[index : index + size] for index in range(0, len(groups), size)]
    spans: list[float] = []
    for one in rounds[-len(counted) :]:
        members = [member for group in one for member in group["members"]]
        spans.append(max(m["ended_s"] for m in members) - min(m["started_s"] for m in members))
    collects = [step["time/collect_s"] for step in counted]
    return max(0.0, (sum(collects) - sum(spans)) / len(collects))


def measure(arguments: argparse.Namespace, root: Path) -> dict[str, Any]:
    """Run every mode of the arguments."""
    scale = SCALES[arguments.scale]
    latency_s = arguments.latency or scale["latency_s"]
    seconds = arguments.seconds or scale["steps_s"]
    mix = uniform_mix(arguments.uniform) if arguments.uniform else published_mix()
    cv = 0.0 if arguments.uniform else 1.0
    tasks = mix_tasks(mix)
    run_tasks.load_tasks = lambda names: tasks
    component_configs.TaskStream = stream_of(mix)
    configs = [
        configuration(arguments.slots, eta, latency_s, cv, seconds) for eta in arguments.etas
    ]
    if not arguments.no_sync:
        configs.append(
            synchronous_config(configuration(arguments.slots, 2, latency_s, cv, seconds))
        )
    if arguments.without:
        configs = [ablations.take_away(arguments.without, config) for config in configs]
    policy: Path | None = arguments.policy
    points: list[dict[str, Any]] = []
    for index, config in enumerate(configs):
        folder = run_mode(config, root / f"mode-{index}", policy)
        policy = policy or folder / "policy"
        (folder / "config.toml").write_text(to_toml(config), encoding="utf-8")
        point = figures(folder, config, mix, int(scale["warmup"]))
        points.append(point | ({"without": arguments.without} if arguments.without else {}))
        print(json.dumps(points[-1]), flush=True)
    return {
        "workload": mix.name,
        "mean_steps": mix.mean_steps,
        "latency_s": latency_s,
        "latency_cv": cv,
        "points": points,
    }


def main() -> None:
    """Measure and write."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--scale", choices=sorted(SCALES), default="full")
    parser.add_argument("--slots", type=int, default=16)
    parser.add_argument(
        "--etas", type=int, nargs="*", default=[2], help="none: the synchronous pool alone"
    )
    parser.add_argument("--latency", type=float, help="mean page latency of a step, s")
    parser.add_argument("--seconds", type=float, help="training time of each mode, s")
    parser.add_argument("--uniform", type=int, help="equal lengths of so many steps, cv 0")
    parser.add_argument("--no-sync", action="store_true", help="leave the synchronous pool out")
    parser.add_argument("--without", choices=ablations.NAMES, help="take one thing away")
    parser.add_argument("--policy", type=Path, help="checkpoint; made once when left out")
    parser.add_argument("--keep", type=Path, help="folder for the runs, to simulate them from")
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    root = arguments.keep or Path(tempfile.mkdtemp(prefix="awrl-pools-"))
    try:
        results = measure(arguments, root)
    finally:
        if arguments.keep is None:
            shutil.rmtree(root, ignore_errors=True)
    cores = len(os.sched_getaffinity(0))
    results["machine"] = f"{cores} of {os.cpu_count()} cores, {platform.machine()}"
    results["load_average"] = round(os.getloadavg()[0], 1)
    results["command"] = "python benchmarks/pools/measure.py " + " ".join(sys.argv[1:])
    results["date"] = time.strftime("%Y-%m-%d")
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    arguments.out.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
