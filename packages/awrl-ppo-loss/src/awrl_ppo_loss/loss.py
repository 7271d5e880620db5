"""The policy loss of asynchronous PPO and its relatives, with KL penalty and entropy bonus.

Invariants:
* the gradient reaches the current log-probs (and the entropy) only;
* PPO clips current / proximal alone, never the importance weight proximal / behavior;
* what a masked position holds never enters the arithmetic, so it may be NaN; an unmasked NaN or
  infinity makes the loss and the whole gradient non-finite;
* ratios are bounded at exp(20), where their gradient is 0.

Legend: all tensors but scalars have the mask's shape, `[B, T]` or `[T]`, and are 0 at masked
positions before any exponential is taken.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from awrl_ppo_loss.aggregation import Sequences, global_denominator, weighted_sum
from awrl_ppo_loss.batch import PolicyBatch, upcast
from awrl_ppo_loss.config import KLEstimator, PolicyLossConfig
from awrl_ppo_loss.errors import PPOLossError
from awrl_ppo_loss.metrics import PolicyTerms, policy_metrics

MAX_LOG_RATIO = 20.0
"""Bound of a log-ratio: exp(20) is 4.9e8, so that the product of two ratios, their squares and sums
over millions of tokens stay finite in float32, whose exp overflows at 88.7."""

MAX_KL = 10.0
"""Bound of a token's KL estimate, as in verl and AReaL: otherwise k3 counts one token whose
log-ratio is -10 as 22,000. The estimate has no gradient beyond it."""


@dataclass(frozen=True, eq=False)
class LossOutput:
    """A loss, what it was divided by, and how the policies differ."""

    loss: Tensor
    """Float64 scalar: this call's share of the batch's loss. Shares add up over micro-batches and
    ranks."""
    denominator: Tensor
    """Float64 scalar: the global denominator, passed in or counted."""
    terms: PolicyTerms
    """What the loss is made of, per token, without gradient."""

    @cached_property
    def metrics(self) -> dict[str, Tensor | float]:
        """By key `area/what`, computed when first asked for.

        Tensors are scalars, left on their device so that reading them is the caller's choice.
        `merge_metrics` joins those of several calls.
        """
        return policy_metrics(self.terms)


def policy_loss(
    batch: PolicyBatch,
    config: PolicyLossConfig | None = None,
    *,
    denominator: float | Tensor | None = None,
) -> LossOutput:
    """Return the loss of a micro-batch; decoupled PPO unless the configuration says otherwise.

    With `c, p, b` the current, proximal and behavior log-probs and `A` the advantage, per token:

        w = stop_gradient(exp(p - b))
        r = exp(c - p)
        L = -w min(r A, clip(r, 1 - clip_low, 1 + clip_high) A)

    Hilton et al. 2021 (arXiv 2110.00641), section 3; Fu et al. 2025, AReaL (arXiv 2505.24298),
    section 5.

    Args:
        batch: What is known of each token.
        config: Which loss; `None` takes the defaults.
        denominator: Global count over micro-batches and ranks (`count_denominator`); `None` counts
            this call's own.

    Raises:
        PPOLossError: A tensor that the configuration needs is missing, or the denominator is not a
            count.
    """
    config = config or PolicyLossConfig()
    mask = batch.mask
    sequences = Sequences(mask, batch.sequence_ids) if config.needs_sequences else None
    log_ratio, log_staleness, advantages = _masked_inputs(batch, config, sequences)

    staleness, ratio = bounded_exp(log_staleness), bounded_exp(log_ratio)
    weight, is_capped = importance_weight(staleness, log_staleness, config, sequences)
    clipped = ratio.detach().clamp(1 - config.clip_low, 1 + config.clip_high)
    raw, bound = ratio * advantages, clipped * advantages
    is_clipped, is_dual = raw > bound, None
    objective = torch.where(is_clipped, bound, raw)  # min(r A, clip(r) A)
    if config.dual_clip is not None:
        is_dual = (advantages < 0) & (ratio > config.dual_clip)
        objective = torch.where(is_dual, config.dual_clip * advantages, objective)
    if config.objective == "cispo":
        is_clipped = ratio != clipped
        objective = bound * torch.where(mask, upcast(batch.current_logprobs), 0.0)
    total = weighted_sum(weight * objective, config.aggregation, sequences)
    total = total / (config.constant or 1)

    divergence, entropy = _divergence(batch, config), _entropy(batch, config)
    for values, coefficient in (
        (divergence, -config.kl_coefficient),
        (entropy, config.entropy_coefficient),
    ):
        if values is not None and coefficient:
            total = total + coefficient * weighted_sum(values, config.aggregation, sequences)

    divisor = global_denominator(denominator, mask, config.aggregation, sequences)
    loss = _as_loss(total, divisor, log_ratio, log_staleness)
    terms = PolicyTerms(
        mask=mask,
        log_ratio=log_ratio.detach(),
        ratio=ratio.detach(),
        log_staleness=log_staleness,
        staleness=staleness,
        weight=weight,
        is_capped=is_capped,
        is_clipped=is_clipped,
        is_dual=is_dual,
        divergence=None if divergence is None else divergence.detach(),
        entropy=None if entropy is None else entropy.detach(),
    )
    return LossOutput(loss, divisor, terms)


def _masked_inputs(
    batch: PolicyBatch, config: PolicyLossConfig, sequences: Sequences | None
) -> tuple[Tensor, Tensor, Tensor]:
    """Return `c - p` with its gradient, `p - b` and the advantages, 0 at masked positions."""
    mask = batch.mask
    current, behavior = upcast(batch.current_logprobs), upcast(batch.behavior_logprobs.detach())
    proximal = behavior
    if batch.proximal_logprobs is not None:
        proximal = upcast(batch.proximal_logprobs.detach())
    log_ratio = torch.where(mask, current - proximal, 0.0)
    if config.objective == "gspo":
        # The value is the sequence's ratio, the gradient goes to the token's own log-prob (GSPO's
        # equations 13 and 14), so that advantages may differ within a sequence. Where they do not,
        # the gradient is that of equation 5.
        assert sequences is not None
        log_ratio = log_ratio + (sequences.mean(log_ratio) - log_ratio).detach()
    log_staleness = torch.where(mask, proximal - behavior, 0.0)
    advantages = torch.where(mask, upcast(batch.advantages.detach()), 0.0)
    return log_ratio, log_staleness, advantages


def _as_loss(total: Tensor, divisor: Tensor, *log_ratios: Tensor) -> Tensor:
    """Return minus the objective's sum over the denominator, NaN with its gradient if broken."""
    # 0, or NaN where something is not finite, which bounds would hide from loss or gradient.
    witness = 0.0 * sum((x.detach().sum() for x in log_ratios), total.detach())
    # 0.0 - rather than a minus sign: no trainable token gives 0.0, not -0.0.
    return 0.0 - total / (divisor + (divisor == 0) + witness)


