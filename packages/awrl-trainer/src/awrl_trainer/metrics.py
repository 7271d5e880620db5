"""Metrics of an update, merged over micro-batches and ranks.

Invariant: means are merged with their token counts (`awrl_ppo_loss.merge_metrics`); an average of
averages never happens. Ranks call `merge_over_ranks` with the same names.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
import torch.distributed as dist
from awrl_ppo_loss import merge_metrics
from torch import Tensor

from awrl_trainer.rows import TrainRow

__all__ = [
    "UpdateMetrics",
    "UpdateResult",
    "merge_over_ranks",
    "off_policyness_metrics",
    "sum_over_ranks",
]

UpdateMetrics = dict[str, float]
"""Metrics of one update by name, equal on every rank: `area/what_unit`."""


@dataclass(frozen=True, kw_only=True, slots=True)
class UpdateResult:
    """What an update did, equal on every rank."""

    version: int
    """Version of the weights now: that from before when every step was skipped."""

    metrics: UpdateMetrics
    """For reports only."""


def merge_over_ranks(
    parts: Sequence[Mapping[str, Tensor | float]],
    group: dist.ProcessGroup | None,
    device: torch.device,
) -> UpdateMetrics:
    """Merge metrics of this rank's micro-batches with those of all ranks.

    Args:
        parts: One mapping per micro-batch, `loss/num_tokens` among the keys; the same keys on every
            rank.
        group: The ranks, None for this one only.
        device: Where the exchange happens.
    """
    merged = merge_metrics(parts)
    if group is None or dist.get_world_size(group) == 1:
        return merged
    names = sorted(merged)
    mine = torch.tensor([merged[name] for name in names], dtype=torch.float64, device=device)
    everyone = [torch.empty_like(mine) for _ in range(dist.get_world_size(group))]
    dist.all_gather(everyone, mine, group=group)
    return merge_metrics([dict(zip(names, values.tolist(), strict=True)) for values in everyone])


def sum_over_ranks(value: float, group: dist.ProcessGroup | None, device: torch.device) -> float:
    """Return the sum of a number over all ranks."""
    total = torch.tensor(value, dtype=torch.float64, device=device)
    if group is not None and dist.get_world_size(group) > 1:
        dist.all_reduce(total, group=group)
    return float(total)


def off_policyness_metrics(
    rows: Sequence[TrainRow], current_version: int, *, num_bins: int = 8
) -> UpdateMetrics:
    """Return how old the trainable tokens are, over all rows whose versions are known.

    Args:
        rows: The rows of the update, those of all ranks.
        current_version: Version at the start of the update.
        num_bins: Bins 0, 1, ..., the last one open to the right.

    Returns:
        `off_policyness/share_K` of each bin, `off_policyness/mean` and `off_policyness/max`; empty
        when no row knows its versions.
    """
    known = [row.versions[row.loss_mask] for row in rows if row.versions is not None]
    if not known or not sum(map(len, known)):
        return {}
    ages = current_version - np.concatenate(known)
    counts = np.bincount(np.clip(ages, 0, num_bins - 1), minlength=num_bins)
    shares = {f"off_policyness/share_{k}": n / len(ages) for k, n in enumerate(counts.tolist())}
    return shares | {
        "off_policyness/mean": float(ages.mean()),
        "off_policyness/max": float(ages.max()),
    }
