"""The one loop that repeats what failed, with bounded, growing, jittered waits."""

from __future__ import annotations

import logging
import random
from collections.abc import Awaitable, Callable
from typing import TypeVar

import msgspec

logger = logging.getLogger(__name__)

ResultT = TypeVar("ResultT")

Sleep = Callable[[float], Awaitable[None]]
"""Waits so many seconds; a virtual clock's in tests."""


class RetryPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """How often something is repeated, and how long the waits before are.

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
            if not value >= 0:
                raise ValueError(f"{name} must be at least 0, got {value}. Use 0 to switch it off.")
        if not 0 <= self.jitter <= 1:
            raise ValueError(
                f"jitter must be between 0 and 1, got {self.jitter}. It is a share of the wait."
            )

    def delay_s(self, num_attempts: int, rng: random.Random) -> float:
        """Return the wait before the next run, after `num_attempts` failed ones."""
        full = min(self.max_delay_s, self.base_delay_s * 2.0 ** min(num_attempts - 1, 60))
        return full * (1.0 - self.jitter * rng.random())

    async def call(
        self,
        attempt: Callable[[], Awaitable[ResultT]],
        *,
        repeats: type[Exception],
        sleep: Sleep,
        rng: random.Random,
    ) -> ResultT:
        """Return what `attempt` returns, repeated while it raises `repeats` and retries are left.

        Any other error ends the loop, and so does the last one of the allowed attempts.
        """
        num_failed = 0
        while True:
            try:
                return await attempt()
            except repeats as error:
                num_failed += 1
                if num_failed > self.max_retries:
                    raise
                delay_s = self.delay_s(num_failed, rng)
                logger.info("attempt %d failed, next in %.2f s: %s", num_failed, delay_s, error)
            await sleep(delay_s)
