"""The ledger: where every live episode stands, and what it holds. Pure; no lock, no clock.

    enqueued --start--> running --finish--> finished --consume--> consumed
        |                  |                   |
      reject        reject, fault,      reject, fault,
                       expire               expire

What finished before a resume comes back as finished (`restore`).

Invariants:
* every enqueued episode ends in exactly one terminal state, and is forgotten then (a consumed one
  when the budget of its batch is released), so memory follows the number of live episodes;
* no counter is ever negative;
* a group's units stay the group's until it is closed: a member that is lost hands its unit back
  to the group, not to the budget;
* an event that the table lacks raises, and changes nothing.

Called by `StalenessManager`, which adds the lock and the bounds.
"""

from __future__ import annotations

import enum
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

import msgspec

from awrl_staleness.errors import StalenessError


class EpisodeState(enum.Enum):
    """Where an episode stands."""

    # Members are singletons; Enum's own hash is a Python call and costs a fifth of an event.
    __hash__ = object.__hash__

    ENQUEUED = "enqueued"
    """Known, holds no slot."""
    RUNNING = "running"
    """Holds one slot and one unit of the staleness budget."""
    FINISHED = "finished"
    """Ended well and waits in the queue; its slot is free, its unit is not."""
    CONSUMED = "consumed"
    """In a batch; its unit returns when the budget of that batch is released."""
    REJECTED = "rejected"
    """Filtered out; its unit has returned."""
    FAULTED = "faulted"
    """Lost to the infrastructure; its unit has returned."""
    EXPIRED = "expired"
    """Too far behind to be trained on; its unit has returned."""


TRANSITIONS: dict[EpisodeState, frozenset[EpisodeState]] = {
    EpisodeState.RUNNING: frozenset({EpisodeState.ENQUEUED}),
    EpisodeState.FINISHED: frozenset({EpisodeState.RUNNING}),
    EpisodeState.CONSUMED: frozenset({EpisodeState.FINISHED}),
    EpisodeState.REJECTED: frozenset(
        {EpisodeState.ENQUEUED, EpisodeState.RUNNING, EpisodeState.FINISHED}
    ),
    EpisodeState.FAULTED: frozenset({EpisodeState.RUNNING, EpisodeState.FINISHED}),
    EpisodeState.EXPIRED: frozenset({EpisodeState.RUNNING, EpisodeState.FINISHED}),
}
"""State after an event -> states in which the event may come. Nothing leads out of the last four."""

# Looked up once: reading an attribute of an Enum takes 0.2 us, a tenth of an admit and a finish.
_RUNNING, _FINISHED = EpisodeState.RUNNING, EpisodeState.FINISHED


class Group(msgspec.Struct):
    """Units that siblings share while their group is open."""

    num_units: int
    num_in_use: int = 0
    is_open: bool = True


class Entry(msgspec.Struct, gc=False):
    """One live episode."""

    episode_id: str
    group: Group | None
    """None when the episode takes its unit from the budget itself."""
    label: str | None
    state: EpisodeState = EpisodeState.ENQUEUED
    oldest_version: int = -1
    """Version of the oldest trainable token; from the start until it is known, that of the start."""
    finished_version: int = -1
    """Version when it ended, -1 before."""


class Tally:
    """Counts that only grow, and decide nothing; for reports."""

    def __init__(self) -> None:
        self.num_submitted = 0
        self.num_trained = 0
        self.num_ended: Counter[EpisodeState] = Counter()
        self.off_policyness: Counter[int] = Counter()
        self.in_flight_age: Counter[int] = Counter()
        self.in_queue_age: Counter[int] = Counter()
        self.wasted_by_reason: Counter[str] = Counter()
        self.wasted_by_label: Counter[str] = Counter()

    def waste(self, reason: str, label: str | None) -> None:
        """Count one episode that ran and will not be trained on."""
        self.wasted_by_reason[reason] += 1
        self.wasted_by_label["unlabelled" if label is None else label] += 1

    def ages(self, entries: Sequence[Entry], now: int) -> None:
        """Split each finished episode's age into its flight and its wait."""
        self.in_flight_age.update([max(0, e.finished_version - e.oldest_version) for e in entries])
        self.in_queue_age.update([max(0, now - e.finished_version) for e in entries])

    def consumed(self, entries: Sequence[Entry], now: int) -> None:
        """Count how far each trained episode lies behind."""
        self.off_policyness.update([max(0, now - e.oldest_version) for e in entries])
        self.ages(entries, now)


