"""Where the proximal log-probs of the decoupled loss come from.

Invariants:
* proximal log-probs never carry a gradient;
* a token sampled by the newest version has proximal == behavior under `loglinear`;
* versions are those of the *token* they stand beside: a trainable token whose version is negative
  or newer than the proximal version is refused, because it shows that labels slipped by one.

Legend: `B` sequences, `T` tokens.
"""

from dataclasses import dataclass
from enum import StrEnum

import torch
from torch import Tensor

from awrl_ppo_loss.arguments import (
    require_integers,
    require_mask,
    require_shape,
    require_tokens,
)
from awrl_ppo_loss.errors import ArgumentError, OptionError
from awrl_ppo_loss.metrics import NUM_TOKENS, token_means
from awrl_ppo_loss.selection import upcast


class ProximalMethod(StrEnum):
    """How the proximal log-probs of a batch are obtained."""

    RECOMPUTE = "recompute"
    """One forward pass without gradient at the start of the update."""
    LOGLINEAR = "loglinear"
    """No forward pass: interpolated between behavior and current log-probs by token version."""
    METRICS = "metrics"
    """Recompute, and report how far loglinear would have been off."""

    @property
    def needs_forward(self) -> bool:
        """Whether the trainer has to run the forward pass at the start of the update."""
        return self is not ProximalMethod.LOGLINEAR


@dataclass(frozen=True, slots=True)
class ProximalOutput:
    """Proximal log-probs of a micro-batch and, with `metrics`, the error of the approximation."""

    logprobs: Tensor
    """`[B, T]` or `[T]`, without gradient."""
    metrics: dict[str, Tensor | float]
    """Empty but for `ProximalMethod.METRICS`."""


@torch.no_grad()
def loglinear_proximal_logprobs(
    current_logprobs: Tensor,
    behavior_logprobs: Tensor,
    behavior_versions: Tensor,
    mask: Tensor,
    *,
    proximal_version: int,
) -> Tensor:
    """Approximate proximal log-probs without a forward pass.

    `p = b + a (c - b)` with `a = (v_prox - v_b) / (v_prox + 1 - v_b)`: the log-prob is taken to
    move evenly over the versions from `v_b` to `v_prox + 1`, which this update makes. The
    idea of interpolating is that of Li et al. 2025, A-3PO (arXiv 2512.06547).

    Args:
        current_logprobs: Floating `[B, T]` or packed `[T]`.
        behavior_logprobs: Same shape.
        behavior_versions: Integers of the same shape: the version that sampled each token.
        mask: Bool of the same shape; masked positions may hold any version and log-prob.
        proximal_version: The version at the start of this update.

    Returns:
        Float32 (float64 if an input is) of the same shape without gradient; the behavior log-prob
        at masked positions.

    Raises:
        ArgumentError: Shapes differ, or a trainable token's version is negative or too new.
        ArgumentTypeError: A dtype is wrong.
    """
    require_mask(mask)
    require_tokens("current_logprobs", current_logprobs, mask)
    require_tokens("behavior_logprobs", behavior_logprobs, mask)
    versions = require_integers("behavior_versions", behavior_versions)
    require_shape("behavior_versions", versions, mask)
    age = proximal_version - versions.long()
    is_wrong = ((age < 0) | (versions < 0)) & mask
    if bool(is_wrong.any()):
        raise ArgumentError(
            f"behavior_versions must be in [0, proximal_version = {proximal_version}] at trainable "
            f"tokens, got {int(versions[is_wrong][0])}. Check that versions stand beside their "
            "tokens, not one place off."
        )
    behavior = upcast(behavior_logprobs)
    age = torch.where(mask, age, 0).to(behavior.dtype)
    slope = torch.where(age > 0, upcast(current_logprobs) - behavior, 0.0)
    return behavior + age / (age + 1) * slope


def proximal_logprobs(
    method: ProximalMethod | str,
    *,
    current_logprobs: Tensor,
    behavior_logprobs: Tensor,
    mask: Tensor,
    recomputed_logprobs: Tensor | None = None,
    behavior_versions: Tensor | None = None,
    proximal_version: int | None = None,
) -> ProximalOutput:
    """Return the proximal log-probs of a micro-batch by the chosen method.

    Args:
        method: A `ProximalMethod` or its value.
        current_logprobs: Floating `[B, T]` or packed `[T]`, at this gradient step.
        behavior_logprobs: Same shape.
        mask: Bool of the same shape, true at trainable tokens.
        recomputed_logprobs: Same shape, from the forward pass at the start of the update; needed
            by `recompute` and `metrics`.
        behavior_versions: Integers of the same shape; needed by `loglinear` and `metrics`.
        proximal_version: Version at the start of the update; needed by `loglinear` and `metrics`.

    Returns:
        Log-probs without gradient; with `metrics` also `proximal/loglinear_abs_error_mean`,
        `.../loglinear_abs_error_max`, and the same of `behavior` (taking `p = b`).

    Raises:
        ArgumentError: An input that the method needs is missing, or a shape is wrong.
        ArgumentTypeError: A dtype is wrong.
        OptionError: The method is unknown.
    """
    chosen = _require_method(method)
    require_mask(mask)
    recomputed: Tensor | None = None
    if chosen.needs_forward:
        if recomputed_logprobs is None:
            raise _missing("recomputed_logprobs", chosen)
        recomputed = require_tokens("recomputed_logprobs", recomputed_logprobs, mask).detach()
        if chosen is ProximalMethod.RECOMPUTE:
            return ProximalOutput(recomputed, {})
    if behavior_versions is None:
        raise _missing("behavior_versions", chosen)
    if proximal_version is None:
        raise _missing("proximal_version", chosen)
    approximate = loglinear_proximal_logprobs(
        current_logprobs,
        behavior_logprobs,
        behavior_versions,
        mask,
        proximal_version=proximal_version,
    )
    if recomputed is None:
        return ProximalOutput(approximate, {})
    return ProximalOutput(
        recomputed, _approximation_errors(recomputed, approximate, behavior_logprobs, mask)
    )


@torch.no_grad()
def _approximation_errors(
    recomputed: Tensor, approximate: Tensor, behavior: Tensor, mask: Tensor
) -> dict[str, Tensor | float]:
    num_tokens = mask.sum().double()
    metrics: dict[str, Tensor | float] = {NUM_TOKENS: num_tokens}
    sums: dict[str, Tensor] = {}
    for name, value in {"loglinear": approximate, "behavior": behavior}.items():
        error = torch.where(mask, upcast(value) - upcast(recomputed), 0.0).abs()
        sums[f"proximal/{name}_abs_error_mean"] = error.sum(dtype=torch.float64)
        metrics[f"proximal/{name}_abs_error_max"] = error.amax().double() if error.numel() else 0.0
    return metrics | token_means(sums, num_tokens)


def _require_method(method: ProximalMethod | str) -> ProximalMethod:
    if method in [member.value for member in ProximalMethod]:
        return ProximalMethod(method)
    allowed = ", ".join(repr(member.value) for member in ProximalMethod)
    raise OptionError(f"method must be one of {allowed}, got {method!r}. Check the spelling.")


def _missing(name: str, method: ProximalMethod) -> ArgumentError:
    return ArgumentError(
        f"{name} must be given with method {method.value!r}, got None. Pass it or choose another "
        "method."
    )
