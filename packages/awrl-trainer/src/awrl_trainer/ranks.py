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


def run_or_fail_together(
    action: Callable[[], ResultT],
    group: dist.ProcessGroup,
    device: torch.device,
    *,
    what: str,
    advice: str,
) -> ResultT:
    """Run something that has no collective in it, and raise on every rank if it failed on one.

    Whatever is raised on one rank must not leave the others waiting in the next collective.

    Args:
        what: What must succeed, such as `collate`.
        advice: What to do about it.

    Returns:
        What the action returned.

    Raises:
        BatchError: On every rank, the error of the first rank that failed; another kind of error is
            told in one, and is its cause where it was raised. A single rank raises what the action did.
    """
    if dist.get_world_size(group) == 1:
        return action()
    outcome = outcome_of(action)
    flag = torch.tensor(float(outcome.error is not None), device=device)
    dist.all_reduce(flag, group=group)
    if not float(flag):
        return cast("ResultT", outcome.value)
    own = outcome.error
    told = own
    if own is not None and not isinstance(own, BatchError):
        rank = dist.get_rank(group)
        told = BatchError(
            f"{what} must succeed on every rank, got {own!r} on rank {rank}. {advice}"
        )
    first = next(error for error in gathered(told, group) if error is not None)
    raise first from (None if isinstance(own, BatchError) else own)


def require_same_everywhere(digest: bytes, group: dist.ProcessGroup) -> None:
    """Check that all ranks hold the same digest.

    Raises:
        BatchError: On every rank, when one differs.
    """
    if len(set(gathered(digest, group))) > 1:
        raise BatchError(
            "rows must be the same on every rank, got different ones. Pass the whole batch to every"
            " rank, which takes its own share, and build every rank from one configuration and one"
            " checkpoint."
        )


def gathered(mine: ResultT, group: dist.ProcessGroup) -> list[ResultT]:
    """Return a small object of every rank, in the order of the ranks."""
    everyone: list[ResultT] = [mine] * dist.get_world_size(group)
    if len(everyone) > 1:
        dist.all_gather_object(everyone, mine, group=group)
    return everyone


def merge_over_ranks(
    parts: Sequence[Mapping[str, Tensor | float]], group: dist.ProcessGroup
) -> dict[str, float]:
    """Merge metrics of this rank's micro-batches with those of all ranks.

    Args:
        parts: One mapping per micro-batch, `loss/num_tokens` among the keys.
    """
    return merge_metrics(gathered(merge_metrics(parts), group))
