"""Who holds which key: leases by trajectory, reference counts by key. Pure bookkeeping.

Invariants: a trajectory counts once per key however often it put the same content; the count of a
key is the number of trajectories that hold it, never negative; a key leaves the table exactly when
its count reaches zero; trajectories stand in the order of their last renewal, so that expiry looks
only at those that expire.
"""

from collections import OrderedDict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field


@dataclass(slots=True)
class _Lease:
    renewed_at: float
    keys: dict[str, None] = field(default_factory=dict[str, None])


class LeaseTable:
    """Leases of one shard. Called by the core only."""

    def __init__(self) -> None:
        self._leases: OrderedDict[str, _Lease] = OrderedDict()
        self._counts: dict[str, int] = {}

    @property
    def num_trajectories(self) -> int:
        """Trajectories that hold at least one key."""
        return len(self._leases)

    @property
    def num_references(self) -> int:
        """Pairs of trajectory and key."""
        return sum(self._counts.values())

    def count(self, key: str) -> int:
        """Return the number of trajectories that hold `key`."""
        return self._counts.get(key, 0)

    def keys_of(self, trajectory_id: str) -> list[str]:
        """Return the keys of a trajectory in the order it took them."""
        lease = self._leases.get(trajectory_id)
        return list(lease.keys) if lease else []

    def snapshot(self) -> Mapping[str, list[str]]:
        """Return all leases, least recently renewed first."""
        return {trajectory: list(lease.keys) for trajectory, lease in self._leases.items()}

    def acquire(self, trajectory_id: str, keys: Iterable[str], now: float) -> None:
        """Let a trajectory hold `keys` too; keys that it holds already stay as they are."""
        lease = self._leases.setdefault(trajectory_id, _Lease(now))
        lease.renewed_at = now
        self._leases.move_to_end(trajectory_id)
        for key in keys:
            if key not in lease.keys:
                lease.keys[key] = None
                self._counts[key] = self._counts.get(key, 0) + 1
        if not lease.keys:
            del self._leases[trajectory_id]

    def release(self, trajectory_id: str) -> list[str]:
        """End a trajectory's lease; return the keys that nobody holds any more."""
        lease = self._leases.pop(trajectory_id, None)
        return self._drop(lease.keys) if lease else []

    def transfer(self, source: str, target: str, now: float) -> None:
        """Hand everything that `source` holds to `target`; no key can become free by it."""
        if source == target or source not in self._leases:
            return
        keys = self._leases[source].keys
        self.acquire(target, keys, now)
        self.release(source)

    def renew(self, trajectory_id: str, now: float) -> bool:
        """Mark a trajectory as alive; return whether it holds anything."""
        lease = self._leases.get(trajectory_id)
        if lease is None:
            return False
        lease.renewed_at = now
        self._leases.move_to_end(trajectory_id)
        return True

    def overdue(self, before: float) -> list[str]:
        """Return the trajectories whose last renewal lies before the given moment."""
        found: list[str] = []
        for trajectory, lease in self._leases.items():
            if lease.renewed_at >= before:
                break
            found.append(trajectory)
        return found

    def forget(self, key: str) -> None:
        """Take a lost key out of every lease that holds it."""
        if self._counts.pop(key, None) is None:
            return
        emptied: list[str] = []
        for trajectory, lease in self._leases.items():
            lease.keys.pop(key, None)
            if not lease.keys:
                emptied.append(trajectory)
        for trajectory in emptied:
            del self._leases[trajectory]

    def _drop(self, keys: Iterable[str]) -> list[str]:
        freed: list[str] = []
        for key in keys:
            self._counts[key] -= 1
            if not self._counts[key]:
                del self._counts[key]
                freed.append(key)
        return freed
