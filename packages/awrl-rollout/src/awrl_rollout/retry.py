"""How often one slot runs one episode again, and how long it waits before."""

from __future__ import annotations

import random
from collections.abc import Collection

import msgspec

from awrl_rollout.faults import FaultKind

NEVER_RETRIED: frozenset[FaultKind] = frozenset(
    {FaultKind.TIMEOUT, FaultKind.CANCELLED, FaultKind.WORKER_LOST, FaultKind.SITE_BLOCKED}
)
"""Kinds that a second run in the same slot cannot help, or that already cost a whole deadline."""


class RetryPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """Bounded retries with exponential, jittered waits.

    Raises:
        ValueError: A number is out of its range.
    """

    max_retries: int = 0
    """Runs after the first one; 3 means at most 4 attempts."""
    base_delay_s: float = 1.0
    """Wait before the first retry; doubles each time."""
    max_delay_s: float = 30.0
    jitter: float = 0.5
    """Share of the wait that is random, 0 to 1."""

    def __post_init__(self) -> None:
        """Check every number against its rule."""
        for name in ("max_retries", "base_delay_s", "max_delay_s"):
            value = getattr(self, name)
            if value < 0:
                raise ValueError(f"{name} must be at least 0, got {value}. Use 0 to switch it off.")
        if not 0 <= self.jitter <= 1:
            raise ValueError(
                f"jitter must be between 0 and 1, got {self.jitter}. It is a share of the wait."
            )

    def should_retry(
        self,
        kind: FaultKind,
        num_attempts: int,
        *,
        never: Collection[FaultKind] = NEVER_RETRIED,
    ) -> bool:
        """Return whether an episode that failed `num_attempts` times runs once more."""
        return num_attempts <= self.max_retries and kind not in never

    def delay_s(self, num_attempts: int, rng: random.Random) -> float:
        """Return the wait before the next run, after `num_attempts` failed ones."""
        full = min(self.max_delay_s, self.base_delay_s * 2.0 ** (num_attempts - 1))
        return full * (1.0 - self.jitter * rng.random())
