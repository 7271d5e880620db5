"""`StalenessManager`: may one more episode start, and may this one be trained on.

Invariants, whatever the order of events and whatever thread they come from:
* `running <= max_concurrent` and `running + reserved + finished - released <= (eta + 1) * B`;
* a start and its check are one step, so two threads never share one unit;
* only `advance`, `release_budget`, `close_group` and an episode that ends without being queued
  make room in the budget;
* no lock is held while a listener runs, and none across any I/O.

One manager serves one run; workers never divide a second budget; evaluation never gets here.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping

from awrl_staleness.config import StalenessConfig
from awrl_staleness.errors import StalenessError
from awrl_staleness.ledger import EpisodeState, Ledger, check_whole
from awrl_staleness.statistics import CONCURRENCY, STALENESS, Capacity, StalenessStatistics


class StalenessManager:
    """Thread-safe ledger and capacity of one run.

    `extra_bounds` of its methods are further bounds of the caller by name, in episodes, such as an
    image store's free room. A method that gets an unknown or used id, or an event that the
    episode's state does not allow, raises `StalenessError` and changes nothing.

    Args:
        version: The weight version that the servers hold now. After a resume nothing runs and
            nothing is queued but what `try_restore` queues, so the capacity is the whole budget
            whatever the version.
    """

    def __init__(self, config: StalenessConfig, *, version: int = 0) -> None:
        check_whole("version", version)
        self.config = config
        self._max_concurrent = config.max_concurrent
        self._budget = config.budget
        self._ledger = Ledger(version)
        self._lock = threading.Lock()
        self._listeners: list[Callable[[], None]] = []

    @property
    def version(self) -> int:
        """The newest weight version that the servers hold."""
        return self._ledger.version

    # -- capacity

    def capacity(self, **extra_bounds: int) -> Capacity:
        """Return how many more episodes may start, and which bound binds.

        Raises:
            StalenessError: An extra bound has the name of a built-in one.
        """
        with self._lock:
            return self._capacity(extra_bounds)

    def is_fresh(self, oldest_version: int) -> bool:
        """Return whether a trajectory may be trained on now: at most eta versions behind.

        Args:
            oldest_version: Version of its oldest *trainable* token.
        """
        return self._ledger.version - oldest_version <= self.config.max_off_policyness

    def is_live(self, episode_id: str) -> bool:
        """Return whether an episode was enqueued, and neither ended nor was trained on yet."""
        with self._lock:
            return episode_id in self._ledger.entries

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
            StalenessError: The group can never fit, or is open.
        """
        with self._lock:
            if self._refusing_bound(num_episodes, extra_bounds) is not None:
                return False
            self._ledger.open_group(group_id, num_episodes)
            return True

    def refusing_bound(self, num_episodes: int, **extra_bounds: int) -> str | None:
        """Return the bound that refuses a group of this size, None when it would fit now.

        A group needs one free slot, and room for all its members under every other bound.

        Raises:
            StalenessError: The group can never fit.
        """
        with self._lock:
            return self._refusing_bound(num_episodes, extra_bounds)

    def close_group(self, group_id: str) -> None:
        """Return the group's unused units; its queued members stay queued."""
        with self._lock:
            self._ledger.close_group(group_id)
        self._notify()

    # -- episodes

    def enqueue(
        self, episode_id: str, *, group_id: str | None = None, label: str | None = None
    ) -> None:
        """Make an episode known; it takes no slot and, outside a group, no unit.

        Args:
            episode_id: Not the id of a live episode.
            group_id: An open group; a member takes one of its units when it starts.
            label: What waste is counted by, for example the task's difficulty.
        """
        with self._lock:
            self._ledger.enqueue(episode_id, group_id, label)

    def try_start(self, episode_id: str, **extra_bounds: int) -> bool:
        """Start an enqueued episode, or answer False; a group's member needs only a free slot.

        Raises:
            StalenessError: It is not enqueued, its group is closed, or has no unit left for it.
        """
        with self._lock:
            entry = self._ledger.entry(episode_id)
            is_waiting = entry.state is EpisodeState.ENQUEUED
            if is_waiting and not self._may_start(entry.group is not None, extra_bounds):
                return False
            self._ledger.start(entry)
            return True

    def try_admit(self, episode_id: str, *, label: str | None = None, **extra_bounds: int) -> bool:
        """Enqueue and start an ungrouped episode in one step, or answer False, nothing changed."""
        with self._lock:
            if not self._may_start(False, extra_bounds):
                return False
            self._ledger.admit(episode_id, label)
            return True

    def finish(self, episode_id: str, *, oldest_version: int | None = None) -> None:
        """Queue a running episode for training; its slot is free.

        Args:
            oldest_version: Version of its oldest trainable token; default the version at its start.
        """
        with self._lock:
            self._ledger.finish(episode_id, oldest_version)
        self._notify()

    def try_restore(self, oldest_versions: Mapping[str, int], *, label: str | None = None) -> bool:
        """Queue episodes that finished before a resume, or answer False, nothing changed.

        They take their units of the budget, and no slot. Whether they are still fresh is asked when
        they are consumed, as of any other.

        Args:
            oldest_versions: Version of the oldest trainable token by episode id.
            label: What waste is counted by.

        Raises:
            StalenessError: An id is live, or a version is above that of the servers.
        """
        with self._lock:
            self._ledger.check_restored(oldest_versions)
            if self._budget_room() < len(oldest_versions):
                return False
            self._ledger.restore(oldest_versions, label)
            return True

    def reject(self, episode_id: str, reason: str) -> None:
        """End an enqueued, running or queued episode as filtered out."""
        self._end(episode_id, EpisodeState.REJECTED, f"rejected: {reason}")

    def fault(self, episode_id: str, reason: str) -> None:
        """End a running or queued episode as lost to the infrastructure."""
        self._end(episode_id, EpisodeState.FAULTED, f"faulted: {reason}")

    def expire(self, episode_id: str) -> None:
        """End a running or queued episode as too far behind."""
        self._end(episode_id, EpisodeState.EXPIRED, "expired")

    # -- batches and versions

    def consume(self, episode_ids: Iterable[str]) -> int:
        """Move queued episodes into a batch, return its number; all or none; makes no room.

        Raises:
            StalenessError: An id is named twice, or not queued, or its group is open.
        """
        with self._lock:
            return self._ledger.consume(episode_ids)

    def advance(self, version: int, *, batches: Iterable[int] | None = None) -> int:
        """Note the servers' new version; release the budget of the batches behind it.

        Args:
            version: The version that the servers hold now, above the last one.
            batches: Batch numbers; None means every consumed batch.

        Returns:
            How many episodes these batches held.

        Raises:
            StalenessError: The version does not advance; a batch is named twice, or not open.
        """
        with self._lock:
            ledger = self._ledger
            check_whole("version", version)
            if version <= ledger.version:
                raise StalenessError(
                    f"version must be above {ledger.version}, got {version}. "
                    "Call release_budget for an update that was skipped."
                )
            num_episodes = ledger.release(batches)
            ledger.version = version
        self._notify()
        return num_episodes

    def release_budget(self, batches: Iterable[int] | None = None) -> int:
        """Release skipped or discarded batches, return how many episodes; the version stays.

        Args:
            batches: Batch numbers; None means every consumed batch.

        Raises:
            StalenessError: A batch is named twice, or not open.
        """
        with self._lock:
            num_episodes = self._ledger.release(batches)
        self._notify()
        return num_episodes

    def statistics(self) -> StalenessStatistics:
        """Return a frozen picture of counts, ages and waste."""
        with self._lock:
            ledger = self._ledger
            tally, num_training = ledger.tally, ledger.num_training
            return StalenessStatistics(
                version=ledger.version,
                capacity=self._capacity({}),
                num_enqueued=ledger.num_enqueued,
                num_running=ledger.num_running,
                num_reserved=ledger.num_reserved,
                num_queued=ledger.finished - ledger.released - num_training,
                num_training=num_training,
                num_trained=tally.num_trained,
                num_submitted=tally.num_submitted,
                num_rejected=tally.num_ended[EpisodeState.REJECTED],
                num_faulted=tally.num_ended[EpisodeState.FAULTED],
                num_expired=tally.num_ended[EpisodeState.EXPIRED],
                finished=ledger.finished,
                released=ledger.released,
                off_policyness=dict(tally.off_policyness),
                in_flight_age=dict(tally.in_flight_age),
                in_queue_age=dict(tally.in_queue_age),
                wasted_by_reason=dict(tally.wasted_by_reason),
                wasted_by_label=dict(tally.wasted_by_label),
            )

    # -- below the lock

    def _budget_room(self) -> int:
        """Return how many episodes the staleness budget still admits.

        With N episodes admitted so far and i versions published, AReaL (arXiv 2505.24298, section
        5.1) demands `floor((N - 1) / B) <= i + eta`; solved for the episodes that may still come:
        `(eta + i + 1) * B - (accepted + running)`. In place of `i * B` stands the number of
        episodes whose budget was really released, so that skipped updates do not starve the run
        and uneven batches do not make it drift.
        """
        ledger = self._ledger
        used = ledger.num_running + ledger.num_reserved + ledger.finished - ledger.released
        return self._budget - used

    def _capacity(self, extra: Mapping[str, int]) -> Capacity:
        _check_names(extra)
        slots = self._max_concurrent - self._ledger.num_running
        bounds = {CONCURRENCY: slots, STALENESS: self._budget_room(), **extra}
        binding = min(bounds, key=bounds.__getitem__)
        return Capacity(value=max(0, bounds[binding]), binding=binding, bounds=bounds)

    def _may_start(self, is_member: bool, extra: Mapping[str, int]) -> bool:
        """Return whether one episode may start; a group's member has its unit already."""
        if extra:
            _check_names(extra)
        if self._ledger.num_running >= self._max_concurrent:
            return False
        return is_member or (self._budget_room() >= 1 and (not extra or min(extra.values()) >= 1))

    def _refusing_bound(self, num_episodes: int, extra: Mapping[str, int]) -> str | None:
        check_whole("num_episodes", num_episodes)
        if not 1 <= num_episodes <= self._budget:
            raise StalenessError(
                f"num_episodes must be between 1 and (eta + 1) * B = {self._budget}, got "
                f"{num_episodes}. Use smaller groups or a larger consumer_batch_size."
            )
        for name, room in self._capacity(extra).bounds.items():
            if room < (1 if name == CONCURRENCY else num_episodes):
                return name
        return None

    def _end(self, episode_id: str, after: EpisodeState, reason: str) -> None:
        with self._lock:
            self._ledger.end(episode_id, after, reason)
        self._notify()

    def _notify(self) -> None:
        for listener in tuple(self._listeners):
            listener()


def _check_names(extra: Mapping[str, int]) -> None:
    for name in (CONCURRENCY, STALENESS):
        if name in extra:
            raise StalenessError(
                f"extra bound must have a name of its own, got {name!r}. Rename it."
            )
