"""Configuration of the actor: one frozen object for each concept."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Literal

from awrl_ppo_loss import PolicyLossConfig


def _require(is_met: bool, name: str, rule: str, value: object, advice: str) -> None:
    if not is_met:
        raise ValueError(f"{name} must be {rule}, got {value!r}. {advice}")


@dataclass(frozen=True, kw_only=True, slots=True)
class OptimizerConfig:
    """Optimizer, learning rate schedule and gradient clipping."""

    kind: Literal["adamw", "sgd"] = "adamw"
    """AdamW, or plain SGD without momentum (for tests of exactness)."""
    lr: float
    """Peak learning rate."""
    betas: tuple[float, float] = (0.9, 0.95)
    """Decay of AdamW's running averages."""
    eps: float = 1e-8
    """AdamW's denominator term."""
    weight_decay: float = 0.0
    """Decoupled weight decay; never applied to parameters of fewer than two dimensions."""
    schedule: Literal["constant", "linear", "cosine"] = "constant"
    """Shape of the decay after the warm-up, from `lr` to `lr * min_lr_ratio`."""
    num_warmup_steps: int = 0
    """Optimizer steps of linear warm-up."""
    num_total_steps: int | None = None
    """Optimizer steps until the end of the decay; needed unless the schedule is constant."""
    min_lr_ratio: float = 0.0
    """Learning rate at the end of the decay, as a share of `lr`."""
    max_grad_norm: float | None = 1.0
    """Global gradient norm above which gradients are scaled down; None leaves them."""
    is_state_offloaded: bool = False
    """Keep AdamW's running averages in host memory, from where they come to the device for one
    parameter at a time: 8 bytes less of the device per trained weight of a rank, the same numbers."""

    def __post_init__(self) -> None:
        _require(self.kind in ("adamw", "sgd"), "kind", "'adamw' or 'sgd'", self.kind, "Pick one.")
        _require(
            math.isfinite(self.lr) and self.lr >= 0, "lr", "finite and >= 0", self.lr, "Try 1e-6."
        )
        _require(
            all(0 <= beta < 1 for beta in self.betas), "betas", "in [0, 1)", self.betas, "Try 0.9."
        )
        _require(self.eps > 0, "eps", "> 0", self.eps, "Try 1e-8.")
        _require(self.weight_decay >= 0, "weight_decay", ">= 0", self.weight_decay, "Use 0.")
        _require(
            self.schedule in ("constant", "linear", "cosine"),
            "schedule",
            "'constant', 'linear' or 'cosine'",
            self.schedule,
            "Pick one.",
        )
        _require(
            self.num_warmup_steps >= 0, "num_warmup_steps", ">= 0", self.num_warmup_steps, "Use 0."
        )
        _require(
            self.schedule == "constant" or (self.num_total_steps or 0) > self.num_warmup_steps,
            "num_total_steps",
            "above num_warmup_steps for a decaying schedule",
            self.num_total_steps,
            "Say how many optimizer steps the run has.",
        )
        _require(
            0 <= self.min_lr_ratio <= 1, "min_lr_ratio", "in [0, 1]", self.min_lr_ratio, "Use 0.1."
        )
        _require(
            self.max_grad_norm is None or self.max_grad_norm > 0,
            "max_grad_norm",
            "> 0 or None",
            self.max_grad_norm,
            "None switches clipping off.",
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class LossConfig(PolicyLossConfig):
    """Policy loss and its regularisers, and where its log-probs come from.

    Raises:
        PPOLossError: An option of the policy loss is out of its range.
        ValueError: The proximal policy does not fit the loss, or the temperature is not > 0.
    """

    use_decoupled_loss: bool = True
    """Clip current / proximal and weigh by proximal / behavior. False takes the proximal policy as
    the behavior policy too, so that nothing is weighed: plain PPO."""

    proximal_method: Literal["recompute", "loglinear", "metrics", "behavior"] = "recompute"
    """How the proximal log-probs come about: a forward pass at the start of the update, an
    interpolation without one, or the first with the error of the second reported. `behavior` takes
    the sampler's own log-probs; it is for plain PPO, as `loglinear` is for the decoupled loss."""

    temperature: float = 1.0
    """Sampling temperature of the behavior policy, applied to the trainer's logits alike."""

    masked_token_ids: tuple[int, ...] = ()
    """Ids that the sampler never draws, masked out of the trainer's log-softmax alike."""

    def __post_init__(self) -> None:
        PolicyLossConfig.__post_init__(self)
        last = "loglinear" if self.use_decoupled_loss else "behavior"
        methods = ("recompute", "metrics", last)
        _require(
            self.proximal_method in methods,
            "proximal_method",
            f"one of {methods} with use_decoupled_loss = {self.use_decoupled_loss}",
            self.proximal_method,
            "Use 'recompute'.",
        )
        _require(
            math.isfinite(self.temperature) and self.temperature > 0,
            "temperature",
            "finite and > 0",
            self.temperature,
            "Greedy text has no ratio.",
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class ActorConfig:
    """Everything that `FSDPActor` needs beside a model."""

    optimizer: OptimizerConfig
    """Optimizer and schedule."""
    loss: LossConfig = field(default_factory=LossConfig)
    """Policy loss."""
    token_budget: int = 16384
    """Largest cost of one micro-batch, in tokens that the model computes."""
    row_layout: Literal["shared_prefix", "packed", "padded"] = "shared_prefix"
    """How `collate` lays rows out, which says what a micro-batch costs: rows of one `prefix_id` in a
    line, the prefix once (and other rows in a line each, padded); all rows end to end; or padded."""
    num_mini_batches: int = 1
    """Optimizer steps of one pass over the rows."""
    num_epochs: int = 1
    """Passes over the rows in one update."""
    compute_dtype: Literal["float32", "bfloat16"] = "float32"
    """Dtype of the forward and backward pass; master weights and optimizer state are float32."""
    checkpointed_block_share: float = 0.0
    """Share of the blocks whose activations are computed again in the backward pass instead of kept,
    spread evenly over the model: time for memory."""
    is_compiled: bool = False
    """Compile each block with `torch.compile`; pays on a GPU after the first few batches."""
    frozen_modules: tuple[str, ...] = ()
    """Name prefixes of modules whose parameters stay as they are, such as the vision tower."""
    num_head_tokens: int = 4096
    """Trainable tokens whose logits are alive at once; more are recomputed in chunks."""
    publish_dtype: Literal["bfloat16", "float16", "float32"] = "bfloat16"
    """Dtype in which servers hold the weights."""
    publish_bucket_bytes: int = 2**30
    """Largest bucket of a publish."""
    is_publish_overlapped: bool = True
    """Gather the next bucket while one is broadcast; costs the memory of a second bucket."""
    save_timeout_s: float = 3600.0
    """Limit of writing one checkpoint, in seconds: ranks that are done wait so long for the others."""
    seed: int = 0
    """Seed of the order of rows in mini-batches."""

    def __post_init__(self) -> None:
        if not self.save_timeout_s > 0:
            raise ValueError(
                f"save_timeout_s must be > 0, got {self.save_timeout_s}. Typical value: 3600."
            )
        counts = ("token_budget", "num_mini_batches", "num_epochs", "num_head_tokens")
        for name in (*counts, "publish_bucket_bytes"):
            value: int = getattr(self, name)
            _require(value >= 1, name, ">= 1", value, "Give a positive number.")
        _require(
            0 <= self.checkpointed_block_share <= 1,
            "checkpointed_block_share",
            "in [0, 1]",
            self.checkpointed_block_share,
            "1 recomputes every block, 0 none.",
        )
        _require(
            self.compute_dtype in ("float32", "bfloat16"),
            "compute_dtype",
            "'float32' or 'bfloat16'",
            self.compute_dtype,
            "Use bfloat16 on a GPU.",
        )
        layouts = ("shared_prefix", "packed", "padded")
        _require(
            self.row_layout in layouts,
            "row_layout",
            f"one of {layouts}",
            self.row_layout,
            "It must be the one that collate makes.",
        )
