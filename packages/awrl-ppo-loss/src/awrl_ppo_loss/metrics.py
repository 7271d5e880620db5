"""Metrics of a policy loss, and their exact merge over micro-batches and ranks.

Invariants:
* all means are over trainable tokens, before any filter and before clipping;
* merging the metrics of the parts gives the metrics of the whole, because each key says by its
  last word how it merges: `num_*` sum, `*_max` maximum, all others a mean by `loss/num_tokens`.

Keys: `loss/num_tokens`; `clip/fraction`, `clip/low_fraction`, `clip/high_fraction`,
`clip/dual_fraction` (share of tokens on which a bound acts: it lowers the objective);
`update_ratio/mean`, `update_ratio/max` (current / proximal); `staleness_ratio/mean`,
`staleness_ratio/max` (proximal / behavior, before any bound), `staleness_ratio/capped_fraction`
(share of tokens whose weight was bounded); `staleness_ratio/ess_fraction` (effective sample size
of the weight used, `(sum w)^2 / (n sum w^2)`, Kish 1965), with its parts
`staleness_ratio/weight_mean` and `staleness_ratio/weight_square_mean`;
`kl/proximal_current_k3` and `kl/behavior_proximal_k3` (Schulman 2020, `ratio - 1 - log ratio`).
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from awrl_ppo_loss.output import Metrics
from awrl_ppo_loss.ratios import Ratio, StalenessWeight
from awrl_ppo_loss.selection import Selection

NUM_TOKENS = "loss/num_tokens"
"""Key of the number of trainable tokens, the weight of every mean."""

_ESS = "staleness_ratio/ess_fraction"
_WEIGHT_MEAN = "staleness_ratio/weight_mean"
_WEIGHT_SQUARE_MEAN = "staleness_ratio/weight_square_mean"

_COUPLED: dict[str, Tensor | float] = {
    "staleness_ratio/mean": 1.0,
    "staleness_ratio/max": 1.0,
    "staleness_ratio/capped_fraction": 0.0,
    _WEIGHT_MEAN: 1.0,
    _WEIGHT_SQUARE_MEAN: 1.0,
    _ESS: 1.0,
    "kl/behavior_proximal_k3": 0.0,
}


@dataclass(frozen=True, slots=True)
class ClipCounts:
    """Numbers of trainable tokens on which a bound of the update ratio acts, float64 scalars."""

    num_low: Tensor
    """At the lower bound: ratio below it and advantage < 0."""
    num_high: Tensor
    """At the upper bound: ratio above it and advantage > 0."""
    num_dual: Tensor | None = None
    """At the dual clip; `None` without one."""


def policy_metrics(
    selection: Selection,
    update: Ratio,
    clip: ClipCounts,
    staleness: StalenessWeight | None,
) -> dict[str, Tensor | float]:
    """Describe a policy loss; `staleness` is `None` for a coupled one, whose weight is 1.

    Args:
        selection: Trainable positions.
        update: Current over proximal, or over behavior for a coupled loss.
        clip: On how many tokens the bounds act.
        staleness: Proximal over behavior.
    """
    num_tokens = selection.num_tokens
    ratio_sum = update.value.sum(dtype=torch.float64)
    sums = {
        "clip/fraction": clip.num_low + clip.num_high,
        "clip/low_fraction": clip.num_low,
        "clip/high_fraction": clip.num_high,
        "update_ratio/mean": ratio_sum,
        "kl/proximal_current_k3": ratio_sum - num_tokens - update.log_sum,
    }
    metrics: dict[str, Tensor | float] = {
        NUM_TOKENS: num_tokens,
        "update_ratio/max": largest(update.value),
        "clip/dual_fraction": 0.0,
    }
    if clip.num_dual is not None:
        sums["clip/dual_fraction"] = clip.num_dual
    if staleness is None:
        return metrics | token_means(sums, num_tokens) | _COUPLED
    sums |= _staleness_sums(staleness, num_tokens)
    metrics["staleness_ratio/max"] = largest(staleness.ratio.value)
    metrics["staleness_ratio/capped_fraction"] = 0.0
    metrics |= token_means(sums, num_tokens)
    if staleness.is_bounded is None:
        metrics[_WEIGHT_MEAN] = metrics["staleness_ratio/mean"]
    metrics[_ESS] = _ess_fraction(metrics[_WEIGHT_MEAN], metrics[_WEIGHT_SQUARE_MEAN])
    return metrics


def _staleness_sums(staleness: StalenessWeight, num_tokens: Tensor) -> dict[str, Tensor]:
    ratio, weight = staleness.ratio, staleness.weight
    ratio_sum = ratio.value.sum(dtype=torch.float64)
    sums = {
        "staleness_ratio/mean": ratio_sum,
        "kl/behavior_proximal_k3": ratio_sum - num_tokens - ratio.log_sum,
        _WEIGHT_SQUARE_MEAN: (weight * weight).sum(dtype=torch.float64),
    }
    if staleness.is_bounded is not None:
        sums["staleness_ratio/capped_fraction"] = staleness.is_bounded.sum().double()
        sums[_WEIGHT_MEAN] = weight.sum(dtype=torch.float64)
    return sums


def token_means(sums: Mapping[str, Tensor], num_tokens: Tensor) -> dict[str, Tensor]:
    """Divide float64 sums over trainable tokens by their number; 0 if there is none."""
    means = torch.stack(tuple(sums.values())) / num_tokens.clamp(min=1)
    return dict(zip(sums, means.unbind(), strict=True))


def largest(values: Tensor) -> Tensor:
    """Return the maximum of non-negative values as float64 scalar, 0 if there is none."""
    return values.amax().double() if values.numel() else values.sum(dtype=torch.float64)


def _ess_fraction(mean: Tensor | float, square_mean: Tensor | float) -> Tensor:
    """Return `mean^2 / square_mean`, and 0 when every weight is 0."""
    mean, square_mean = torch.as_tensor(mean), torch.as_tensor(square_mean)
    return mean * mean / torch.where(square_mean == 0, 1.0, square_mean)


def merge_metrics(parts: Iterable[Metrics]) -> dict[str, float]:
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
