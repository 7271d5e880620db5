"""KL estimators from samples of the current policy, with the sign of a penalty.

Every kind estimates `KL(current || reference)` per token: positive means that the current policy
moved away, and *adding* it to a loss pulls it back. Schulman 2020, "Approximating KL divergence":
with `d = current - reference` log-probs, `k1 = d`, `k2 = d^2 / 2`, `k3 = exp(-d) - 1 + d`.

As loss terms they differ: in expectation over the current policy the gradient of `k2` is that of
`KL(current || reference)`, that of `k1` is 0 (use it as a reward penalty, not as a loss), and that
of `k3` is that of `KL(reference || current)`. `k3 >= 0` and is 0 at equality.
"""

from typing import Literal, get_args

import torch
from torch import Tensor

from awrl_ppo_loss.aggregation import Aggregation, aggregate, prepare_reduction
from awrl_ppo_loss.arguments import require_choice, require_mask, require_tokens
from awrl_ppo_loss.metrics import NUM_TOKENS, token_means
from awrl_ppo_loss.output import LossOutput
from awrl_ppo_loss.selection import upcast

LOG_RATIO_BOUND = 20.0
"""Bound of a log-ratio, beyond which the estimate and its gradient are constant: exp(20) is 4.9e8,
float32's exp overflows at 88.7."""

KLKind = Literal["k1", "k2", "k3"]
"""Name of an estimator."""


def kl_estimate(
    current_logprobs: Tensor,
    reference_logprobs: Tensor,
    *,
    kind: KLKind = "k3",
    mask: Tensor | None = None,
) -> Tensor:
    """Estimate `KL(current || reference)` per token, with gradient to the current log-probs.

    Args:
        current_logprobs: Floating `[B, T]` or packed `[T]`, of tokens that the current policy (or
            one near it) sampled.
        reference_logprobs: Same shape; never receives a gradient.
        kind: `k1`, `k2` or `k3`.
        mask: Bool of the same shape; `None` takes every position.

    Returns:
        Floating of the same shape, 0 at masked positions. Log-ratios are bounded to +-20.

    Raises:
        ArgumentError: Shapes or devices differ.
        ArgumentTypeError: A dtype is wrong.
        OptionError: The kind is unknown.
    """
    require_choice("kind", kind, get_args(KLKind))
    if mask is None:
        mask = torch.ones_like(current_logprobs, dtype=torch.bool)
    require_mask(mask)
    require_tokens("current_logprobs", current_logprobs, mask)
    require_tokens("reference_logprobs", reference_logprobs, mask)
    log_ratio = _masked_log_ratio(current_logprobs, reference_logprobs.detach(), mask)
    if kind == "k1":
        return log_ratio
    if kind == "k2":
        return log_ratio.square() / 2
    # Rounding can leave -1e-15 near equality.
    return (torch.expm1(-log_ratio) + log_ratio).clamp(min=0)


def kl_loss(
    current_logprobs: Tensor,
    reference_logprobs: Tensor,
    mask: Tensor,
    *,
    kind: KLKind = "k3",
    aggregation: Aggregation = "token_mean",
    denominator: float | Tensor | None = None,
    sequence_ids: Tensor | None = None,
    constant: float | None = None,
) -> LossOutput:
    """Return the KL penalty to *add* to a policy loss, over the same global denominator.

    Args:
        current_logprobs: Floating `[B, T]` or packed `[T]`.
        reference_logprobs: Same shape; never receives a gradient.
        mask: Bool of the same shape, true at trainable tokens.
        kind: See `kl_estimate`.
        aggregation: See `aggregate`.
        denominator: Global count; `None` counts this call's own.
        sequence_ids: Integers of the mask's shape; needed when packed sequences are aggregated.
        constant: `k` of the constant aggregations.

    Returns:
        The penalty, its token mean as metric `kl/reference_mean`, and the denominator.

    Raises:
        ArgumentError: Shapes, devices or the denominator are wrong.
        ArgumentTypeError: A dtype is wrong.
        OptionError: An option is unknown or outside its range.
    """
    per_token = kl_estimate(
        current_logprobs, reference_logprobs, kind=kind, mask=require_mask(mask)
    )
    total = prepare_reduction(
        mask,
        aggregation=aggregation,
        denominator=denominator,
        sequence_ids=sequence_ids,
        constant=constant,
    ).denominator
    loss = aggregate(
        per_token,
        mask,
        aggregation=aggregation,
        denominator=total,
        sequence_ids=sequence_ids,
        constant=constant,
    )
    num_tokens = mask.sum().double()
    sums = {"kl/reference_mean": per_token.detach().sum(dtype=torch.float64)}
    return LossOutput(loss, {NUM_TOKENS: num_tokens, **token_means(sums, num_tokens)}, total)


def _masked_log_ratio(numerator: Tensor, denominator: Tensor, mask: Tensor) -> Tensor:
    """Return the bounded difference, 0 and without gradient at masked positions."""
    difference = torch.where(mask, upcast(numerator) - upcast(denominator), 0.0)
    # x - x is 0, and NaN for an infinity that clamp would have turned into an ordinary ratio.
    return difference.clamp(-LOG_RATIO_BOUND, LOG_RATIO_BOUND) + (difference - difference)
