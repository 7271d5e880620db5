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
from awrl_ppo_loss.ratios import Ratios, StalenessWeight
from awrl_ppo_loss.selection import Selection

NUM_TOKENS = "loss/num_tokens"
"""Key of the number of trainable tokens, the weight of every mean."""

_ESS = "staleness_ratio/ess_fraction"
_WEIGHT_MEAN = "staleness_ratio/weight_mean"
_WEIGHT_SQUARE_MEAN = "staleness_ratio/weight_square_mean"

_CLIP_KEYS = ("clip/low_fraction", "clip/high_fraction")

_TINY = 1e-300
"""Keeps 0 / 0 out of the effective sample size when every weight is 0."""

_CONSTANTS: dict[str, Tensor | float] = {
    "clip/dual_fraction": 0.0,
    "staleness_ratio/mean": 1.0,
    "staleness_ratio/max": 1.0,
    "staleness_ratio/capped_fraction": 0.0,
    _WEIGHT_MEAN: 1.0,
    _WEIGHT_SQUARE_MEAN: 1.0,
    _ESS: 1.0,
    "kl/behavior_proximal_k3": 0.0,
}
"""Values of a coupled loss without a dual clip; whatever is measured takes their place."""


@dataclass(frozen=True, slots=True)
class ClipCounts:
    """On how many trainable tokens a bound of the update ratio acts."""

    low_high: Tensor
    """Float64 `[2]`: at the lower bound (ratio below it, advantage < 0), and at the upper one."""
    dual: Tensor | None = None
    """Float64 scalar: at the dual clip; `None` without one."""


def policy_metrics(
    selection: Selection, ratios: Ratios, clip: ClipCounts, weight: StalenessWeight | None
) -> dict[str, Tensor | float]:
    """Describe a policy loss; `weight` is `None` for a coupled one, whose weight is 1.

    Args:
        selection: Trainable positions.
        ratios: The update ratio, and the staleness ratio unless the loss is coupled.
        clip: On how many tokens the bounds act.
        weight: The staleness weight in use.
    """
    num_tokens = selection.num_tokens
    sums = ratios.values.sum(dim=1, dtype=torch.float64)
    names = ["update_ratio", "staleness_ratio"][: len(sums)]
    kl_names = ["kl/proximal_current_k3", "kl/behavior_proximal_k3"][: len(sums)]
    keys = [f"{name}/mean" for name in names] + kl_names + list(_CLIP_KEYS)
    parts = [sums, sums - num_tokens - ratios.log_sums, clip.low_high]
    if weight is not None:
        keys += [_WEIGHT_SQUARE_MEAN]
        parts += [(weight.value * weight.value).sum(dtype=torch.float64)[None]]
    for key, count in _optional_sums(clip, weight).items():
        keys += [key]
        parts += [count[None]]
    means = torch.cat(parts) / num_tokens.clamp(min=1)
    maxima = _largest_of_rows(ratios.values)
    metrics: dict[str, Tensor | float] = {NUM_TOKENS: num_tokens, **_CONSTANTS}
    metrics |= zip(keys, means.unbind(), strict=True)
    metrics |= zip([f"{name}/max" for name in names], maxima.unbind(), strict=True)
    metrics["clip/fraction"] = metrics["clip/low_fraction"] + metrics["clip/high_fraction"]
    if weight is not None:
        mean = means[1] if weight.is_bounded is None else metrics[_WEIGHT_MEAN]
        square_mean = torch.as_tensor(metrics[_WEIGHT_SQUARE_MEAN])
        metrics[_WEIGHT_MEAN] = mean
        metrics[_ESS] = mean * mean / square_mean.clamp(min=_TINY)
    return metrics


def _optional_sums(clip: ClipCounts, weight: StalenessWeight | None) -> dict[str, Tensor]:
    sums: dict[str, Tensor] = {}
    if clip.dual is not None:
        sums["clip/dual_fraction"] = clip.dual
    if weight is not None and weight.is_bounded is not None:
        sums["staleness_ratio/capped_fraction"] = weight.is_bounded.sum().double()
        sums[_WEIGHT_MEAN] = weight.value.sum(dtype=torch.float64)
    return sums


def _largest_of_rows(values: Tensor) -> Tensor:
    if values.shape[1] == 0:
        return values.sum(dim=1, dtype=torch.float64)
    return values.amax(dim=1).double()


def token_means(sums: Mapping[str, Tensor], num_tokens: Tensor) -> dict[str, Tensor]:
    """Divide float64 sums over trainable tokens by their number; 0 if there is none."""
    means = torch.stack(tuple(sums.values())) / num_tokens.clamp(min=1)
    return dict(zip(sums, means.unbind(), strict=True))


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
