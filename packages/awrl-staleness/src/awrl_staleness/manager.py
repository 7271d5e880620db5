"""`StalenessManager`: may one more episode start, and may this one be trained on.

Invariants, whatever the order of events and whatever thread they come from:
* `running <= max_concurrent` and `running + reserved + unsettled <= (eta + 1) * B`;
* a start and its check are one step, so two threads never share one unit;
* only `advance`, `release_budget` and an episode that ends without being queued create capacity;
* no lock is held while a listener runs, and none across any I/O.

One manager serves one run; workers never divide a second budget; evaluation never gets here.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterable

from awrl_staleness.bounds import Bounds
from awrl_staleness.capacity import Capacity
from awrl_staleness.config import StalenessConfig
from awrl_staleness.errors import CapacityExceededError, ConfigError
from awrl_staleness.freshness import is_fresh
from awrl_staleness.ledger import Ledger
from awrl_staleness.snapshot import LedgerSnapshot, restore_ledger, take_snapshot
from awrl_staleness.states import EpisodeEvent, EpisodeState
from awrl_staleness.statistics import StalenessStatistics, take_statistics


class StalenessManager:
    """Thread-safe ledger and capacity of one run.

    Args:
        config: The three bounds.
        version: The weight version that the servers hold now.
    """

    def __init__(self, config: StalenessConfig, *, version: int = 0) -> None:
        self.config = config
        self._ledger = Ledger(version=version)
        self._lock = threading.Lock()
        self._bounds = Bounds(config)
        self._listeners: list[Callable[[], None]] = []

    @property
    def version(self) -> int:
        """The newest published weight version."""
        return self._ledger.version

    # -- capacity

    def capacity(self, **extra_bounds: int) -> Capacity:
        """Return how many more may start and which bound binds, your own named ones included."""
        with self._lock:
            return self._bounds.capacity(self._ledger, extra_bounds)

    def is_fresh(self, oldest_version: int, current_version: int | None = None) -> bool:
        """Return whether a trajectory may be trained on at `current_version` (default: now)."""
        current = self._ledger.version if current_version is None else current_version
        return is_fresh(oldest_version, current, self.config.max_off_policyness)

    def state(self, episode_id: str) -> EpisodeState | None:
        """Return where a live episode stands, None for one that ended or never was."""
        with self._lock:
            entry = self._ledger.entries.get(episode_id)
            return None if entry is None else entry.state

    def subscribe(self, listener: Callable[[], None]) -> Callable[[], None]:
        """Call `listener` after every event that may have created capacity.

        It runs in the event's thread, outside the lock, and must not raise. Returns a callable
        that ends the subscription.
        """
        self._listeners.append(listener)
        return lambda: self._listeners.remove(listener)

    # -- groups

    def try_reserve(self, group_id: str, num_episodes: int, **extra_bounds: int) -> bool:
        """Reserve units for a group until `close_group`, or answer False; needs one free slot.

        Raises:
            ConfigError: The group can never fit.
            DuplicateEpisodeError: The group is open.
        """
        with self._lock:
            if self._bounds.refusing(self._ledger, num_episodes, extra_bounds) is not None:
                return False
            self._ledger.open_group(group_id, num_episodes)
            return True

    def refusing_bound(self, num_episodes: int, **extra_bounds: int) -> str | None:
        """Return the bound that refuses a group of this size, None when it would fit now."""
        with self._lock:
            return self._bounds.refusing(self._ledger, num_episodes, extra_bounds)

    def close_group(self, group_id: str) -> None:
        """Return the group's unused units; its queued members stay queued.

        Raises:
            UnknownEpisodeError: The group is not open.
        """
        with self._lock:
            self._ledger.close_group(group_id)
        self._notify()

    # -- episodes

    def enqueue(
        self, episode_id: str, *, group_id: str | None = None, label: str | None = None
    ) -> None:
        """Make an episode known; it takes no slot and, outside a group, no unit.

        Raises:
            DuplicateEpisodeError: The id is live.
            UnknownEpisodeError: The group is not open.
        """
        with self._lock:
            self._ledger.enqueue(episode_id, group_id, label)

    def try_start(self, episode_id: str, **extra_bounds: int) -> bool:
        """Start an enqueued episode, or answer False; a group's member needs only a free slot.

        Raises:
            UnknownEpisodeError: The id is not live.
            IllegalTransitionError: It is not enqueued, or its group is closed.
            CapacityExceededError: Its group has more members than units.
        """
        with self._lock:
            ledger = self._ledger
            entry = ledger.entry(episode_id)
            is_queued = entry.state is EpisodeState.ENQUEUED
            if is_queued and not self._bounds.may_start(ledger, entry.group_id, extra_bounds):
                return False
            ledger.start(episode_id)
            return True

    def start(self, episode_id: str, **extra_bounds: int) -> None:
        """Start an enqueued episode.

        Raises:
            CapacityExceededError: A bound leaves no room.
            UnknownEpisodeError: The id is not live.
            IllegalTransitionError: It is not enqueued, or its group is closed.
        """
        if not self.try_start(episode_id, **extra_bounds):
            raise CapacityExceededError(
                f"capacity must be at least 1 to start {episode_id!r}, got: "
                f"{self.capacity(**extra_bounds).describe()}. Wait for an ending or a publish."
            )

    def try_admit(self, episode_id: str, *, label: str | None = None, **extra_bounds: int) -> bool:
        """Enqueue and start an ungrouped episode in one step, or answer False, nothing changed.

        Raises:
            DuplicateEpisodeError: The id is live.
        """
        with self._lock:
            if not self._bounds.may_start(self._ledger, None, extra_bounds):
                return False
            self._ledger.admit(episode_id, label)
            return True

    def finish(self, episode_id: str, *, oldest_version: int | None = None) -> None:
        """Queue a running episode for training; its slot is free.

        Args:
            episode_id: A running episode.
            oldest_version: Version of its oldest trainable token; default the version at its start.

        Raises:
            UnknownEpisodeError: The id is not live.
            IllegalTransitionError: It is not running.
        """
        with self._lock:
            self._ledger.finish(episode_id, oldest_version)
        self._notify()

    def reject(self, episode_id: str, reason: str) -> None:
        """End an enqueued, running or queued episode as filtered out.

        Raises:
            UnknownEpisodeError: The id is not live.
            IllegalTransitionError: It was consumed.
        """
        self._end(episode_id, EpisodeEvent.REJECT, f"rejected: {reason}")

    def fault(self, episode_id: str, reason: str) -> None:
        """End a running or queued episode as lost to the infrastructure.

        Raises:
            UnknownEpisodeError: The id is not live.
            IllegalTransitionError: It is neither running nor queued.
        """
        self._end(episode_id, EpisodeEvent.FAULT, f"faulted: {reason}")

    def expire(self, episode_id: str) -> None:
        """End a running or queued episode as too far behind.

        Raises:
            UnknownEpisodeError: The id is not live.
            IllegalTransitionError: It is neither running nor queued.
        """
        self._end(episode_id, EpisodeEvent.EXPIRE, "expired")

    # -- batches and versions

    def consume(self, episode_ids: Iterable[str]) -> int:
        """Move queued episodes into a batch, return its number; creates no capacity.

        Raises:
            ConfigError: An id is named twice.
            UnknownEpisodeError: An id is not live.
            IllegalTransitionError: One is not queued, or its group is open. Nothing was moved.
        """
        with self._lock:
            return self._ledger.consume(episode_ids)

    def advance(self, version: int, *, batches: Iterable[int] | None = None) -> int:
        """Note the servers' new version; release the batches behind it, return how many episodes.

        Args:
            version: The version that the servers hold now, above the last one.
            batches: Batch numbers; None means every consumed batch.

        Raises:
            ConfigError: The version does not advance.
            UnknownEpisodeError: A batch is not open. Nothing was changed.
        """
        with self._lock:
            ledger = self._ledger
            if version <= ledger.version:
                raise ConfigError(
                    f"version must be above {ledger.version}, got {version}. Call release_budget for an "
                    "update that was skipped."
                )
            num_episodes = ledger.release(batches)
            ledger.version = version
            ledger.tally.num_advances += 1
        self._notify()
        return num_episodes

    def release_budget(self, batches: Iterable[int] | None = None) -> int:
        """Release skipped or discarded batches, return how many episodes; the version stays.

        Args:
            batches: Batch numbers; None means every consumed batch.

        Raises:
            UnknownEpisodeError: A batch is not open.
        """
        with self._lock:
            num_before = len(self._ledger.batches)
            num_episodes = self._ledger.release(batches)
            self._ledger.tally.num_skips += num_before - len(self._ledger.batches)
        self._notify()
        return num_episodes

    # -- reports and resume

    def statistics(self) -> StalenessStatistics:
        """Return a frozen picture of counts, ages and waste."""
        with self._lock:
            return take_statistics(self._ledger, self._bounds.capacity(self._ledger, {}))

    def snapshot(self) -> LedgerSnapshot:
        """Return what a checkpoint has to hold."""
        with self._lock:
            return take_snapshot(self._ledger)

    @classmethod
    def restore(
        cls,
        config: StalenessConfig,
        snapshot: LedgerSnapshot,
        *,
        persisted: Collection[str] = (),
        version: int | None = None,
    ) -> tuple[StalenessManager, tuple[str, ...]]:
        """Return a manager with the persisted episodes queued, and the ids to enqueue again.

        Args:
            config: The bounds of the resumed run; they may differ from the first run's.
            snapshot: The answer of `snapshot`.
            persisted: Ids of finished episodes whose trajectories were saved with it.
            version: Version that the trainer resumed at; default the snapshot's.
        """
        manager = cls(config)
        at = snapshot.version if version is None else version
        manager._ledger, lost = restore_ledger(snapshot, frozenset(persisted), at)
        return manager, lost

    def _end(self, episode_id: str, event: EpisodeEvent, reason: str) -> None:
        with self._lock:
            self._ledger.end(episode_id, event, reason)
        self._notify()

    def _notify(self) -> None:
        for listener in tuple(self._listeners):
            listener()
