"""Refusal of wrong arguments by name, before any arithmetic.

Values on an accelerator are never looked at, so that no check waits for the device.
"""

from __future__ import annotations

import math
from collections.abc import Collection

import torch
from torch import Tensor

from awrl_ppo_loss.errors import PPOLossError

INTEGER_DTYPES = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)
"""Dtypes that can hold ids, labels or versions."""


def require_mask(mask: object) -> Tensor:
    """Return the mask once it is known to be a bool tensor `[B, T]` or `[T]`."""
    if not isinstance(mask, Tensor):
        raise PPOLossError(
            f"mask must be a tensor, got {type(mask).__name__}. Pass torch.tensor(..., dtype=bool)."
        )
    if mask.dtype != torch.bool:
        raise PPOLossError(
            f"mask must be of dtype torch.bool, got {mask.dtype}. Pass `mask.bool()`, and check "
            "that advantages and mask are not swapped."
        )
    if mask.dim() not in (1, 2):
        raise PPOLossError(
            f"mask must be of shape [B, T] or packed [T], got {list(mask.shape)}. Reshape it."
        )
    return mask


def require_floats(name: str, value: object, mask: Tensor) -> Tensor:
    """Return `value` once it is known to be a floating tensor shaped and placed like the mask."""
    if not isinstance(value, Tensor):
        raise PPOLossError(
            f"{name} must be a tensor, got {type(value).__name__}. Pass a floating tensor."
        )
    if not value.is_floating_point():
        raise PPOLossError(
            f"{name} must be of a floating dtype, got {value.dtype}. Check the order of arguments."
        )
    return _require_place(name, value, mask)


def require_integers(name: str, value: object, mask: Tensor) -> Tensor:
    """Return `value` once it is known to be an integer tensor shaped and placed like the mask."""
    if not isinstance(value, Tensor) or value.dtype not in INTEGER_DTYPES:
        got = value.dtype if isinstance(value, Tensor) else type(value).__name__
        raise PPOLossError(
            f"{name} must be a tensor of an integer dtype, got {got}. Pass `.long()`."
        )
    return _require_place(name, value, mask)


def _require_place(name: str, value: Tensor, mask: Tensor) -> Tensor:
    if value.shape != mask.shape:
        raise PPOLossError(
            f"{name} must be of the mask's shape {list(mask.shape)}, got {list(value.shape)}. "
            "Expand values of a sequence to its tokens first: nothing is broadcast."
        )
    if value.device != mask.device:
        raise PPOLossError(
            f"{name} must be on the mask's device {mask.device}, got {value.device}. Move it."
        )
    return value


def require_choice(name: str, value: object, choices: Collection[str]) -> None:
    """Refuse a value outside a closed set."""
    if not isinstance(value, str) or value not in choices:
        allowed = ", ".join(repr(choice) for choice in choices)
        raise PPOLossError(f"{name} must be one of {allowed}, got {value!r}. Check the spelling.")


def require_number(
    name: str,
    value: object,
    *,
    above: float | None = None,
    at_least: float | None = None,
    at_most: float | None = None,
) -> None:
    """Refuse what is not a finite number within the bounds."""
    bounds = {">": above, ">=": at_least, "<=": at_most}
    rule = " and ".join(f"{sign} {bound:g}" for sign, bound in bounds.items() if bound is not None)
    message = f"{name} must be a finite number {rule}, got {value!r}. Change it or leave it out."
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise PPOLossError(message)
    is_low = (above is not None and value <= above) or (at_least is not None and value < at_least)
    if is_low or (at_most is not None and value > at_most):
        raise PPOLossError(message)
