"""Where the proximal log-probs of the decoupled loss come from.

Invariants:
* proximal log-probs never carry a gradient;
* a token sampled by the newest version has proximal == behavior under `loglinear`;
* versions are those of the *token* they stand beside: a trainable token whose version is negative
  or newer than the proximal version is refused, because it shows that labels slipped by one.

Legend: `B` sequences, `T` tokens.
"""

from __future__ import annotations

from typing import Literal, get_args

import torch
from torch import Tensor

from awrl_ppo_loss.arguments import (
    require_choice,
    require_floats,
    require_integers,
    require_mask,
)
from awrl_ppo_loss.batch import upcast
from awrl_ppo_loss.errors import PPOLossError
from awrl_ppo_loss.metrics import NUM_TOKENS, token_mean

ProximalMethod = Literal["recompute", "loglinear", "metrics"]
"""`recompute`: one forward pass without gradient at the start of the update. `loglinear`: no
forward pass, but an interpolation between behavior and current log-probs by token version.
`metrics`: recompute, and report how far `loglinear` would have been off."""


@torch.no_grad()
def proximal_logprobs(
    method: ProximalMethod,
    *,
    current_logprobs: Tensor,
    behavior_logprobs: Tensor,
    mask: Tensor,
    recomputed_logprobs: Tensor | None = None,
    behavior_versions: Tensor | None = None,
    proximal_version: int | None = None,
) -> tuple[Tensor, dict[str, Tensor | float]]:
    """Return the proximal log-probs of a micro-batch by the chosen method, and metrics.

    All tensors are of the mask's shape, `[B, T]` or packed `[T]`; masked positions may hold
    anything.

    Args:
        method: Recompute, interpolate, or both.
        current_logprobs: At this gradient step.
        behavior_logprobs: Of the policy that sampled each token.
        mask: Bool, true at trainable tokens.
        recomputed_logprobs: From the forward pass at the start of the update; needed by `recompute`
            and `metrics`.
        behavior_versions: Integers: the version that sampled each token; needed by `loglinear` and
            `metrics`.
        proximal_version: Version at the start of the update; needed by the same.

    Returns:
        Log-probs without gradient; with `metrics` also `proximal/loglinear_abs_error_mean`,
        `.../loglinear_abs_error_max`, and the same of `behavior` (taking `p = b`).

    Raises:
        PPOLossError: An input that the method needs is missing, a shape or dtype is wrong, a
            trainable token's version is negative or too new, or the method is unknown.
    """
    require_choice("method", method, get_args(ProximalMethod))
    require_mask(mask)
    needed: dict[str, object] = {}
    if method != "loglinear":
        needed["recomputed_logprobs"] = recomputed_logprobs
    if method != "recompute":
        needed |= {"behavior_versions": behavior_versions, "proximal_version": proximal_version}
    for name, value in needed.items():
        if value is None:
            raise PPOLossError(
                f"{name} must be given with method {method!r}, got None. Pass it or choose another "
                "method."
            )
    if method == "recompute":
        return require_floats("recomputed_logprobs", recomputed_logprobs, mask).detach(), {}
    assert behavior_versions is not None
    assert proximal_version is not None
    approximate = _loglinear(
        current_logprobs, behavior_logprobs, behavior_versions, mask, proximal_version
    )
    if method == "loglinear":
        return approximate, {}
    recomputed = require_floats("recomputed_logprobs", recomputed_logprobs, mask)
    num_tokens = mask.sum().double()
    metrics: dict[str, Tensor | float] = {NUM_TOKENS: num_tokens}
    for name, value in {"loglinear": approximate, "behavior": behavior_logprobs}.items():
        error = torch.where(mask, upcast(value) - upcast(recomputed), 0.0).abs()
        metrics[f"proximal/{name}_abs_error_mean"] = token_mean(error, num_tokens)
        metrics[f"proximal/{name}_abs_error_max"] = error.amax().double() if error.numel() else 0.0
    return recomputed.detach(), metrics


def _loglinear(
    current_logprobs: Tensor,
    behavior_logprobs: Tensor,
    behavior_versions: Tensor,
    mask: Tensor,
    proximal_version: int,
) -> Tensor:
    """Return `p = b + a (c - b)` with `a = (v_prox - v_b) / (v_prox + 1 - v_b)`.

    The log-prob is taken to move evenly over the versions from `v_b` to `v_prox + 1`, which this
    update makes. The idea of interpolating is that of Li et al. 2025, A-3PO (arXiv 2512.06547).
    Masked positions get the behavior log-prob.
    """
    require_floats("current_logprobs", current_logprobs, mask)
    require_floats("behavior_logprobs", behavior_logprobs, mask)
    versions = require_integers("behavior_versions", behavior_versions, mask)
    age = proximal_version - versions.long()
    is_wrong = ((age < 0) | (versions < 0)) & mask
    if bool(is_wrong.any()):
        raise PPOLossError(
            f"behavior_versions must be in [0, proximal_version = {proximal_version}] at trainable "
            f"tokens, got {int(versions[is_wrong][0])}. Check that versions stand beside their "
            "tokens, not one place off."
        )
    behavior = upcast(behavior_logprobs)
    age = torch.where(mask, age, 0).to(behavior.dtype)
    slope = torch.where(age > 0, upcast(current_logprobs) - behavior, 0.0)
    return behavior + age / (age + 1) * slope
