"""Sections `rollout`, `gconfig` and `test_rollout`: what generates, how much, how stale."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from webrl.config.rules import Rules

__all__ = ["GenerationConfig", "RolloutConfig", "TestRolloutConfig"]


@dataclass(frozen=True, kw_only=True, slots=True)
class RolloutConfig:
    """The everlasting pool and its two bounds. All counts are episodes."""

    max_head_offpolicyness: int = 2
    """eta: how many published updates a trainable token may lag behind; 0 is synchronous RL."""
    max_concurrent_rollouts: int = 128
    """Episodes that may run at one moment."""
    consumer_batch_size: int = 128
    """B: episodes that one update consumes."""
    on_overrun: Literal["drop", "wait"] = "drop"
    """What happens to episodes that would outlive the bound: dropped, or awaited before closing."""
    max_attempts: int = 3
    """Starts of one episode, the first one included, before its fault is final."""
    max_fault_share: float = 0.5
    """Share of recent episodes that may end in faults before the run stops itself."""

    def __post_init__(self) -> None:
        """Check the ranges.

        Raises:
            ConfigError: a value is out of its range.
        """
        rules = Rules()
        rules.at_least(
            "max_head_offpolicyness", self.max_head_offpolicyness, 0, "Use 0 for synchronous RL."
        )
        rules.at_least(
            "max_concurrent_rollouts",
            self.max_concurrent_rollouts,
            1,
            "Allow one episode at least.",
        )
        rules.at_least("consumer_batch_size", self.consumer_batch_size, 1, "An update needs data.")
        rules.one_of("on_overrun", self.on_overrun, ("drop", "wait"))
        rules.at_least("max_attempts", self.max_attempts, 1, "Use 1 for no retry.")
        rules.require(
            0 < self.max_fault_share <= 1,
            "max_fault_share",
            "in (0, 1]",
            self.max_fault_share,
            "Use 1 to never stop on faults.",
        )
        rules.finish()


@dataclass(frozen=True, kw_only=True, slots=True)
class GenerationConfig:
    """How actions are sampled, and how many siblings a task gets."""

    n_samples: int = 8
    """G: episodes of one group, whose rewards are normalised together."""
    temperature: float = 1.0
    """Sampling temperature; the trainer's log-probs use the same."""
    top_p: float = 1.0
    """Nucleus mass; below 1 sampled log-probs no longer match the trainer's."""
    max_new_tokens: int = 512
    """Most tokens of one action."""

    def __post_init__(self) -> None:
        """Check the ranges.

        Raises:
            ConfigError: a value is out of its range.
        """
        rules = Rules()
        rules.at_least(
            "n_samples", self.n_samples, 2, "A group of one has no advantage: use 2 or more."
        )
        rules.above("temperature", self.temperature, 0, "Training must sample; use 1.0.")
        rules.require(
            0 < self.top_p <= 1, "top_p", "in (0, 1]", self.top_p, "Use 1.0 to keep all tokens."
        )
        rules.at_least("max_new_tokens", self.max_new_tokens, 1, "An action needs a token.")
        rules.finish()


@dataclass(frozen=True, kw_only=True, slots=True)
class TestRolloutConfig:
    """The background evaluation on servers of its own."""

    __test__ = False

    enabled: bool = False
    """Whether the test rollout runs."""
    n_gpus: int = 1
    """Its own servers: one GPU each, or one CPU process each where the cluster has no GPU; 0 starts
    one server on a device of the rollout."""
    num_seeds: int = 128
    """Held-out seeds of one evaluation, spread over the tasks."""
    num_final_seeds: int = 512
    """Held-out seeds of the one evaluation after the last update; 0 skips it."""
    interval_s: float = 120.0
    """Least time from the start of one evaluation to the start of the next, in seconds."""
    temperature: float = 0.0
    """Sampling temperature; 0 is greedy."""
    max_concurrent: int = 8
    """Episodes of the evaluation that run at one moment."""

    def __post_init__(self) -> None:
        """Check the ranges.

        Raises:
            ConfigError: a value is out of its range.
        """
        rules = Rules()
        rules.at_least("n_gpus", self.n_gpus, 0, "Use test_rollout.enabled=false for none.")
        rules.at_least("num_seeds", self.num_seeds, 1, "An evaluation needs a seed.")
        rules.at_least("num_final_seeds", self.num_final_seeds, 0, "Use 0 to skip it.")
        rules.at_least("interval_s", self.interval_s, 0, "Use 0 for back to back.")
        rules.at_least("temperature", self.temperature, 0, "Use 0 for greedy.")
        rules.at_least("max_concurrent", self.max_concurrent, 1, "Allow one episode at least.")
        rules.finish()