class Ledger:
    """Entries by episode id, groups by group id, batches by number."""

    def __init__(self, version: int) -> None:
        self.version = version
        self.num_enqueued = 0
        self.num_running = 0
        self.num_reserved = 0
        self.finished = 0
        self.released = 0
        self.tally = Tally()
        self.entries: dict[str, Entry] = {}
        self._groups: dict[str, Group] = {}
        self._batches: dict[int, list[str]] = {}
        self._next_batch = 0

    @property
    def num_training(self) -> int:
        """Episodes whose batch still holds its budget."""
        return sum(map(len, self._batches.values()))

    # -- groups

    def open_group(self, group_id: str, num_units: int) -> None:
        """Reserve units for a group; the caller has checked the bounds."""
        if group_id in self._groups:
            raise StalenessError(
                f"group_id must be new, got {group_id!r} which is open. Close it first."
            )
        self._groups[group_id] = Group(num_units)
        self.num_reserved += num_units

    def close_group(self, group_id: str) -> None:
        """Return the group's unused units to the budget and forget it."""
        group = self._open_group(group_id)
        group.is_open = False
        self.num_reserved -= group.num_units - group.num_in_use
        del self._groups[group_id]

    # -- episodes

    def enqueue(self, episode_id: str, group_id: str | None, label: str | None) -> None:
        """Make an episode known; it holds nothing yet."""
        if episode_id in self.entries:
            raise _live(episode_id)
        group = None if group_id is None else self._open_group(group_id)
        self.entries[episode_id] = Entry(episode_id, group, label)
        self.num_enqueued += 1
        self.tally.num_submitted += 1

    def admit(self, episode_id: str, label: str | None) -> None:
        """Enqueue and start an ungrouped episode; the caller has checked the bounds."""
        if episode_id in self.entries:
            raise _live(episode_id)
        self.entries[episode_id] = Entry(episode_id, None, label, _RUNNING, self.version)
        self.num_running += 1
        self.tally.num_submitted += 1

    def entry(self, episode_id: str) -> Entry:
        """Return a live entry."""
        entry = self.entries.get(episode_id)
        if entry is None:
            raise StalenessError(
                f"episode_id must be a live episode, got {episode_id!r}. "
                "It was never enqueued, or it has ended."
            )
        return entry

    def start(self, entry: Entry) -> None:
        """Give the episode a slot; an ungrouped one also takes a unit of the budget."""
        _check(entry, _RUNNING)
        group = entry.group
        if group is not None:
            if not group.is_open:
                raise StalenessError(
                    f"the group of {entry.episode_id!r} must be open when it starts, got a closed "
                    "one. Reserve it again, and enqueue the episode under a new id."
                )
            if group.num_in_use >= group.num_units:
                raise StalenessError(
                    f"the group of {entry.episode_id!r} must keep a unit for it, got "
                    f"{group.num_units} units in use. Reserve a larger group."
                )
            group.num_in_use += 1
            self.num_reserved -= 1
        entry.state = _RUNNING
        entry.oldest_version = self.version
        self.num_enqueued -= 1
        self.num_running += 1

    def finish(self, episode_id: str, oldest_version: int | None) -> None:
        """Move a running episode to the queue; its slot is free."""
        entry = self.entries.get(episode_id) or self.entry(episode_id)
        if entry.state is not _RUNNING:
            _check(entry, _FINISHED)
        if oldest_version is not None:
            check_whole("oldest_version", oldest_version)
        entry.state = _FINISHED
        if oldest_version is not None:
            entry.oldest_version = oldest_version
        entry.finished_version = self.version
        self.num_running -= 1
        self.finished += 1

    def check_restored(self, oldest_versions: Mapping[str, int]) -> None:
        """Pass silently when these episodes may have finished before this ledger was made.

        Raises:
            StalenessError: They may not.
        """
        for episode_id, version in oldest_versions.items():
            check_whole("oldest_version", version)
            if episode_id in self.entries:
                raise _live(episode_id)
            if version > self.version:
                raise StalenessError(
                    f"oldest_version of {episode_id!r} must be at most that of the servers, "
                    f"{self.version}, got {version}. Leave out what weights sampled that are gone."
                )

    def restore(self, oldest_versions: Mapping[str, int], label: str | None) -> None:
        """Queue episodes that finished before; the caller has checked them and the bounds."""
        for episode_id, oldest in oldest_versions.items():
            self.entries[episode_id] = Entry(
                episode_id, None, label, _FINISHED, oldest, self.version
            )
        self.finished += len(oldest_versions)
        self.tally.num_submitted += len(oldest_versions)

    def end(self, episode_id: str, after: EpisodeState, reason: str) -> None:
        """Reject, fault or expire an episode; what it held returns."""
        entry = self.entry(episode_id)
        _check(entry, after)
        if entry.state is EpisodeState.ENQUEUED:
            self.num_enqueued -= 1
        else:
            if entry.state is _RUNNING:
                self.num_running -= 1
            else:
                self.released += 1
                self.tally.ages([entry], self.version)
            if entry.group is not None and entry.group.is_open:
                entry.group.num_in_use -= 1
                self.num_reserved += 1
            self.tally.waste(reason, entry.label)
        self.tally.num_ended[after] += 1
        del self.entries[episode_id]

    # -- batches

    def consume(self, episode_ids: Iterable[str]) -> int:
        """Move finished episodes into a new batch and return its number; all or none move."""
        ids = list(episode_ids)
        if len(set(ids)) != len(ids):
            raise StalenessError(f"episode_ids must be distinct, got {ids!r}. Name each one once.")
        known = self.entries
        entries = [known.get(episode_id) or self.entry(episode_id) for episode_id in ids]
        for entry in entries:
            if entry.state is not _FINISHED:
                _check(entry, EpisodeState.CONSUMED)
            if entry.group is not None and entry.group.is_open:
                raise StalenessError(
                    f"the group of {entry.episode_id!r} must be closed before it is consumed, got "
                    "an open one. Call close_group first."
                )
        for entry in entries:
            entry.state = EpisodeState.CONSUMED
        self.tally.consumed(entries, self.version)
        batch = self._next_batch
        self._next_batch += 1
        self._batches[batch] = ids
        return batch

    def release(self, batches: Iterable[int] | None) -> int:
        """Return the units of batches (all when None) to the budget; answer how many episodes."""
        numbers = list(self._batches) if batches is None else list(batches)
        if len(set(numbers)) != len(numbers) or not self._batches.keys() >= set(numbers):
            raise StalenessError(
                "batches must be distinct numbers that consume answered and that still hold their "
                f"budget, got {numbers}. Such batches are: {sorted(self._batches)}."
            )
        num_episodes = 0
        for number in numbers:
            ids = self._batches.pop(number)
            for episode_id in ids:
                del self.entries[episode_id]
            num_episodes += len(ids)
        self.released += num_episodes
        self.tally.num_trained += num_episodes
        return num_episodes

    def _open_group(self, group_id: str) -> Group:
        group = self._groups.get(group_id)
        if group is None:
            raise StalenessError(
                f"group_id must be an open group, got {group_id!r}. Reserve it first."
            )
        return group


def check_whole(name: str, value: int) -> None:
    """Pass silently when `value` is a whole number.

    Raises:
        StalenessError: It is not; NaN would compare as neither fresh nor stale.
    """
    if type(value) is not int:
        raise StalenessError(f"{name} must be a whole number, got {value!r}. Count in ints.")


def _live(episode_id: str) -> StalenessError:
    return StalenessError(
        f"episode_id must be new, got {episode_id!r} which is live. Use a fresh id."
    )


def _check(entry: Entry, after: EpisodeState) -> None:
    allowed = TRANSITIONS[after]
    if entry.state not in allowed:
        raise StalenessError(
            f"an episode must be {' or '.join(sorted(state.value for state in allowed))} to become "
            f"{after.value}, got {entry.state.value} for {entry.episode_id!r}. "
            "Each episode ends exactly once."
        )
