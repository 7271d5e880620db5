"""What all ranks agree on, and what they add up.

Invariants:

* An error that one rank meets alone is raised on every rank, at the same place, before a collective
  that would hang otherwise.
* Means are merged with their token counts (`awrl_ppo_loss.merge_metrics`); an average of averages
  never happens.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar, cast

import torch
import torch.distributed as dist
from awrl_ppo_loss import merge_metrics
from torch import Tensor

from awrl_trainer.errors import BatchError
from awrl_trainer.outcome import outcome_of

ResultT = TypeVar("ResultT")


def require_same_everywhere(digest: bytes, group: dist.ProcessGroup, device: torch.device) -> None:
    """Check that all ranks hold the same digest.

    Args:
        digest: Bytes of equal length on every rank.

    Raises:
        BatchError: On every rank, when one differs.
    """
    if dist.get_world_size(group) == 1:
        return
    mine = torch.tensor(list(digest), dtype=torch.int64, device=device)
    low, high = mine.clone(), mine.clone()
    dist.all_reduce(low, op=dist.ReduceOp.MIN, group=group)
    dist.all_reduce(high, op=dist.ReduceOp.MAX, group=group)
    if not torch.equal(low, high):
        raise BatchError(
            "rows must be the same on every rank, got different ones. Pass the whole batch and the"
            " same version to every rank; each takes its own share."
        )


def run_or_fail_together(
    action: Callable[[], ResultT], group: dist.ProcessGroup, device: torch.device
) -> ResultT:
    """Run something that has no collective in it, and raise on every rank if it failed on one.

    Whatever a caller's function raises on one rank must not leave the others waiting in the next
    collective.

    Returns:
        What the action returned.

    Raises:
        BatchError: On the ranks where the action succeeded, when it failed elsewhere.
    """
    if dist.get_world_size(group) == 1:
        return action()
    outcome = outcome_of(action)
    flag = torch.tensor(float(outcome.error is not None), device=device)
    dist.all_reduce(flag, group=group)
    if outcome.error is not None:
        raise outcome.error
    if float(flag):
        raise BatchError(
            f"collate must succeed on every rank, got {int(flag)} ranks where it failed. See the"
            " error of that rank; nothing was updated by this step."
        )
    return cast("ResultT", outcome.value)


def merge_over_ranks(
    parts: Sequence[Mapping[str, Tensor | float]],
    group: dist.ProcessGroup,
    device: torch.device,
) -> dict[str, float]:
    """Merge metrics of this rank's micro-batches with those of all ranks.

    Args:
        parts: One mapping per micro-batch, `loss/num_tokens` among the keys; the same keys on every
            rank.
    """
    merged = merge_metrics(parts)
    if dist.get_world_size(group) == 1:
        return merged
    names = sorted(merged)
    mine = torch.tensor([merged[name] for name in names], dtype=torch.float64, device=device)
    everyone = [torch.empty_like(mine) for _ in range(dist.get_world_size(group))]
    dist.all_gather(everyone, mine, group=group)
    return merge_metrics([dict(zip(names, values.tolist(), strict=True)) for values in everyone])


def sum_over_ranks(value: float, group: dist.ProcessGroup, device: torch.device) -> float:
    """Return the sum of a number over all ranks."""
    total = torch.tensor(value, dtype=torch.float64, device=device)
    dist.all_reduce(total, group=group)
    return float(total)
