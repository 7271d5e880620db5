"""The whole configuration of a run, with the checks that involve more than one section."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from webrl.allocation import Allocation, parse_allocation
from webrl.config.actor import ActorConfig
from webrl.config.combinations import combination_problems
from webrl.config.environment import EnvConfig, PolicyConfig, TaskEntry
from webrl.config.judge import JudgeSection
from webrl.config.rollout import GenerationConfig, RolloutConfig, TestRolloutConfig
from webrl.config.rules import Rules
from webrl.config.services import (
    CheckpointConfig,
    ClusterConfig,
    InferenceConfig,
    LoggingConfig,
    PixelStoreSection,
    RecoverConfig,
    SchedulerConfig,
)
from webrl.errors import ConfigError

__all__ = ["WebRLConfig"]


@dataclass(frozen=True, kw_only=True, slots=True)
class WebRLConfig:
    """Everything that decides what `webrl train` does. Published keys are spelled as published."""

    allocation_mode: str
    """Which role runs where: `sglang[rollout]:d48+fsdp[actor]:d16`."""
    tasks: tuple[TaskEntry, ...]
    """What to train and evaluate on; at least one."""
    run_dir: str = "runs/{config}-{time}"
    """Folder of this run; `{config}` and `{time}` are filled in when the run starts."""
    seed: int = 0
    """Seed of everything random."""
    total_steps: int = 100
    """Published updates after which the run ends."""
    time_limit_s: float | None = None
    """Training time after which the run ends, in seconds; none when unset."""
    weight_update_mode: Literal["xccl", "disk"] = "xccl"
    """How new weights reach the servers: a broadcast, or a checkpoint on disk."""
    scheduler: SchedulerConfig = field(default_factory=SchedulerConfig)
    """Who places and watches the workers."""
    cluster: ClusterConfig = field(default_factory=ClusterConfig)
    """The machines."""
    policy: PolicyConfig = field(default_factory=PolicyConfig)
    """Where the policy comes from."""
    env: EnvConfig = field(default_factory=EnvConfig)
    """Rollout workers and their browsers."""
    judge: JudgeSection = field(default_factory=JudgeSection)
    """Who judges the episodes of tasks with a rubric."""
    gconfig: GenerationConfig = field(default_factory=GenerationConfig)
    """How actions are sampled."""
    rollout: RolloutConfig = field(default_factory=RolloutConfig)
    """The everlasting pool and its bounds."""
    actor: ActorConfig = field(default_factory=ActorConfig)
    """The update engine."""
    inference: InferenceConfig = field(default_factory=InferenceConfig)
    """The inference servers."""
    pixelstore: PixelStoreSection = field(default_factory=PixelStoreSection)
    """Where screenshots wait."""
    test_rollout: TestRolloutConfig = field(default_factory=TestRolloutConfig)
    """The background evaluation."""
    checkpoint: CheckpointConfig = field(default_factory=CheckpointConfig)
    """When the run is saved."""
    logging: LoggingConfig = field(default_factory=LoggingConfig)
    """Where figures go."""
    recover: RecoverConfig = field(default_factory=RecoverConfig)
    """How often what dies is started again."""

    def __post_init__(self) -> None:
        """Check the ranges and the combinations.

        Raises:
            ConfigError: one or more keys break a rule; all are listed.
            AllocationError: `allocation_mode` does not parse.
        """
        rules = Rules()
        rules.not_blank("run_dir", self.run_dir, "Give a folder, such as 'runs/first'.")
        rules.at_least("seed", self.seed, 0, "Any number from 0.")
        rules.at_least("total_steps", self.total_steps, 1, "A run needs one update.")
        rules.above("time_limit_s", self.time_limit_s, 0, "Leave it out for none.")
        rules.one_of("weight_update_mode", self.weight_update_mode, ("xccl", "disk"))
        problems = [
            *rules.problems,
            *combination_problems(self, parse_allocation(self.allocation_mode)),
        ]
        if problems:
            raise ConfigError(problems)

    @property
    def allocation(self) -> Allocation:
        """What `allocation_mode` says, parsed."""
        return parse_allocation(self.allocation_mode)

    @property
    def is_synchronous(self) -> bool:
        """Whether generation and training take turns."""
        return self.cluster.n_inference_servers == 0

    @property
    def off_policyness_bound(self) -> int:
        """Eta in force: `rollout.max_head_offpolicyness`, or 0 in a synchronous run."""
        return 0 if self.is_synchronous else self.rollout.max_head_offpolicyness

    @property
    def capacity(self) -> int:
        """Most episodes that may be running or waiting for their update: `(eta + 1) * B`."""
        return (self.off_policyness_bound + 1) * self.rollout.consumer_batch_size

    @property
    def groups_per_batch(self) -> int:
        """Groups of siblings in one batch."""
        return self.rollout.consumer_batch_size // self.gconfig.n_samples

    @property
    def num_test_servers(self) -> int:
        """Inference servers of the test rollout."""
        return max(1, self.test_rollout.n_gpus) if self.test_rollout.enabled else 0

    @property
    def inference_backend(self) -> str:
        """What the inference servers run: `embedded` or `sglang`."""
        return self.inference.backend or self.allocation.role("rollout").backend

    @property
    def update_backend(self) -> Literal["nccl", "gloo"]:
        """What carries the weight broadcast: gloo on CPUs and where roles share a GPU."""
        has_own_gpus = self.cluster.num_gpus > 0 and not self.allocation.shares_devices(
            "rollout", "actor"
        )
        return "nccl" if has_own_gpus else "gloo"
