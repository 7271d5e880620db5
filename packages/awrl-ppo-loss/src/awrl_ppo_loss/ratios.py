"""Importance ratios between two policies, from their per-token log-probs, without gradient.

Invariants:
* a masked position has ratio 0, whatever its inputs hold;
* a finite log-ratio is bounded by `LOG_RATIO_BOUND` before `exp`, beyond which its derivative is 0;
* an unmasked NaN or infinity marks broken data: it stays in `log_sum`, which `surrogate_loss` lets
  into the loss and the gradient, although the bound would have made an ordinary ratio of it.

Legend: `N` positions, flattened.
"""

import math
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from awrl_ppo_loss.selection import Selection, upcast

LOG_RATIO_BOUND = 20.0
"""Bound of a log-ratio: exp(20) is 4.9e8, so that the product of two ratios, its square and a sum
over millions of tokens stay finite in float32, whose exp overflows at 88.7."""

RATIO_CEILING = math.exp(LOG_RATIO_BOUND) * (1 - 1e-4)
"""Ratios from here on have met the bound: their derivative is 0. Just below exp(20), which float32
rounds."""

WeightAction = Literal["mask", "clamp"]
"""What a bound does to a staleness weight outside it: `mask` sets it to 0, `clamp` to the bound."""


@dataclass(frozen=True, slots=True)
class Ratio:
    """A policy over another one, per token."""

    value: Tensor
    """`[N]`, 0 at masked positions."""
    log_sum: Tensor
    """Float64 scalar: sum of the unbounded log-ratios, not finite if an unmasked one is not."""


def token_ratio(numerator: Tensor, denominator: Tensor, selection: Selection) -> Ratio:
    """Return `exp(numerator - denominator)` of log-probs `[N]`."""
    difference = selection.keep(upcast(numerator) - upcast(denominator))
    log_sum = difference.sum(dtype=torch.float64)
    value = difference.clamp_(-LOG_RATIO_BOUND, LOG_RATIO_BOUND).exp_()
    return Ratio(selection.keep(value), log_sum)


@dataclass(frozen=True, slots=True)
class StalenessWeight:
    """What multiplies every token's loss for the age of the policy that sampled it."""

    ratio: Ratio
    """Proximal over behavior, before any bound."""
    weight: Tensor
    """`[N]`: the ratio after the bounds."""
    is_bounded: Tensor | None
    """Bool `[N]`, where a bound acted; `None` without bounds."""


def staleness_weight(
    ratio: Ratio,
    selection: Selection,
    *,
    floor: float | None = None,
    cap: float | None = None,
    action: WeightAction = "mask",
) -> StalenessWeight:
    """Return the weight `stop_gradient(exp(p - b))`, after the bounds if there are any.

    Args:
        ratio: Proximal over behavior.
        selection: Trainable positions.
        floor: Smallest weight kept; `None` keeps all.
        cap: Largest weight kept; `None` keeps all.
        action: What happens to a weight outside.
    """
    if cap is None and floor is None:
        return StalenessWeight(ratio, ratio.value, None)
    is_bounded = torch.zeros_like(selection.mask)
    if cap is not None:
        is_bounded |= ratio.value > cap
    if floor is not None:
        is_bounded |= ratio.value < floor
    is_bounded &= selection.mask
    if action == "clamp":
        weight = selection.keep(ratio.value.clamp(min=floor, max=cap))
    else:
        weight = ratio.value.masked_fill(is_bounded, 0.0)
    return StalenessWeight(ratio, weight, is_bounded)
