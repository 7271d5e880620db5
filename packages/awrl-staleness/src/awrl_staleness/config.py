"""The three numbers that bound a run, validated once."""

from __future__ import annotations

import msgspec

from awrl_staleness.errors import StalenessError


class StalenessConfig(msgspec.Struct, frozen=True, kw_only=True):
    """How many episodes may run, and how far behind they may fall.

    Raises:
        StalenessError: A number is not whole, or out of its range.
    """

    max_concurrent: int
    """Episodes that may run at once, over all workers."""
    consumer_batch_size: int
    """Episodes that one optimizer update usually consumes (B)."""
    max_off_policyness: int
    """Weight versions that a trained token may lie behind (eta); 0 is synchronous RL."""

    def __post_init__(self) -> None:
        """Check every number against its rule."""
        for name, value, low, remedy in (
            ("max_concurrent", self.max_concurrent, 1, "Count in episodes, not groups."),
            ("consumer_batch_size", self.consumer_batch_size, 1, "Count in episodes, not groups."),
            ("max_off_policyness", self.max_off_policyness, 0, "Use 0 for synchronous RL."),
        ):
            if type(value) is not int:
                raise StalenessError(f"{name} must be a whole number, got {value!r}. {remedy}")
            if value < low:
                raise StalenessError(f"{name} must be at least {low}, got {value}. {remedy}")

    @property
    def budget(self) -> int:
        """Episodes that may be admitted and not released at once, `(eta + 1) * B`."""
        return (self.max_off_policyness + 1) * self.consumer_batch_size
