"""Importance ratios between two policies, from their per-token log-probs.

Invariants:
* a masked position has log-ratio exactly 0 and passes no gradient, whatever its inputs hold: the
  choice is made before `exp`, because 0 * inf is NaN in the backward pass;
* a finite log-ratio is bounded by `LOG_RATIO_BOUND` before `exp`, beyond which its gradient is 0;
* an unmasked NaN or infinity gives NaN: it marks broken data and must stay visible.

Legend: `B` sequences, `T` tokens.
"""

from dataclasses import dataclass
from typing import Literal, get_args

import torch
from torch import Tensor

from awrl_ppo_loss.arguments import require_choice, require_number
from awrl_ppo_loss.errors import OptionError

LOG_RATIO_BOUND = 20.0
"""Bound of a log-ratio: exp(20) is 4.9e8, so that the product of two ratios, its square and a sum
over millions of tokens stay finite in float32, whose exp overflows at 88.7."""

WeightAction = Literal["mask", "clamp"]
"""What a cap does to a staleness weight above it: `mask` sets it to 0, `clamp` to the cap."""


def upcast(logprobs: Tensor) -> Tensor:
    """Return log-probs in float32 at least: a bfloat16 difference is no ratio."""
    return logprobs if logprobs.dtype in (torch.float32, torch.float64) else logprobs.float()


def masked_log_ratio(numerator: Tensor, denominator: Tensor, mask: Tensor) -> Tensor:
    """Return `numerator - denominator` of log-probs, 0 at masked positions, bounded.

    Args:
        numerator: Log-probs `[B, T]` or `[T]`; the gradient flows through both.
        denominator: Log-probs of the same shape.
        mask: Bool of the same shape.

    Returns:
        Float32 (float64 if an input is) of the same shape, within +-`LOG_RATIO_BOUND`, or NaN
        where an unmasked input is NaN or infinite.
    """
    difference = torch.where(mask, upcast(numerator) - upcast(denominator), 0.0)
    # x - x is 0, and NaN for an infinity that clamp would have turned into an ordinary ratio.
    return difference.clamp(-LOG_RATIO_BOUND, LOG_RATIO_BOUND) + (difference - difference)


@dataclass(frozen=True, slots=True)
class StalenessWeight:
    """The weight of every token for the age of the policy that sampled it, without gradient."""

    log_ratio: Tensor
    """`p - b`, 0 at masked positions."""
    ratio: Tensor
    """`exp(p - b)` before any cap."""
    weight: Tensor
    """What multiplies the loss: the ratio after the cap."""
    is_capped: Tensor | None
    """Where the cap acted; `None` without a cap."""


def require_cap(cap: float | None, action: str) -> None:
    """Refuse a cap that is not > 0, or an unknown action.

    Raises:
        OptionError: One of the two is wrong.
    """
    require_choice("behav_imp_weight_action", action, get_args(WeightAction))
    if cap is not None:
        require_number("behav_imp_weight_cap", cap, above=0)


def require_clip(clip_low: float, clip_high: float, dual_clip: float | None) -> None:
    """Refuse clip bounds outside `0 <= clip_low < 1`, `clip_high >= 0`, `dual_clip > 1 + clip_high`.

    Raises:
        OptionError: One of the three is wrong.
    """
    require_number("clip_low", clip_low, at_least=0, at_most=1)
    require_number("clip_high", clip_high, at_least=0)
    if dual_clip is not None:
        require_number("dual_clip", dual_clip, above=1)
        if dual_clip <= 1 + clip_high:
            raise OptionError(
                f"dual_clip must be > 1 + clip_high = {1 + clip_high:g}, got {dual_clip!r}. "
                "It bounds the ratio of tokens with a negative advantage; 3 is usual."
            )


@torch.no_grad()
def staleness_weight(
    proximal_logprobs: Tensor,
    behavior_logprobs: Tensor,
    mask: Tensor,
    *,
    cap: float | None = None,
    floor: float | None = None,
    action: WeightAction = "mask",
) -> StalenessWeight:
    """Return `w = stop_gradient(exp(p - b))`, after the cap if there is one.

    Args:
        proximal_logprobs: `[B, T]` or `[T]`.
        behavior_logprobs: Same shape.
        mask: Bool of the same shape.
        cap: Largest weight kept; `None` keeps all.
        floor: Smallest weight kept; `None` keeps all.
        action: `mask` gives tokens outside weight 0, `clamp` moves their weight to the bound.
    """
    log_ratio = masked_log_ratio(proximal_logprobs, behavior_logprobs, mask)
    ratio = log_ratio.exp()
    if cap is None and floor is None:
        return StalenessWeight(log_ratio, ratio, ratio, None)
    is_capped = torch.zeros_like(mask)
    if cap is not None:
        is_capped = is_capped | (ratio > cap)
    if floor is not None:
        is_capped = is_capped | (ratio < floor)
    is_capped = is_capped & mask
    clamped = ratio.clamp(min=floor, max=cap)
    weight = clamped if action == "clamp" else torch.where(is_capped, 0.0, ratio)
    return StalenessWeight(log_ratio, ratio, weight, is_capped)
