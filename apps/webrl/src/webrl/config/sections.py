"""Sections of the configuration: machines, rollouts, records.

The text beneath a field is what the key's documentation says.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from msgspec import Meta

from webrl.config.rules import (
    Count,
    Natural,
    NonNegative,
    Positive,
    Section,
    breach,
)
from webrl.errors import Problem


@dataclass(frozen=True, kw_only=True, slots=True)
class SchedulerSection(Section):
    """Who places and watches the workers."""

    type: Literal["ray"] = "ray"
    """Ray is the one scheduler. It joins the cluster at `RAY_ADDRESS`, or starts a local one."""
    startup_timeout_s: Annotated[Positive, "Typical value: 300."] = 300.0
    """Deadline for all workers and servers to be ready, in seconds."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ClusterSection(Section):
    """The machines, and whether generation has servers of its own."""

    n_inference_servers: Annotated[Natural, "0 is synchronous."] = 1
    """Servers that generate while training goes on; 0 is synchronous on shared devices."""
    n_nodes: Annotated[Count, "Count this machine."] = 1
    """Machines that the run counts on, each with `n_gpus_per_node` GPUs; more may join the cluster,
    for browsers."""
    n_gpus_per_node: Annotated[Natural, "Use 0 for CPUs only."] = 0
    """GPUs that the run takes of each machine at most; 0 runs everything on CPUs."""
    gpu_memory_bytes: Annotated[Count, "Leave it out for what is seen."] | None = None
    """Memory of one GPU, for the budget before a start; what is seen on this machine when unset."""

    @property
    def num_gpus(self) -> int:
        """GPUs of the whole cluster."""
        return self.n_nodes * self.n_gpus_per_node


