"""Metrics of a policy loss, and their exact merge over micro-batches and ranks.

Invariants:
* all means are over trainable tokens, before any bound acts and before clipping;
* merging the metrics of the parts gives the metrics of the whole, because each key says by its
  last word how it merges: `num_*` sum, `*max` maximum, all others a mean by `loss/num_tokens`.

Keys: `loss/num_tokens`; `clip/fraction`, `clip/low_fraction`, `clip/high_fraction`,
`clip/dual_fraction` (share of tokens on which a bound acts: it lowers the objective; with `cispo`
the share outside the bounds, whatever the advantage); `update_ratio/mean`, `update_ratio/max`
(current / proximal, with `gspo` that of the sequence); `staleness_ratio/mean`,
`staleness_ratio/max` (proximal / behavior of the token, before any bound),
`staleness_ratio/capped_fraction` (share of tokens on whose weight a bound acts);
`staleness_ratio/ess_fraction` (effective sample size of the weights in use,
`(sum w)^2 / (n sum w^2)`, Kish 1965), with its parts `staleness_ratio/weight_mean` and
`staleness_ratio/weight_square_mean`; `kl/proximal_current_k3` and `kl/behavior_proximal_k3`
(Schulman 2020, `ratio - 1 - log ratio`); where they are given, `kl/reference_mean` and
`policy/entropy`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

NUM_TOKENS = "loss/num_tokens"
"""Key of the number of trainable tokens, the weight of every mean."""

_ESS = "staleness_ratio/ess_fraction"
_WEIGHT_MEAN = "staleness_ratio/weight_mean"
_WEIGHT_SQUARE_MEAN = "staleness_ratio/weight_square_mean"


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class PolicyTerms:
    """What the loss is made of, per token, without gradient; masked positions are finite."""

    mask: Tensor
    """Bool, true at trainable tokens."""
    log_ratio: Tensor
    """Log of current / proximal, of the token or of its sequence."""
    ratio: Tensor
    """Its bounded exponential."""
    log_staleness: Tensor
    """Log of proximal / behavior, of the token."""
    staleness: Tensor
    """Its bounded exponential."""
    weight: Tensor
    """Importance weight in use."""
    is_capped: Tensor | None
    """Where a bound of the weight acts; `None` without bounds."""
    is_clipped: Tensor
    """Where a bound of the update ratio acts."""
    is_dual: Tensor | None
    """Where the dual clip acts; `None` without one."""
    divergence: Tensor | None
    """Estimate of KL(current || reference); `None` without a reference."""
    entropy: Tensor | None
    """Of the current policy; `None` if it was not given."""


@torch.no_grad()
def policy_metrics(terms: PolicyTerms) -> dict[str, Tensor | float]:
    """Describe a policy loss by the keys above."""
    measured = {
        "update_ratio/mean": terms.ratio,
        "staleness_ratio/mean": terms.staleness,
        "kl/proximal_current_k3": terms.ratio - 1 - terms.log_ratio,
        "kl/behavior_proximal_k3": terms.staleness - 1 - terms.log_staleness,
        _WEIGHT_MEAN: terms.weight,
        _WEIGHT_SQUARE_MEAN: terms.weight.square(),
        "clip/fraction": terms.is_clipped,
        "clip/high_fraction": terms.is_clipped & (terms.ratio > 1),
        "clip/dual_fraction": terms.is_dual,
        "staleness_ratio/capped_fraction": terms.is_capped,
        "kl/reference_mean": terms.divergence,
        "policy/entropy": terms.entropy,
    }
    rows = {key: row.flatten() for key, row in measured.items() if row is not None}
    # One matrix, so that few calls are made: on short batches they are what the time goes into.
    values = torch.stack([row.to(terms.ratio.dtype) for row in rows.values()])
    values *= terms.mask.flatten()
    num_tokens = terms.mask.sum().double()
    means = values.sum(dim=1).double() / num_tokens.clamp(min=1)
    maxima = values[:2].amax(dim=1).double() if values.numel() else means[:2]
    metrics: dict[str, Tensor | float] = {
        NUM_TOKENS: num_tokens,
        "clip/dual_fraction": 0.0,
        "staleness_ratio/capped_fraction": 0.0,
        **dict(zip(rows, means.unbind(), strict=True)),
    }
    metrics["update_ratio/max"], metrics["staleness_ratio/max"] = maxima.unbind()
    metrics["clip/low_fraction"] = metrics["clip/fraction"] - metrics["clip/high_fraction"]
    mean, square_mean = metrics[_WEIGHT_MEAN], torch.as_tensor(metrics[_WEIGHT_SQUARE_MEAN])
    # The bound keeps 0 / 0 out of the effective sample size when every weight is 0.
    metrics[_ESS] = mean * mean / square_mean.clamp(min=1e-300)
    return metrics


def token_mean(values: Tensor, num_tokens: Tensor) -> Tensor:
    """Return the float64 mean over trainable tokens of values that are 0 elsewhere."""
    return values.detach().sum(dtype=torch.float64) / num_tokens.clamp(min=1)


def merge_metrics(parts: Iterable[Mapping[str, Tensor | float]]) -> dict[str, float]:
    """Join the metrics of micro-batches or ranks into those of the whole batch.

    Args:
        parts: Metrics of loss calls, in any order. Parts without trainable tokens change nothing.

    Returns:
        Floats by key: sums of `num_*`, maxima of `*max`, token-weighted means of the rest, and
        the effective sample size recomputed from its merged parts. Empty for no parts.
    """
    numbers = [{key: float(value) for key, value in part.items()} for part in parts]
    keys = dict.fromkeys(key for part in numbers for key in part)
    merged = {key: _merge_key(key, numbers) for key in keys}
    if _ESS in merged:
        square_mean = merged[_WEIGHT_SQUARE_MEAN]
        merged[_ESS] = 0.0 if square_mean == 0 else merged[_WEIGHT_MEAN] ** 2 / square_mean
    return merged


def _merge_key(key: str, parts: list[dict[str, float]]) -> float:
    having = [part for part in parts if key in part]
    what = key.rpartition("/")[2]
    if what.startswith("num_"):
        return sum(part[key] for part in having)
    trained = [part for part in having if part.get(NUM_TOKENS, 1.0) > 0]
    if what.endswith("max"):
        return max((part[key] for part in trained), default=0.0)
    total = sum(part.get(NUM_TOKENS, 1.0) for part in trained)
    return sum(part[key] * part.get(NUM_TOKENS, 1.0) for part in trained) / total if total else 0.0
