"""The bounds of one run, applied to its ledger. Pure; the manager holds the lock around it."""

from __future__ import annotations

from collections.abc import Mapping

from awrl_staleness.capacity import CONCURRENCY, STALENESS, Capacity, compute_capacity
from awrl_staleness.config import StalenessConfig
from awrl_staleness.errors import ConfigError
from awrl_staleness.ledger import Ledger


class Bounds:
    """Answers what may start.

    Args:
        config: The three numbers of the run.
    """

    def __init__(self, config: StalenessConfig) -> None:
        self._max_concurrent = config.max_concurrent
        self._budget = config.budget

    def capacity(self, ledger: Ledger, extra: Mapping[str, int]) -> Capacity:
        """Return how many more episodes may start, and which bound says so.

        Raises:
            ConfigError: An extra bound has the name of a built-in one.
        """
        for name in (CONCURRENCY, STALENESS):
            if name in extra:
                raise ConfigError(
                    f"extra bound must have a name of its own, got {name!r}. Rename it."
                )
        return compute_capacity(
            max_concurrent=self._max_concurrent,
            budget=self._budget,
            running=ledger.num_running,
            reserved=ledger.num_reserved,
            finished=ledger.finished,
            released=ledger.released,
            extra_bounds=extra,
        )

    def may_start(self, ledger: Ledger, group_id: str | None, extra: Mapping[str, int]) -> bool:
        """Return whether one episode may start; a group's member needs a free slot only."""
        if ledger.num_running >= self._max_concurrent:
            return False
        if group_id is not None:
            return True
        used = ledger.num_running + ledger.num_reserved + ledger.finished - ledger.released
        return used < self._budget and (not extra or min(extra.values()) >= 1)

    def refusing(self, ledger: Ledger, num_episodes: int, extra: Mapping[str, int]) -> str | None:
        """Return the first bound without room for a whole group, None when it fits.

        A group needs one free slot now, and room for all its members in every other bound.

        Raises:
            ConfigError: The group can never fit.
        """
        if not 1 <= num_episodes <= self._budget:
            raise ConfigError(
                f"num_episodes must be between 1 and (eta + 1) * B = {self._budget}, got "
                f"{num_episodes}. Use smaller groups or a larger consumer_batch_size."
            )
        for name, room in self.capacity(ledger, extra).bounds.items():
            if room < (1 if name == CONCURRENCY else num_episodes):
                return name
        return None
