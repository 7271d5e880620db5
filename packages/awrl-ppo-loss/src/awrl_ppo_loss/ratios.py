"""Importance ratios between two policies, from their per-token log-probs, without gradient.

Invariants:
* a masked position has ratio 0, whatever its inputs hold;
* a ratio is bounded by `MAX_RATIO`, where its derivative is 0;
* an unmasked NaN or infinity marks broken data: it stays in `log_sums`, which `surrogate_loss` lets
  into the loss and the gradient, although the bound would have made an ordinary ratio of it.

Legend: `N` positions, flattened; `K` ratios, held as rows of one tensor so that two ratios take
hardly more kernels than one.
"""

import math
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from awrl_ppo_loss.selection import Selection

MAX_RATIO = math.exp(20)
"""Bound of a ratio: 4.9e8, so that the product of two, its square and a sum over millions of tokens
stay finite in float32, whose exp overflows at a log-ratio of 88.7."""

WeightAction = Literal["mask", "clamp"]
"""What a bound does to a staleness weight outside it: `mask` sets it to 0, `clamp` to the bound."""


@dataclass(frozen=True, slots=True)
class Ratios:
    """Ratios of policies per token; row 0 is the update ratio, row 1 the staleness ratio."""

    values: Tensor
    """`[K, N]`, 0 at masked positions."""
    log_sums: Tensor
    """Float64 `[K]`: sums of the log-ratios, not finite if an unmasked one is not."""

    @property
    def update(self) -> Tensor:
        """Current over proximal, `[N]`; over behavior for a coupled loss."""
        return self.values[0]

    @property
    def staleness(self) -> Tensor:
        """Proximal over behavior, `[N]`."""
        return self.values[1]


def log_ratios(logprobs: tuple[Tensor, ...], selection: Selection) -> Tensor:
    """Return the log-ratio of each policy over the next one, `[K, N]`, 0 at masked positions.

    Args:
        logprobs: `K + 1` tensors `[N]` of one dtype.
        selection: Trainable positions.
    """
    logs = logprobs[0].new_empty(len(logprobs) - 1, logprobs[0].numel())
    for row, numerator, denominator in zip(logs, logprobs, logprobs[1:], strict=False):
        torch.sub(numerator, denominator, out=row)
    return selection.keep_(logs)


def bounded_ratios(logs: Tensor, selection: Selection) -> Ratios:
    """Return the ratios of log-ratios `[K, N]`, which are overwritten."""
    log_sums = logs.sum(dim=1, dtype=torch.float64)
    return Ratios(selection.keep_(logs.exp_().clamp_(max=MAX_RATIO)), log_sums)


def token_ratios(logprobs: tuple[Tensor, ...], selection: Selection) -> Ratios:
    """Return the ratio of each policy over the next one, per token."""
    return bounded_ratios(log_ratios(logprobs, selection), selection)


@dataclass(frozen=True, slots=True)
class StalenessWeight:
    """What multiplies every token's loss for the age of the policy that sampled it."""

    value: Tensor
    """`[N]`: the staleness ratio after its bounds."""
    is_bounded: Tensor | None
    """Bool `[N]`, where a bound acted; `None` without bounds."""


def staleness_weight(
    ratio: Tensor,
    selection: Selection,
    *,
    floor: float | None = None,
    cap: float | None = None,
    action: WeightAction = "mask",
) -> StalenessWeight:
    """Return the weight `stop_gradient(exp(p - b))`, after its bounds if there are any.

    Args:
        ratio: Proximal over behavior, `[N]`.
        selection: Trainable positions.
        floor: Smallest weight kept; `None` keeps all.
        cap: Largest weight kept; `None` keeps all.
        action: What happens to a weight outside.
    """
    if cap is None and floor is None:
        return StalenessWeight(ratio, None)
    is_bounded = torch.zeros_like(selection.mask)
    if cap is not None:
        is_bounded |= ratio > cap
    if floor is not None:
        is_bounded |= ratio < floor
    is_bounded &= selection.mask
    if action == "clamp":
        return StalenessWeight(selection.keep(ratio.clamp(min=floor, max=cap)), is_bounded)
    return StalenessWeight(ratio.masked_fill(is_bounded, 0.0), is_bounded)
