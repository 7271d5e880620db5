"""The one error of this package."""

from __future__ import annotations


class PPOLossError(ValueError):
    """An argument has a wrong shape, dtype, device, range or meaning.

    Not raised for non-finite values of a tensor: those stay visible in the loss and its gradient.
    """