def _divergence(batch: PolicyBatch, config: PolicyLossConfig) -> Tensor | None:
    """Return the estimate of KL(current || reference) per token, `None` without a reference."""
    if batch.reference_logprobs is None:
        if config.kl_coefficient:
            raise _missing("reference_logprobs", "kl_coefficient")
        return None
    reference = upcast(batch.reference_logprobs.detach())
    log_ratio = torch.where(batch.mask, upcast(batch.current_logprobs) - reference, 0.0)
    # 0.0 * infinity is NaN, which the estimate's bound would hide.
    return kl_estimate(log_ratio, config.kl_estimator) + 0.0 * log_ratio


def _entropy(batch: PolicyBatch, config: PolicyLossConfig) -> Tensor | None:
    """Return the entropy per token, 0 at masked positions; `None` if it is not given."""
    if batch.entropy is None:
        if config.entropy_coefficient:
            raise _missing("entropy", "entropy_coefficient")
        return None
    return torch.where(batch.mask, upcast(batch.entropy), 0.0)


def _missing(name: str, coefficient: str) -> PPOLossError:
    return PPOLossError(
        f"{name} must be given with a {coefficient} above 0, got None. Pass it or set the "
        "coefficient to 0."
    )


def importance_weight(
    staleness: Tensor,
    log_staleness: Tensor,
    config: PolicyLossConfig,
    sequences: Sequences | None,
) -> tuple[Tensor, Tensor | None]:
    """Return the importance weight of each token, and where a bound acts (`None` for no bounds).

    Truncation is Espeholt et al. 2018, IMPALA (arXiv 1802.01561), masking on both sides Ling Team
    2025, IcePop (arXiv 2510.18855). `token_truncate`, `token_mask`, `sequence_truncate` and
    `sequence_mask` mean what they mean in TRL, `seq_sum_k1` and `seq_mean_k1` what they mean in
    verl (whose bounds are given here as ratios, not as their logarithms).
    """
    weight = staleness
    if config.importance in ("sequence_mask", "sequence_truncate", "seq_sum_k1"):
        assert sequences is not None
        weight = bounded_exp(sequences.sum(log_staleness))
    elif config.importance in ("geometric_mask", "geometric_truncate", "seq_mean_k1"):
        assert sequences is not None
        weight = bounded_exp(sequences.mean(log_staleness))
    floor, cap = config.weight_floor, config.weight_cap
    if floor is None and cap is None:
        return weight, None
    is_outside = (weight < (floor or 0.0)) | (weight > (math.inf if cap is None else cap))
    if config.importance.endswith("truncate"):
        return weight.clamp(floor, cap), is_outside
    kept = staleness if config.importance.startswith("seq_") else weight
    return torch.where(is_outside, 0.0, kept), is_outside


def kl_estimate(log_ratio: Tensor, estimator: KLEstimator) -> Tensor:
    """Return an estimate of KL(current || reference) per token, within +-`MAX_KL`.

    Schulman 2020, "Approximating KL divergence": with `d` the log-ratio current / reference,
    `k1 = d`, `k2 = d^2 / 2`, `k3 = exp(-d) - 1 + d`. Positive means that the current policy moved
    away, and adding it to a loss pulls it back. As terms of a loss they differ: in expectation over
    the current policy the gradient of `k2` is that of KL(current || reference), that of `k3` is
    that of KL(reference || current), and that of `k1` is 0.
    """
    log_ratio = log_ratio.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)
    if estimator == "k1":
        estimate = log_ratio
    elif estimator == "k2":
        estimate = log_ratio.square() / 2
    else:
        # Rounding can leave -1e-15 near equality.
        estimate = (torch.expm1(-log_ratio) + log_ratio).clamp(min=0)
    return estimate.clamp(-MAX_KL, MAX_KL)


def bounded_exp(log_ratio: Tensor) -> Tensor:
    """Return `exp(log_ratio)`, bounded at exp(`MAX_LOG_RATIO`)."""
    return log_ratio.clamp(max=MAX_LOG_RATIO).exp()
