"""Sections `actor` and `actor.optimizer`: how the policy is updated."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from webrl.config.rules import Rules

__all__ = ["ActorConfig", "OptimizerConfig"]


@dataclass(frozen=True, kw_only=True, slots=True)
class OptimizerConfig:
    """AdamW and its schedule."""

    lr: float = 5e-6
    """Peak learning rate."""
    beta1: float = 0.9
    """Decay of AdamW's first moment."""
    beta2: float = 0.95
    """Decay of AdamW's second moment."""
    eps: float = 1e-8
    """AdamW's denominator floor."""
    weight_decay: float = 0.01
    """Decoupled weight decay."""
    schedule: Literal["constant", "linear", "cosine"] = "constant"
    """Shape of the learning rate after the warm-up, over `total_steps`."""
    warmup_fraction: float = 0.0
    """Share of `total_steps` with a linearly rising rate."""
    min_lr_ratio: float = 0.1
    """Floor of a falling schedule, as a share of `lr`."""
    max_grad_norm: float = 1.0
    """Global gradient norm above which gradients are scaled down."""

    def __post_init__(self) -> None:
        """Check the ranges.

        Raises:
            ConfigError: a value is out of its range.
        """
        rules = Rules()
        rules.above("lr", self.lr, 0, "Give a positive learning rate, such as 5e-6.")
        for key, beta in (("beta1", self.beta1), ("beta2", self.beta2)):
            rules.require(0 <= beta < 1, key, "in [0, 1)", beta, "Typical values: 0.9 and 0.95.")
        rules.above("eps", self.eps, 0, "Typical value: 1e-8.")
        rules.at_least("weight_decay", self.weight_decay, 0, "Use 0 for none.")
        rules.one_of("schedule", self.schedule, ("constant", "linear", "cosine"))
        rules.within("warmup_fraction", self.warmup_fraction, 0, 1, "It is a share of total_steps.")
        rules.within("min_lr_ratio", self.min_lr_ratio, 0, 1, "It is a share of lr.")
        rules.above("max_grad_norm", self.max_grad_norm, 0, "Typical value: 1.0.")
        rules.finish()


@dataclass(frozen=True, kw_only=True, slots=True)
class ActorConfig:
    """The update engine: loss, mini-batches, precision."""

    use_decoupled_loss: bool = True
    """Clip only current/proximal and weigh by proximal/behavior; false: plain PPO on behavior."""
    recompute_logprob: bool = True
    """Run a forward pass at the start of each update for the proximal log-probs."""
    prox_logp_method: Literal["recompute", "loglinear", "metrics"] = "recompute"
    """Where proximal log-probs come from; `metrics` recomputes and reports loglinear's error."""
    behav_imp_weight_cap: float | None = None
    """Bound on the weight proximal/behavior; none when unset. PPO never clips this weight."""
    behav_imp_weight_action: Literal["mask", "clamp"] = "mask"
    """What the cap does: drop the token from the numerator, or bound its weight."""
    eps_clip: float = 0.2
    """Lower clip distance of current/proximal, and the upper one unless `eps_clip_higher`."""
    eps_clip_higher: float | None = None
    """Upper clip distance; `eps_clip` when unset."""
    c_clip: float | None = None
    """Dual-clip constant for negative advantages; off when unset, else > 1."""
    entropy_coef: float = 0.0
    """Weight of the entropy bonus."""
    kl_ctl: float = 0.0
    """Weight of the KL term to the policy that training started from; 0 builds no reference."""
    group_advantage_norm: Literal["mean_std", "mean"] = "mean_std"
    """`mean_std`: minus the group's mean, over its deviation; `mean`: minus the mean of the others."""
    ppo_n_minibatches: int = 1
    """Optimizer steps that one batch is cut into, each pass."""
    ppo_n_epochs: int = 1
    """Passes over one batch."""
    step_adv_const_length: int | None = None
    """k of the constant 1/k aggregation per step; token mean when unset."""
    max_tokens_per_mb: int = 16384
    """Token budget of one micro-batch on one rank, image tokens included."""
    dtype: Literal["float32", "bfloat16"] = "bfloat16"
    """Compute precision; master weights stay float32."""
    gradient_checkpointing: bool = False
    """Recompute activations in the backward pass to save memory."""
    num_threads: int = 1
    """Threads of one rank on a CPU."""
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    """AdamW and its schedule."""

    def __post_init__(self) -> None:
        """Check the ranges.

        Raises:
            ConfigError: a value is out of its range.
        """
        rules = Rules()
        rules.one_of(
            "prox_logp_method", self.prox_logp_method, ("recompute", "loglinear", "metrics")
        )
        rules.above("behav_imp_weight_cap", self.behav_imp_weight_cap, 0, "Leave it out for none.")
        rules.one_of("behav_imp_weight_action", self.behav_imp_weight_action, ("mask", "clamp"))
        rules.require(
            0 < self.eps_clip < 1, "eps_clip", "in (0, 1)", self.eps_clip, "Typical value: 0.2."
        )
        rules.above("eps_clip_higher", self.eps_clip_higher, 0, "Leave it out to use eps_clip.")
        rules.above("c_clip", self.c_clip, 1, "Typical value: 3.0; leave it out for none.")
        rules.at_least("entropy_coef", self.entropy_coef, 0, "Use 0 for none.")
        rules.at_least("kl_ctl", self.kl_ctl, 0, "Use 0 for none.")
        rules.one_of("group_advantage_norm", self.group_advantage_norm, ("mean_std", "mean"))
        rules.at_least("ppo_n_minibatches", self.ppo_n_minibatches, 1, "Use 1 for one step.")
        rules.at_least("ppo_n_epochs", self.ppo_n_epochs, 1, "Use 1 for one pass.")
        rules.at_least(
            "step_adv_const_length", self.step_adv_const_length, 1, "Leave it out for token mean."
        )
        rules.at_least("max_tokens_per_mb", self.max_tokens_per_mb, 1, "Typical value: 16384.")
        rules.one_of("dtype", self.dtype, ("float32", "bfloat16"))
        rules.at_least("num_threads", self.num_threads, 1, "Use 1 on a small machine.")
        rules.finish()
