"""Sections of the machinery: cluster, servers, pixel store, checkpoints, logging, recovery."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from typing import Literal

from webrl.config.rules import Rules

__all__ = [
    "CheckpointConfig",
    "ClusterConfig",
    "InferenceConfig",
    "LoggingConfig",
    "PixelStoreSection",
    "RecoverConfig",
    "SchedulerConfig",
]


@dataclass(frozen=True, kw_only=True, slots=True)
class SchedulerConfig:
    """Who places and watches the workers."""

    type: Literal["ray"] = "ray"
    """Ray is the one scheduler. It joins the cluster at `RAY_ADDRESS`, or starts a local one."""
    startup_timeout_s: float = 300.0
    """Deadline for all workers and servers to be ready, in seconds."""

    def __post_init__(self) -> None:
        """Check the ranges.

        Raises:
            ConfigError: a value is out of its range.
        """
        rules = Rules()
        rules.one_of("type", self.type, ("ray",), "Ray also runs on one machine by itself.")
        rules.above("startup_timeout_s", self.startup_timeout_s, 0, "Typical value: 300.")
        rules.finish()


@dataclass(frozen=True, kw_only=True, slots=True)
class ClusterConfig:
    """The machines, and whether generation has servers of its own."""

    n_inference_servers: int = 1
    """Servers that generate while training goes on; 0 is synchronous on shared devices."""
    n_nodes: int = 1
    """Machines of the cluster."""
    n_gpus_per_node: int = 0
    """GPUs of each machine; 0 runs everything on CPUs."""

    def __post_init__(self) -> None:
        """Check the ranges.

        Raises:
            ConfigError: a value is out of its range.
        """
        rules = Rules()
        rules.at_least("n_inference_servers", self.n_inference_servers, 0, "0 is synchronous.")
        rules.at_least("n_nodes", self.n_nodes, 1, "Count this machine.")
        rules.at_least("n_gpus_per_node", self.n_gpus_per_node, 0, "Use 0 for CPUs only.")
        rules.finish()

    @property
    def num_gpus(self) -> int:
        """GPUs of the whole cluster."""
        return self.n_nodes * self.n_gpus_per_node


@dataclass(frozen=True, kw_only=True, slots=True)
class InferenceConfig:
    """The inference servers; which program they run is said by `allocation_mode`."""

    backend: Literal["embedded", "sglang"] | None = None
    """Program of the servers; the one that `allocation_mode` names when unset."""
    base_port: int = 0
    """Port of the first server, the others take the next ones; any free when 0."""
    num_threads: int = 1
    """Threads of one `embedded` server on a CPU."""
    max_running_requests: int = 48
    """Requests that one `sglang` server decodes at one moment."""
    context_length: int = 16384
    """Longest prompt with its answer, in tokens; `max_new_tokens` must be below it."""
    mem_fraction_static: float = 0.75
    """Share of the GPU that an `sglang` server takes for weights and KV cache."""
    sglang_args: str = ""
    """Further arguments of an `sglang` server, as on a command line: `--disable-cuda-graph`."""

    def __post_init__(self) -> None:
        """Check the ranges.

        Raises:
            ConfigError: a value is out of its range.
        """
        rules = Rules()
        if self.backend is not None:
            rules.one_of("backend", self.backend, ("embedded", "sglang"))
        is_port = self.base_port == 0 or 1024 <= self.base_port <= 65000
        rules.require(
            is_port, "base_port", "0 or between 1024 and 65000", self.base_port, "Use 0 for any."
        )
        rules.at_least("num_threads", self.num_threads, 1, "Use 1 on a small machine.")
        rules.at_least("max_running_requests", self.max_running_requests, 1, "Typical value: 48.")
        rules.at_least("context_length", self.context_length, 1, "Typical value: 16384.")
        rules.require(
            0 < self.mem_fraction_static < 1,
            "mem_fraction_static",
            "in (0, 1)",
            self.mem_fraction_static,
            "Typical value: 0.75.",
        )
        rules.finish()

    @property
    def sglang_arguments(self) -> tuple[str, ...]:
        """What an `sglang` server is started with, beyond policy, address and port."""
        values = {
            "--context-length": self.context_length,
            "--max-running-requests": self.max_running_requests,
            "--mem-fraction-static": self.mem_fraction_static,
        }
        words = (word for flag, value in values.items() for word in (flag, str(value)))
        return (*words, *shlex.split(self.sglang_args))


@dataclass(frozen=True, kw_only=True, slots=True)
class PixelStoreSection:
    """Where screenshots wait between browser and trainer."""

    num_shards: int = 1
    """Actors that hold the screenshots."""
    max_bytes: int = 1 << 30
    """Memory budget over all shards, in bytes; its fullness holds back new episodes."""
    disk_dir: str | None = None
    """Folder for what does not fit in memory; no disk tier when unset."""
    max_disk_bytes: int = 1 << 34
    """Budget of the disk tier, in bytes; used only with `disk_dir`."""

    def __post_init__(self) -> None:
        """Check the ranges.

        Raises:
            ConfigError: a value is out of its range.
        """
        rules = Rules()
        rules.at_least("num_shards", self.num_shards, 1, "Use 1 on one machine.")
        rules.at_least("max_bytes", self.max_bytes, 1 << 20, "Give a mebibyte at least.")
        rules.at_least("max_disk_bytes", self.max_disk_bytes, 1, "Leave out disk_dir for none.")
        rules.finish()


@dataclass(frozen=True, kw_only=True, slots=True)
class CheckpointConfig:
    """When the run is saved."""

    save_every: int = 20
    """Published updates between two checkpoints; the last update is always saved."""
    keep: int = 3
    """Newest complete checkpoints that stay on disk."""

    def __post_init__(self) -> None:
        """Check the ranges.

        Raises:
            ConfigError: a value is out of its range.
        """
        rules = Rules()
        rules.at_least("save_every", self.save_every, 1, "Use total_steps for only the last.")
        rules.at_least("keep", self.keep, 1, "The newest one is always kept.")
        rules.finish()


@dataclass(frozen=True, kw_only=True, slots=True)
class LoggingConfig:
    """Where figures go. `metrics.jsonl` is always written."""

    tracker: Literal["tensorboard", "wandb", "trackio", "none"] = "tensorboard"
    """Extra sink of the metrics; `wandb` and `trackio` are extras of the package."""
    level: Literal["DEBUG", "INFO", "WARNING", "ERROR"] = "INFO"
    """Least severity in `run.log`."""
    sample_every: int = 50
    """One group in so many is kept on disk with its screenshots."""

    def __post_init__(self) -> None:
        """Check the ranges.

        Raises:
            ConfigError: a value is out of its range.
        """
        rules = Rules()
        rules.one_of("tracker", self.tracker, ("tensorboard", "wandb", "trackio", "none"))
        rules.one_of("level", self.level, ("DEBUG", "INFO", "WARNING", "ERROR"))
        rules.at_least("sample_every", self.sample_every, 1, "Use 1 to keep every group.")
        rules.finish()


@dataclass(frozen=True, kw_only=True, slots=True)
class RecoverConfig:
    """How often what dies is started again."""

    max_restarts: int = 3
    """Restarts of one worker, server or shard in a run before the run stops."""

    def __post_init__(self) -> None:
        """Check the ranges.

        Raises:
            ConfigError: a value is out of its range.
        """
        rules = Rules()
        rules.at_least("max_restarts", self.max_restarts, 0, "Use 0 to stop at the first death.")
        rules.finish()
