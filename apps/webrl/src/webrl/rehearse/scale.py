"""How much of a configuration runs at once on this machine, and the configuration of that run.

Invariant: the scaled run keeps the proportion of servers, ranks and workers, the tensor-parallel size,
the number of buckets of a publish, eta and the group size; all that it changes is in `Scale`.
"""

from __future__ import annotations

import math
import os
from dataclasses import dataclass, replace
from pathlib import Path

import psutil

from webrl.config import WebRLConfig, load_config, to_toml
from webrl.errors import ConfigError, Problem

SERVER_BYTES = 130 << 20
"""Memory of one server without a model and of its supervisor."""
RANK_BYTES = 220 << 20
"""Memory of one trainer rank with the narrow policy."""
WORKER_BYTES = 420 << 20
"""Memory of one rollout worker and its Chromium with a few pages."""
NODE_BYTES = 250 << 20
"""Memory of one node's own processes."""
MEMORY_SHARE = 0.8
"""Of what is free that a rehearsal takes at most."""
PROCESSES_PER_CORE = 32
"""More take minutes to start."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Scale:
    """The size of the running part of a rehearsal."""

    num_servers: int
    """Inference servers."""
    num_ranks: int
    """Trainer ranks."""
    num_workers: int
    """Rollout workers."""
    num_test_servers: int
    """Servers of the test rollout."""
    num_slots: int
    """Slots of each worker."""
    num_nodes: int
    """Nodes that hold servers and ranks."""
    batch_size: int
    """B: episodes of one update."""

    @property
    def num_bytes(self) -> int:
        """Estimate of the memory of all processes."""
        return (
            (self.num_servers + self.num_test_servers) * SERVER_BYTES
            + self.num_ranks * RANK_BYTES
            + (self.num_workers + bool(self.num_test_servers)) * WORKER_BYTES
        )

    @property
    def num_processes(self) -> int:
        """Processes with a Python interpreter of their own."""
        servers = self.num_servers + self.num_test_servers
        return 2 * servers + self.num_ranks + self.num_workers + bool(self.num_test_servers)

    def describe(self, config: WebRLConfig) -> str:
        """Return the scale beside the true size."""
        allocation = config.allocation
        true = (
            f"{allocation.role('rollout').dims.d} servers, {allocation.role('actor').dims.d} ranks, "
            f"{config.env.num_workers} workers of {config.env.slots_per_worker} slots, "
            f"B = {config.rollout.consumer_batch_size}, {config.cluster.n_nodes} nodes"
        )
        return (
            f"{self.num_servers} servers (and {self.num_test_servers} of the test rollout), "
            f"{self.num_ranks} ranks, {self.num_workers} workers of {self.num_slots} slots, "
            f"B = {self.batch_size}, on {self.num_nodes} nodes; the configuration has {true}"
        )


def scaled(config: WebRLConfig, divisor: int) -> Scale:
    """Return the configuration's sizes over a divisor, rounded up."""

    def part(count: int) -> int:
        return max(1, math.ceil(count / divisor))

    ranks = part(config.allocation.role("actor").dims.d)
    group = config.gconfig.n_samples
    whole = math.lcm(group, ranks)
    batch = max(whole, config.rollout.consumer_batch_size // divisor // 2 // whole * whole)
    return Scale(
        num_servers=part(config.allocation.role("rollout").dims.d),
        num_ranks=ranks,
        num_workers=part(config.env.num_workers),
        num_test_servers=1,
        num_slots=min(4, config.env.slots_per_worker),
        num_nodes=min(config.cluster.n_nodes, max(1, config.cluster.n_nodes // divisor) * 2),
        batch_size=batch,
    )


def largest_scale(config: WebRLConfig, *, num_nodes: int) -> Scale:
    """Return the largest scale that fits this machine's free memory and cores.

    Args:
        num_nodes: Of the declared cluster.
    """
    room = MEMORY_SHARE * psutil.virtual_memory().available - num_nodes * NODE_BYTES
    cores = len(os.sched_getaffinity(0))
    for divisor in range(1, 65):
        scale = scaled(config, divisor)
        if scale.num_bytes <= room and scale.num_processes <= PROCESSES_PER_CORE * cores:
            return scale
    return scaled(config, 64)


def check_memory(scale: Scale) -> None:
    """Refuse a scale that this machine has no memory for.

    Raises:
        ConfigError: It needs more than is free.
    """
    free = psutil.virtual_memory().available
    if scale.num_bytes > free:
        message = (
            f"must fit the free memory of {free / 2**30:.1f} GiB, got about "
            f"{scale.num_bytes / 2**30:.1f} GiB. Use a larger divisor."
        )
        raise ConfigError([Problem(key="--divisor", message=message)])


@dataclass(frozen=True, kw_only=True, slots=True)
class Surroundings:
    """What the scaled run finds on this machine."""

    run_dir: Path
    """Folder of the run."""
    policy: Path
    """The narrow checkpoint."""
    tasks: Path
    """File of tasks in WebGym's format."""
    judge_url: str
    """Address of the judge."""
    bucket_bytes: int
    """Bytes of a bucket with which a publish takes the true number of broadcasts."""


def write_running_config(
    config: WebRLConfig, scale: Scale, found: Surroundings, path: Path
) -> WebRLConfig:
    """Write the configuration of the scaled run; return it.

    Raises:
        ConfigError: The scaled sizes contradict each other.
    """
    tp_size = config.tp_size
    dims = f"d{scale.num_servers}" + (f"t{tp_size}" if tp_size > 1 else "")
    has_gpus = config.cluster.num_gpus > 0
    num_devices = (scale.num_servers + scale.num_test_servers) * tp_size + scale.num_ranks
    per_node = max(tp_size, math.ceil(num_devices / scale.num_nodes))
    whole = replace(
        config,
        allocation_mode=f"sglang[rollout]:{dims}+fsdp[actor]:d{scale.num_ranks}",
        run_dir=str(found.run_dir),
        total_steps=1_000_000,
        time_limit_s=None,
        cluster=replace(
            config.cluster,
            n_inference_servers=scale.num_servers,
            n_nodes=scale.num_nodes,
            n_gpus_per_node=per_node if has_gpus else 0,
        ),
    )
    base = path.with_name("whole.toml")
    base.write_text(to_toml(whole))
    settings = _settings(config, scale, found)
    running = load_config(str(base), settings).config
    path.write_text(to_toml(running))
    return running


def _settings(config: WebRLConfig, scale: Scale, found: Surroundings) -> list[str]:
    """Return what differs from the whole configuration, beside the layout."""
    test = "true" if scale.num_test_servers else "false"
    return [
        f"policy.path={found.policy}",
        f"tasks=[{{name='webgym:{found.tasks}'}}]",
        f"judge.url={found.judge_url}",
        "judge.model=rehearsal",
        "judge.api_key_env=none",
        "judge.deadline_s=30",
        f"env.num_workers={scale.num_workers}",
        f"env.slots_per_worker={scale.num_slots}",
        "env.action_timeout_s=10",
        "env.episode_timeout_s=240",
        f"rollout.consumer_batch_size={scale.batch_size}",
        f"rollout.max_concurrent_rollouts={scale.num_workers * scale.num_slots}",
        f"actor.publish_bucket_bytes={found.bucket_bytes}",
        "gconfig.max_new_tokens=256",
        "pixelstore.max_bytes=2147483648",
        f"test_rollout.enabled={test}",
        f"test_rollout.n_gpus={scale.num_test_servers * config.tp_size}",
        "test_rollout.num_seeds=8",
        "test_rollout.num_final_seeds=0",
        "test_rollout.interval_s=60",
        "test_rollout.max_concurrent=4",
        "checkpoint.save_every=2",
        "logging.tracker=none",
        "recover.max_restarts=1000",
    ]
