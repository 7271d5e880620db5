"""Optimizer step over sharded parameters: schedule, global norm, agreed skip.

Invariants:

* The gradient norm is that of the whole model: squares are summed over shards and ranks.
* A step is taken by every rank or by none: the norm is the same number everywhere, and a
  non-finite one leaves parameters and optimizer state as they are.
* The learning rate is a function of the number of steps taken, so nothing else needs saving.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

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
    """Return the learning rate of the optimizer step with this index.

    Args:
        config: Peak, warm-up and decay.
        step: Steps taken before, >= 0.
    """
    if step < config.num_warmup_steps:
        return config.lr * (step + 1) / config.num_warmup_steps
    if config.schedule == "constant" or config.num_total_steps is None:
        return config.lr
    span = config.num_total_steps - config.num_warmup_steps
    share = min(1.0, (step - config.num_warmup_steps) / span)
    shape = 1 - share if config.schedule == "linear" else 0.5 * (1 + math.cos(math.pi * share))
    return config.lr * (config.min_lr_ratio + (1 - config.min_lr_ratio) * shape)


def global_grad_norm(gradients: list[Tensor], group: dist.ProcessGroup | None) -> Tensor:
    """Return the Euclidean norm over all shards of all ranks, a float64 scalar.

    Args:
        gradients: This rank's shards, without padding.
        group: The ranks that hold the other shards; None when there are none.
    """
    device = gradients[0].device if gradients else torch.device("cpu")
    total = torch.zeros((), dtype=torch.float64, device=device)
    if gradients:
        total += torch.nn.utils.get_total_norm(gradients).double().square()
    if group is not None and dist.get_world_size(group) > 1:
        dist.all_reduce(total, group=group)
    return total.sqrt()


class SteppedOptimizer:
    """AdamW or SGD with a schedule by step count, clipping, and the agreed skip.

    Args:
        module: The sharded module; its parameters that need gradients are optimized.
        config: Kind and numbers.
        group: Process group of the data-parallel ranks.
    """

    def __init__(
        self, module: nn.Module, config: OptimizerConfig, group: dist.ProcessGroup | None
    ) -> None:
        self._config = config
        self._group = group
        self._parameters = [p for p in module.parameters() if p.requires_grad]
        decayed = [p for p in self._parameters if p.dim() > 1]
        plain = [p for p in self._parameters if p.dim() <= 1]
        groups = [
            {"params": decayed, "weight_decay": config.weight_decay},
            {"params": plain, "weight_decay": 0.0},
        ]
        groups = [entry for entry in groups if entry["params"]]
        if config.kind == "adamw":
            self.inner: torch.optim.Optimizer = torch.optim.AdamW(
                groups, lr=config.lr, betas=config.betas, eps=config.eps, fused=True
            )
        else:
            self.inner = torch.optim.SGD(groups, lr=config.lr)
        self.num_steps = 0

    def zero_grad(self) -> None:
        """Drop all gradients."""
        self.inner.zero_grad(set_to_none=True)

    def step(self) -> StepResult:
        """Clip, then step unless the global norm is not finite; drop the gradients.

        Returns:
            Norm, learning rate, and whether the step was skipped.
        """
        gradients = [_local(p.grad) for p in self._parameters if p.grad is not None]
        norm = float(global_grad_norm(gradients, self._group))
        lr = learning_rate(self._config, self.num_steps)
        is_skipped = not math.isfinite(norm)
        if not is_skipped:
            limit = self._config.max_grad_norm
            if limit is not None and norm > limit:
                for gradient in gradients:
                    gradient.mul_(limit / norm)
            for entry in self.inner.param_groups:
                entry["lr"] = lr
            self.inner.step()
            self.num_steps += 1
        self.zero_grad()
        return StepResult(grad_norm=norm, lr=lr, is_skipped=is_skipped)


def _local(gradient: Tensor) -> Tensor:
    return gradient.to_local() if isinstance(gradient, DTensor) else gradient
