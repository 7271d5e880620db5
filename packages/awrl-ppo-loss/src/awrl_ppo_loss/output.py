"""What every loss of this package returns."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias

from torch import Tensor

Metrics: TypeAlias = Mapping[str, Tensor | float]
"""Metrics of one call by key `area/what`; tensors are detached scalars, left on their device so
that reading them is the caller's choice. `merge_metrics` joins those of several calls."""


@dataclass(frozen=True, slots=True)
class LossOutput:
    """A loss, what it was divided by, and how the policies differ."""

    loss: Tensor
    """Float64 scalar with gradient to the current log-probs only: this call's share of the
    batch's loss. Shares *add up* over micro-batches and ranks."""
    metrics: dict[str, Tensor | float]
    """See `Metrics`."""
    denominator: Tensor
    """Float64 scalar: the global denominator, passed in or counted."""
