"""The three numbers that bound a run, validated once."""

from __future__ import annotations

import msgspec

from awrl_staleness.errors import ConfigError


class StalenessConfig(msgspec.Struct, frozen=True, kw_only=True):
    """How many episodes may run, and how far behind they may fall.

    Raises:
        ConfigError: A number is out of its range.
    """

    max_concurrent: int
    """Episodes that may run at once, over all workers."""
    consumer_batch_size: int
    """Episodes that one optimizer update usually consumes (B)."""
    max_off_policyness: int
    """Weight versions that a trained token may lie behind (eta); 0 is synchronous RL."""

    def __post_init__(self) -> None:
        """Check every number against its rule."""
        for name, value, low in (
            ("max_concurrent", self.max_concurrent, 1),
            ("consumer_batch_size", self.consumer_batch_size, 1),
            ("max_off_policyness", self.max_off_policyness, 0),
        ):
            if value < low:
                raise ConfigError(
                    f"{name} must be at least {low}, got {value}. Count in episodes, not groups."
                    if low
                    else f"{name} must be at least 0, got {value}. Use 0 for synchronous RL."
                )

    @property
    def budget(self) -> int:
        """Episodes that may be unsettled at once, `(eta + 1) * B`."""
        return (self.max_off_policyness + 1) * self.consumer_batch_size
