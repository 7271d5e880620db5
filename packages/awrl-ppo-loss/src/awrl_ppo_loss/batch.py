"""The one argument of the loss: what is known of each token of a micro-batch.

Legend: `B` sequences, `T` tokens.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

import torch
from torch import Tensor

from awrl_ppo_loss.arguments import require_floats, require_integers, require_mask
from awrl_ppo_loss.errors import PPOLossError

_DIFFERENTIABLE = ("current_logprobs", "entropy")


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class PolicyBatch:
    """Tensors of one shape, `[B, T]` or packed `[T]`, on one device; floating where not said.

    Masked positions may hold anything, NaN included: they change neither loss nor gradient.

    Raises:
        PPOLossError: A shape, dtype or device is wrong, or arguments look swapped.
    """

    current_logprobs: Tensor
    """Of the policy that is being updated. Only these (and `entropy`) receive a gradient."""
    behavior_logprobs: Tensor
    """Of the policy that sampled each token."""
    advantages: Tensor
    """How much better than expected each token's action was."""
    mask: Tensor
    """Bool, true at trainable tokens."""
    proximal_logprobs: Tensor | None = None
    """Of the policy at the start of this update. `None` takes the behavior policy in its place,
    which is plain (coupled) PPO: one ratio current / behavior, and weights of 1."""
    reference_logprobs: Tensor | None = None
    """Of a frozen policy that training shall stay close to; needed with a KL coefficient."""
    entropy: Tensor | None = None
    """Of the current policy's distribution at each token; needed with an entropy coefficient."""
    sequence_ids: Tensor | None = None
    """Integers, equal within a sequence; `None` takes the rows of `[B, T]`."""

    def __post_init__(self) -> None:
        mask = require_mask(self.mask)
        for field in fields(self):
            value = getattr(self, field.name)
            if field.name == "mask" or value is None:
                continue
            if field.name == "sequence_ids":
                require_integers(field.name, value, mask)
                continue
            require_floats(field.name, value, mask)
            # A gradient on a constant alone shows that it stands in the place of the current ones.
            is_swapped = value.requires_grad and not self.current_logprobs.requires_grad
            if is_swapped and torch.is_grad_enabled() and field.name not in _DIFFERENTIABLE:
                raise PPOLossError(
                    f"{field.name} must be a constant when current_logprobs has no gradient, got a "
                    "tensor that requires grad. The two look swapped."
                )


def upcast(values: Tensor) -> Tensor:
    """Return values in float32 at least: a bfloat16 difference of log-probs is no ratio."""
    return values if values.dtype == torch.float64 else values.float()
