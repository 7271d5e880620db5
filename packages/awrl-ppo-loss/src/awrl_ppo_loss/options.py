"""Ranges of the options that the losses share."""

from typing import get_args

from awrl_ppo_loss.arguments import require_choice, require_number
from awrl_ppo_loss.errors import OptionError
from awrl_ppo_loss.ratios import WeightAction


def require_clip(clip_low: float, clip_high: float, dual_clip: float | None = None) -> None:
    """Refuse bounds outside `0 <= clip_low <= 1`, `clip_high >= 0`, `dual_clip > 1 + clip_high`.

    Raises:
        OptionError: One of the three is wrong.
    """
    require_number("clip_low", clip_low, at_least=0, at_most=1)
    require_number("clip_high", clip_high, at_least=0)
    if dual_clip is None:
        return
    require_number("dual_clip", dual_clip, above=1)
    if dual_clip <= 1 + clip_high:
        raise OptionError(
            f"dual_clip must be > 1 + clip_high = {1 + clip_high:g}, got {dual_clip!r}. "
            "It bounds the ratio of tokens with a negative advantage; 3 is usual."
        )


def require_cap(cap: float | None, action: str) -> None:
    """Refuse a cap that is not > 0, or an unknown action.

    Raises:
        OptionError: One of the two is wrong.
    """
    require_choice("behav_imp_weight_action", action, get_args(WeightAction))
    if cap is not None:
        require_number("behav_imp_weight_cap", cap, above=0)


def require_weight_range(weight_low: float, weight_high: float) -> None:
    """Refuse bounds of a staleness weight outside `0 <= weight_low <= 1 <= weight_high`.

    Raises:
        OptionError: One of the two is wrong.
    """
    require_number("weight_low", weight_low, at_least=0, at_most=1)
    require_number("weight_high", weight_high, at_least=1)
