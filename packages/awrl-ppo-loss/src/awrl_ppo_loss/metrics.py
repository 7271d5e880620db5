"""Metrics of a policy loss, and their exact merge over micro-batches and ranks.

Invariants:
* all means are over trainable tokens, before any filter and before clipping;
* merging the metrics of the parts gives the metrics of the whole, because each key says by its
  last word how it merges: `num_*` sum, `*_max` maximum, all others a mean by `loss/num_tokens`.

Keys: `loss/num_tokens`; `clip/fraction`, `clip/low_fraction`, `clip/high_fraction`,
`clip/dual_fraction` (share of tokens on which a bound acts: it lowers the objective);
`update_ratio/mean`, `update_ratio/max` (current / proximal); `staleness_ratio/mean`,
`staleness_ratio/max`, `staleness_ratio/square_mean`, `staleness_ratio/capped_fraction` (proximal /
behavior, before the cap); `staleness_ratio/ess_fraction` (effective sample size of the weight
used, `(sum w)^2 / (n sum w^2)`, Kish 1965) with its parts `weight_mean` and `weight_square_mean`;
`kl/proximal_current_k3` and `kl/behavior_proximal_k3` (Schulman 2020, `ratio - 1 - log ratio`).
"""

from collections.abc import Iterable

import torch
from torch import Tensor

from awrl_ppo_loss.output import Metrics
from awrl_ppo_loss.ratios import StalenessWeight

NUM_TOKENS = "loss/num_tokens"
"""Key of the number of trainable tokens, the weight of every mean."""

_ESS = "staleness_ratio/ess_fraction"
_WEIGHT_MEAN = "staleness_ratio/weight_mean"
_WEIGHT_SQUARE_MEAN = "staleness_ratio/weight_square_mean"


def masked_mean(values: Tensor, mask: Tensor, num_tokens: Tensor) -> Tensor:
    """Return the mean over trainable tokens as float64 scalar, 0 if there is none."""
    kept = torch.where(mask, values, 0)
    return kept.sum(dtype=torch.float64) / num_tokens.clamp(min=1)


def masked_max(values: Tensor, mask: Tensor) -> Tensor:
    """Return the maximum of non-negative values over trainable tokens, 0 if there is none."""
    if values.numel() == 0:
        return torch.zeros((), dtype=torch.float64, device=values.device)
    return torch.where(mask, values, 0).max().double()


@torch.no_grad()
def update_metrics(
    log_ratio: Tensor,
    ratio: Tensor,
    mask: Tensor,
    *,
    is_low: Tensor,
    is_high: Tensor,
    is_dual: Tensor | None,
) -> dict[str, Tensor | float]:
    """Describe the clipped ratio: current over proximal, or over behavior when coupled."""
    num_tokens = mask.sum().double()
    low = masked_mean(is_low, mask, num_tokens)
    high = masked_mean(is_high, mask, num_tokens)
    dual = 0.0 if is_dual is None else masked_mean(is_dual, mask, num_tokens)
    return {
        NUM_TOKENS: num_tokens,
        "clip/fraction": low + high,
        "clip/low_fraction": low,
        "clip/high_fraction": high,
        "clip/dual_fraction": dual,
        "update_ratio/mean": masked_mean(ratio, mask, num_tokens),
        "update_ratio/max": masked_max(ratio, mask),
        "kl/proximal_current_k3": masked_mean(ratio - 1 - log_ratio, mask, num_tokens),
    }


def coupled_staleness_metrics() -> dict[str, Tensor | float]:
    """Describe a loss without a staleness weight: the weight is 1."""
    return {
        "staleness_ratio/mean": 1.0,
        "staleness_ratio/max": 1.0,
        "staleness_ratio/square_mean": 1.0,
        "staleness_ratio/capped_fraction": 0.0,
        _WEIGHT_MEAN: 1.0,
        _WEIGHT_SQUARE_MEAN: 1.0,
        _ESS: 1.0,
        "kl/behavior_proximal_k3": 0.0,
    }


@torch.no_grad()
def staleness_metrics(staleness: StalenessWeight, mask: Tensor) -> dict[str, Tensor | float]:
    """Describe the staleness weight before and after its cap."""
    num_tokens = mask.sum().double()
    ratio, weight = staleness.ratio, staleness.weight
    mean = masked_mean(ratio, mask, num_tokens)
    square_mean = masked_mean(ratio * ratio, mask, num_tokens)
    capped: Tensor | float = 0.0
    weight_mean, weight_square_mean = mean, square_mean
    if staleness.is_capped is not None:
        capped = masked_mean(staleness.is_capped, mask, num_tokens)
        weight_mean = masked_mean(weight, mask, num_tokens)
        weight_square_mean = masked_mean(weight * weight, mask, num_tokens)
    kl = masked_mean(ratio - 1 - staleness.log_ratio, mask, num_tokens)
    return {
        "staleness_ratio/mean": mean,
        "staleness_ratio/max": masked_max(ratio, mask),
        "staleness_ratio/square_mean": square_mean,
        "staleness_ratio/capped_fraction": capped,
        _WEIGHT_MEAN: weight_mean,
        _WEIGHT_SQUARE_MEAN: weight_square_mean,
        _ESS: _ess_fraction(weight_mean, weight_square_mean),
        "kl/behavior_proximal_k3": kl,
    }


def _ess_fraction(mean: Tensor, square_mean: Tensor) -> Tensor:
    """Return `mean^2 / square_mean`, and 0 when every weight is 0."""
    return torch.where(square_mean == 0, 0.0, mean * mean / square_mean)


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
