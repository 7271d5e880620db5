"""Optimizer step over sharded parameters: schedule, global norm, agreed skip.

Invariants:

* A step is taken by every rank or by none: the gradient norm is that of the whole model, the same
  number everywhere, and a non-finite one leaves parameters and optimizer state as they are.
* Where AdamW's averages wait in host memory, updates are bit for bit those without.
* The learning rate is a function of the number of steps taken, so nothing else needs saving.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.nn.utils import clip_grads_with_norm_, get_total_norm
from torch.optim.adamw import adamw

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


class _HostAdamW(torch.optim.AdamW):
    """AdamW whose averages lie in host memory, and on the device for one parameter at a time.

    FSDP2's own offload policy moves weights and gradients too and updates on the CPU: weights would
    have to come back for every forward pass and every publish.
    """

    def zero_state(self, parameter: nn.Parameter) -> dict[str, Tensor]:
        """Return averages as before the first step, in memory from where copies need not wait."""
        value = parameter.detach()
        is_pinned = value.device.type == "cuda"

        def zeros() -> Tensor:
            return torch.zeros_like(value, device="cpu", pin_memory=is_pinned)

        return {
            "step": torch.zeros((), dtype=torch.float32, device=value.device),
            "exp_avg": zeros(),
            "exp_avg_sq": zeros(),
        }

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Update every parameter that has a gradient."""
        del closure
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self._step_one(parameter, group)
        if torch.cuda.is_available():
            torch.cuda.current_stream().synchronize()  # whoever reads averages finds the new ones

    def _step_one(self, parameter: nn.Parameter, group: dict[str, Any]) -> None:
        state: dict[str, Tensor] = self.state[parameter]
        if not state:
            state.update(self.zero_state(parameter))
        assert parameter.grad is not None
        weight, gradient = _local(parameter.detach()), _local(parameter.grad)
        waiting = [_local(state[name]) for name in ("exp_avg", "exp_avg_sq")]
        averages = [value.to(weight.device, non_blocking=True) for value in waiting]
        adamw(
            [weight],
            [gradient],
            averages[:1],
            averages[1:],
            [],
            [state["step"]],
            fused=True,
            amsgrad=False,
            beta1=group["betas"][0],
            beta2=group["betas"][1],
            lr=group["lr"],
            weight_decay=group["weight_decay"],
            eps=group["eps"],
            maximize=False,
        )
        for value, new in zip(waiting, averages, strict=True):
            value.copy_(new, non_blocking=True)


def _local(tensor: Tensor) -> Tensor:
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


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
            kind = _HostAdamW if config.is_state_offloaded else torch.optim.AdamW
            self.inner: torch.optim.Optimizer = kind(
                groups, lr=config.lr, betas=config.betas, eps=config.eps, fused=True
            )
        else:
            self.inner = torch.optim.SGD(groups, lr=config.lr)
        self.num_steps = 0

    def zero_state(self, parameter: nn.Parameter) -> dict[str, Tensor]:
        """Return a new state of a parameter as before its first step; empty where it has none."""
        if self.config.kind != "adamw" or not parameter.requires_grad:
            return {}
        if isinstance(self.inner, _HostAdamW):
            return self.inner.zero_state(parameter)
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