@dataclass(frozen=True, kw_only=True, slots=True)
class RolloutSection(Section):
    """The everlasting pool and its two bounds. All counts are episodes."""

    max_head_offpolicyness: Annotated[Natural, "Use 0 for synchronous RL."] = 2
    """eta: how many published updates a trainable token may lag behind; 0 is synchronous RL."""
    max_concurrent_rollouts: Annotated[Count, "Allow one episode at least."] = 128
    """Episodes that may run at one moment."""
    consumer_batch_size: Annotated[Count, "An update needs data."] = 128
    """B: episodes that one update consumes."""
    on_overrun: Literal["drop", "wait"] = "drop"
    """What happens to episodes that would outlive the bound: dropped, or awaited before closing."""
    max_attempts: Annotated[Count, "Use 1 for no retry."] = 3
    """Starts of one episode, the first one included, before its fault is final."""
    max_useless_groups: Annotated[Count, "Use a larger number to wait longer."] = 1000
    """Groups in a row of equal rewards, which carry no gradient, after which the run stops: then
    nobody solves the tasks, or everybody does."""
    max_fault_share: Annotated[float, Meta(gt=0, le=1), "Use 1 to never stop on faults."] = 0.5
    """Share of recent groups that the infrastructure may lose before the run stops itself. What sites
    do to their own groups is not counted, unless no group gets through any more."""
    outage_patience_s: Annotated[float, Meta(ge=0), "Use 0 to stop at once."] = 180.0
    """How long everything may be down before the run stops itself, in seconds; meanwhile episodes
    are tried one by one."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PixelStoreSection(Section):
    """Where screenshots wait between browser and trainer."""

    num_shards: Annotated[Count, "Use 1 on one machine."] = 1
    """Actors that hold the screenshots, in turn on the nodes with rollout workers, which put to one
    of their own node."""
    max_bytes: Annotated[int, Meta(ge=1 << 20), "Give a mebibyte at least."] = 1 << 30
    """Memory budget over all shards, in bytes; its fullness holds back new episodes."""
    disk_dir: str | None = None
    """Folder for what does not fit in memory; no disk tier when unset."""
    max_disk_bytes: Annotated[Count, "Leave out disk_dir for none."] = 1 << 34
    """Budget of the disk tier, in bytes; used only with `disk_dir`."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TestRolloutSection(Section):
    """The background evaluation on servers of its own."""

    __test__ = False

    enabled: bool = False
    """Whether the test rollout runs."""
    n_gpus: Annotated[Natural, "Use test_rollout.enabled=false for none."] = 1
    """GPUs of its own servers, each of which takes as many as a rollout server, or CPU processes where
    the cluster has no GPU; 0 starts one server on the devices of the first rollout server."""
    num_seeds: Annotated[Count, "An evaluation needs a seed."] = 128
    """Held-out seeds of one evaluation, spread over the tasks; where tasks outnumber them, over a
    fixed random sample with each difficulty's share."""
    num_final_seeds: Annotated[Natural, "Use 0 to skip it."] = 512
    """Held-out seeds of the one evaluation after the last update; 0 skips it."""
    every_task: bool = False
    """Every task once in place of `num_seeds` and `num_final_seeds`; the evaluation after the last
    update is skipped with `num_final_seeds = 0` all the same."""
    subset_seed: Natural = 0
    """Which tasks are taken where they outnumber the seeds."""
    n_samples: Annotated[Count, "Run each episode once at least."] = 1
    """Times that each episode is run: success is avg@k then, and pass@k is told; needs a
    `temperature`."""
    num_workers: Annotated[Count, "Someone must run the episodes."] = 1
    """Rollout workers of the evaluation, each with a browser of its own; `n_gpus` says how many servers."""
    interval_s: Annotated[NonNegative, "Use 0 for back to back."] = 120.0
    """Least time from the start of one evaluation to the start of the next, in seconds."""
    temperature: Annotated[NonNegative, "Use 0 for greedy."] = 0.0
    """Sampling temperature; 0 is greedy."""
    max_concurrent: Annotated[Count, "Allow one episode at least."] = 8
    """Episodes that each worker of the evaluation runs at one moment."""
    deadline_s: Annotated[Positive, "Typical value: 3600."] = 3600.0
    """Limit of one evaluation, in seconds; episodes that have not ended then are late."""
    late_episodes: Literal["failure", "exclude"] = "failure"
    """What late episodes count as: failures, since the slow ones are the hard ones, or nothing.
    Both shares are printed."""

    def contradictions(self) -> list[Problem]:
        """Several greedy samples would be one and the same."""
        if self.n_samples == 1 or self.temperature:
            return []
        rule, remedy = "1 when temperature is 0", "Set test_rollout.temperature, such as 1.0."
        return [breach("n_samples", rule, self.n_samples, remedy)]


@dataclass(frozen=True, kw_only=True, slots=True)
class CheckpointSection(Section):
    """When the run is saved."""

    save_every: Annotated[Count, "Use total_steps for only the last."] = 20
    """Published updates between two checkpoints; the first and the last one are always saved, the
    last also after Ctrl-C."""
    save_every_s: Annotated[Positive, "Leave it out for none."] | None = 600.0
    """Longest time between two checkpoints while updates are made, in seconds; none when unset."""
    deadline_s: Annotated[Positive, "Typical value: 3600."] = 3600.0
    """Limit of reading or writing one checkpoint, in seconds: its bytes over what the disk takes."""
    keep: Annotated[Count, "The newest one is always kept."] = 3
    """Newest complete checkpoints that stay on disk."""


@dataclass(frozen=True, kw_only=True, slots=True)
class LoggingSection(Section):
    """Where figures go. `metrics.jsonl` is always written."""

    tracker: Literal["tensorboard", "wandb", "trackio", "none"] = "tensorboard"
    """Extra sink of the metrics; `wandb` and `trackio` are extras of the package."""
    level: Literal["DEBUG", "INFO", "WARNING", "ERROR"] = "INFO"
    """Least severity in `run.log`."""
    sample_every: Annotated[Count, "Use 1 to keep every group."] = 50
    """One group in so many is kept on disk with its screenshots."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RecoverSection(Section):
    """How often what dies is started again."""

    max_restarts: Annotated[Natural, "Use 0 to stop at the first death."] = 3
    """Restarts of one worker, server or shard in a run before the run stops."""
