"""Which server each episode is on: a new one goes where the fewest are, and stays.

Episodes are counted, not requests: an episode has a request only now and then, and what it will ask for
until its end is the load that a choice at its start decides about.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence


class EpisodeAssignment:
    """Assigns episodes to servers, in the one process that starts them all.

    Args:
        servers: Names of the servers.

    Invariants:
        * of the servers that may be chosen, the one with the fewest episodes gets the next one; among
          equals the one that has waited longest;
        * an episode keeps its server until it is released, or the server leaves;
        * what ends with its worker is released with it.
    """

    def __init__(self, servers: Iterable[str] = ()) -> None:
        self._servers: list[str] = []
        self._assigned: dict[str, dict[str, str]] = {}
        self._counts: Counter[str] = Counter()
        self.set_servers(servers)

    def set_servers(self, servers: Iterable[str]) -> None:
        """Choose among these from now on; episodes of others are counted nowhere."""
        wanted = list(dict.fromkeys(servers))
        # Those that stay keep their turn.
        kept = [name for name in self._servers if name in wanted]
        self._servers = kept + [name for name in wanted if name not in kept]
        for worker, servers_of in self._assigned.items():
            gone = [key for key, name in servers_of.items() if name not in wanted]
            self.release(worker, gone)

    def assign(self, worker: str, episode_ids: Sequence[str]) -> dict[str, str]:
        """Return the server of each episode that a worker is about to run; empty without servers."""
        if not self._servers:
            return {}
        mine = self._assigned.setdefault(worker, {})
        for key in episode_ids:
            if key not in mine:
                name = min(self._servers, key=self._counts.__getitem__)
                self._servers.remove(name)
                self._servers.append(name)
                mine[key] = name
                self._counts[name] += 1
        return {key: mine[key] for key in episode_ids}

    def release(self, worker: str, episode_ids: Iterable[str]) -> None:
        """Count episodes no more: they have ended; unknown ones are passed over."""
        mine = self._assigned.get(worker, {})
        for key in episode_ids:
            if (name := mine.pop(key, None)) is not None:
                self._counts[name] -= 1

    def release_worker(self, worker: str) -> None:
        """Count no episode of a worker any more: it is gone."""
        self.release(worker, list(self._assigned.get(worker, ())))
        self._assigned.pop(worker, None)

    @property
    def max_over_mean(self) -> float:
        """Episodes of the fullest server over the mean of all; 1 while there are none."""
        total = sum(self._counts[name] for name in self._servers)
        if not total:
            return 1.0
        return max(self._counts[name] for name in self._servers) * len(self._servers) / total
