"""Optimizer step over sharded parameters: schedule, global norm, agreed skip.

Invariants:

* A step is taken by every rank or by none: the gradient norm is that of the whole model, the same
  number everywhere, and a non-finite one leaves parameters and optimizer state as they are.
* The learning rate is a function of the number of steps taken, so nothing else needs saving.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.nn.utils import clip_grads_with_norm_, get_total_norm

from awrl_trainer.config import OptimizerConfig


class StepResult(NamedTuple):
    """What one optimizer step did."""

    grad_norm: float
    """Global gradient norm before clipping."""
    lr: float
    """Learning rate that was, or would have been, used."""
    is_skipped: bool
    """True when the norm was not finite; nothing changed then."""


def learning_rate(config: OptimizerConfig, step: int) -> float:
    """Return the learning rate of the optimizer step that comes after `step` others."""
    if step < config.num_warmup_steps:
        return config.lr * (step + 1) / config.num_warmup_steps
    if config.schedule == "constant" or config.num_total_steps is None:
        return config.lr
    span = config.num_total_steps - config.num_warmup_steps
    share = min(1.0, (step - config.num_warmup_steps) / span)
    shape = 1 - share if config.schedule == "linear" else 0.5 * (1 + math.cos(math.pi * share))
    return config.lr * (config.min_lr_ratio + (1 - config.min_lr_ratio) * shape)


class SteppedOptimizer:
    """AdamW or SGD with a schedule by step count, clipping, and the agreed skip.

    Args:
        module: The sharded module; its parameters that need gradients are optimized.
        config: Kind and numbers.
    """

    def __init__(self, module: nn.Module, config: OptimizerConfig) -> None:
        self.config = config
        """Kind and numbers, as given."""
        self._parameters = [p for p in module.parameters() if p.requires_grad]
        groups = [
            {
                "params": [p for p in self._parameters if p.dim() > 1],
                "weight_decay": config.weight_decay,
            },
            {"params": [p for p in self._parameters if p.dim() <= 1], "weight_decay": 0.0},
        ]
        groups = [entry for entry in groups if entry["params"]]
        if config.kind == "adamw":
            self.inner: torch.optim.Optimizer = torch.optim.AdamW(
                groups, lr=config.lr, betas=config.betas, eps=config.eps, fused=True
            )
        else:
            self.inner = torch.optim.SGD(groups, lr=config.lr)
        self.num_steps = 0

    def zero_state(self, parameter: nn.Parameter) -> dict[str, Tensor]:
        """Return a new state of a parameter as before its first step; empty where it has none."""
        if self.config.kind != "adamw" or not parameter.requires_grad:
            return {}
        return {
            "step": torch.zeros((), dtype=torch.float32, device=parameter.device),
            "exp_avg": torch.zeros_like(parameter.detach()),
            "exp_avg_sq": torch.zeros_like(parameter.detach()),
        }

    def zero_grad(self) -> None:
        """Drop all gradients."""
        self.inner.zero_grad(set_to_none=True)

    def step(self) -> StepResult:
        """Clip, then step unless the global norm is not finite; drop the gradients."""
        total = get_total_norm([p.grad for p in self._parameters if p.grad is not None])
        if isinstance(total, DTensor):
            total = total.full_tensor()
        lr = learning_rate(self.config, self.num_steps)
        is_skipped = not math.isfinite(float(total))
        if not is_skipped:
            if self.config.max_grad_norm is not None:
                clip_grads_with_norm_(self._parameters, self.config.max_grad_norm, total)
            for entry in self.inner.param_groups:
                entry["lr"] = lr
            self.num_steps += 1  # before: a step that fails half way has changed weights too
            self.inner.step()
        self.zero_grad()
        return StepResult(grad_norm=float(total), lr=lr, is_skipped=is_skipped)
