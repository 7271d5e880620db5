"""Who holds which key: leases by trajectory, reference counts by key. Pure bookkeeping.

Invariants: a trajectory counts once per key however often it put the same content; the count of a
key is the number of trajectories that hold it, never negative; a key leaves the table exactly when
its count reaches zero; trajectories stand in the order of their last put, so that expiry looks
only at those that expire.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field


@dataclass(slots=True)
class Lease:
    """What one trajectory holds."""

    put_at: float
    """Moment of its last put."""
    keys: dict[str, None] = field(default_factory=dict[str, None])
    """Its keys, in the order it took them."""


class LeaseTable:
    """Leases of one shard. Called by the core only."""

    def __init__(self) -> None:
        self._leases: dict[str, Lease] = {}
        self._counts: dict[str, int] = {}

    @property
    def num_trajectories(self) -> int:
        """Trajectories that hold at least one key."""
        return len(self._leases)

    @property
    def num_references(self) -> int:
        """Pairs of trajectory and key."""
        return sum(self._counts.values())

    def __iter__(self) -> Iterator[tuple[str, str]]:
        """Iterate over pairs of trajectory and key."""
        return ((name, key) for name, lease in self._leases.items() for key in lease.keys)

    def acquire(self, trajectory_id: str, keys: Iterable[str], now: float) -> None:
        """Let a trajectory hold `keys` too; keys that it holds already stay as they are."""
        lease = self._leases.pop(trajectory_id, None) or Lease(now)
        lease.put_at = now
        for key in keys:
            if key not in lease.keys:
                lease.keys[key] = None
                self._counts[key] = self._counts.get(key, 0) + 1
        if lease.keys:
            self._leases[trajectory_id] = lease

    def release(self, trajectory_id: str) -> list[str]:
        """End a trajectory's lease; return the keys that nobody holds any more."""
        lease = self._leases.pop(trajectory_id, None)
        freed: list[str] = []
        for key in lease.keys if lease else ():
            self._counts[key] -= 1
            if not self._counts[key]:
                del self._counts[key]
                freed.append(key)
        return freed

    def is_holder(self, trajectory_id: str) -> bool:
        """Return whether a trajectory holds a key."""
        return trajectory_id in self._leases

    def overdue(self, before: float) -> list[str]:
        """Return the trajectories whose last put lies before the given moment."""
        found: list[str] = []
        for trajectory_id, lease in self._leases.items():
            if lease.put_at >= before:
                break
            found.append(trajectory_id)
        return found

    def forget(self, key: str) -> None:
        """Take a lost key out of every lease that holds it."""
        del self._counts[key]
        for trajectory_id, lease in list(self._leases.items()):
            lease.keys.pop(key, None)
            if not lease.keys:
                del self._leases[trajectory_id]
