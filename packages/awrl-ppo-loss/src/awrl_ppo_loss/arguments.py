"""Refusal of wrong arguments by name, before any arithmetic.

Legend: `B` sequences, `T` tokens. Every per-token tensor of this package is `[B, T]`, or packed
`[T]`. Nothing here looks at values on an accelerator, so that no check waits for the device.
"""

import math
from collections.abc import Collection, Mapping

import torch
from torch import Tensor

from awrl_ppo_loss.errors import ArgumentError, ArgumentTypeError, OptionError

INTEGER_DTYPES = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)
"""Dtypes that can hold ids, labels or versions."""


def require_mask(mask: object) -> Tensor:
    """Return the mask once it is known to be a bool tensor `[B, T]` or `[T]`.

    Raises:
        ArgumentTypeError: The mask is not a tensor or not of dtype bool.
        ArgumentError: The mask has no token dimension or more than two dimensions.
    """
    if not isinstance(mask, Tensor):
        raise ArgumentTypeError(
            f"mask must be a tensor, got {type(mask).__name__}. Pass torch.tensor(..., dtype=bool)."
        )
    if mask.dtype != torch.bool:
        raise ArgumentTypeError(
            f"mask must be of dtype torch.bool, got {mask.dtype}. Pass `mask.bool()`, and check "
            "that advantages and mask are not swapped."
        )
    if mask.dim() not in (1, 2):
        raise ArgumentError(
            f"mask must be of shape [B, T] or packed [T], got {list(mask.shape)}. Reshape it."
        )
    return mask


def require_tokens(name: str, value: object, mask: Tensor) -> Tensor:
    """Return `value` once it is known to be a floating tensor shaped and placed like the mask.

    Raises:
        ArgumentTypeError: The value is not a floating tensor.
        ArgumentError: Its shape or its device differs from the mask's.
    """
    if not isinstance(value, Tensor):
        raise ArgumentTypeError(
            f"{name} must be a tensor, got {type(value).__name__}. Pass a floating tensor."
        )
    if not value.is_floating_point():
        raise ArgumentTypeError(
            f"{name} must be of a floating dtype, got {value.dtype}. Check the order of arguments."
        )
    require_shape(name, value, mask)
    return value


def require_shape(name: str, value: Tensor, mask: Tensor) -> None:
    """Refuse a tensor whose shape or device differs from the mask's.

    Raises:
        ArgumentError: Shape or device differs.
    """
    if value.shape != mask.shape:
        raise ArgumentError(
            f"{name} must be of the mask's shape {list(mask.shape)}, got {list(value.shape)}. "
            "Expand values of a sequence to its tokens first: nothing is broadcast."
        )
    if value.device != mask.device:
        raise ArgumentError(
            f"{name} must be on the mask's device {mask.device}, got {value.device}. Move it."
        )


def require_integers(name: str, value: object) -> Tensor:
    """Return `value` once it is known to be an integer tensor.

    Raises:
        ArgumentTypeError: The value is not an integer tensor.
    """
    if not isinstance(value, Tensor) or value.dtype not in INTEGER_DTYPES:
        got = value.dtype if isinstance(value, Tensor) else type(value).__name__
        raise ArgumentTypeError(
            f"{name} must be a tensor of an integer dtype, got {got}. Pass `.long()`."
        )
    return value


def require_gradient_owner(current: Tensor, others: Mapping[str, Tensor]) -> None:
    """Refuse a call in which only a constant argument carries a gradient: they are swapped.

    Raises:
        ArgumentError: `current_logprobs` has no gradient while one of the others has.
    """
    if current.requires_grad or not torch.is_grad_enabled():
        return
    for name, value in others.items():
        if value.requires_grad:
            raise ArgumentError(
                f"{name} must be a constant when current_logprobs has no gradient, got a tensor "
                "that requires grad. The two look swapped."
            )


def require_choice(name: str, value: object, choices: Collection[str]) -> None:
    """Refuse a value outside a closed set.

    Raises:
        OptionError: The value is not one of the choices.
    """
    if not isinstance(value, str) or value not in choices:
        allowed = ", ".join(repr(choice) for choice in choices)
        raise OptionError(f"{name} must be one of {allowed}, got {value!r}. Check the spelling.")


def require_number(
    name: str,
    value: object,
    *,
    above: float | None = None,
    at_least: float | None = None,
    at_most: float | None = None,
    below: float | None = None,
) -> None:
    """Refuse what is not a finite number within the bounds.

    Raises:
        OptionError: The value is not a finite number or lies outside the bounds.
    """
    bounds = {">": above, ">=": at_least, "<=": at_most, "<": below}
    rule = " and ".join(f"{sign} {bound:g}" for sign, bound in bounds.items() if bound is not None)
    message = f"{name} must be a finite number {rule}, got {value!r}. Change it or leave it out."
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise OptionError(message)
    is_low = (above is not None and value <= above) or (at_least is not None and value < at_least)
    is_high = (below is not None and value >= below) or (at_most is not None and value > at_most)
    if is_low or is_high:
        raise OptionError(message)
