"""The ledger: where every live episode stands, and what it holds. Pure; no lock, no clock.

Invariants:
* every enqueued episode ends in exactly one terminal state, and is forgotten then (a consumed one
  when its batch is settled), so memory follows the number of live episodes;
* no counter is ever negative;
* a group's units stay the group's until it is closed: a member that is lost hands its unit back
  to the group, not to the budget.

Called by `StalenessManager`, which adds the lock and the bounds.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from awrl_staleness.errors import (
    CapacityExceededError,
    ConfigError,
    DuplicateEpisodeError,
    IllegalTransitionError,
    UnknownEpisodeError,
)
from awrl_staleness.states import TRANSITIONS, EpisodeEvent, EpisodeState
from awrl_staleness.tally import Tally

# Looked up once: these two rows are read for every episode of a run.
_ON_FINISH = TRANSITIONS[EpisodeEvent.FINISH]
_ON_CONSUME = TRANSITIONS[EpisodeEvent.CONSUME]


class Entry(msgspec.Struct, gc=False):
    """One live episode."""

    episode_id: str
    group_id: str | None
    """None when the episode takes its unit from the budget itself."""
    label: str | None
    state: EpisodeState = EpisodeState.ENQUEUED
    started_version: int = -1
    """Version at the start, -1 before."""
    oldest_version: int = -1
    """Oldest trainable token's version, `started_version` until it is known."""
    finished_version: int = -1
    """Version when it ended, -1 before."""


class _Group(msgspec.Struct):
    num_units: int
    num_in_use: int = 0


class Ledger:
    """Entries by episode id, groups by group id, batches by number."""

    def __init__(self, *, version: int = 0) -> None:
        self.version = version
        self.num_enqueued = 0
        self.num_running = 0
        self.num_reserved = 0
        self.finished = 0
        self.released = 0
        self.tally = Tally()
        self.entries: dict[str, Entry] = {}
        self.batches: dict[int, list[str]] = {}
        self._groups: dict[str, _Group] = {}
        self._next_batch = 0

    @property
    def num_training(self) -> int:
        """Episodes whose batch is not released."""
        return sum(len(ids) for ids in self.batches.values())

    # -- groups

    def open_group(self, group_id: str, num_units: int) -> None:
        """Reserve units for a group; the caller has checked the bounds."""
        if group_id in self._groups:
            raise DuplicateEpisodeError(
                f"group_id must be new, got {group_id!r} which is open. Close it first."
            )
        self._groups[group_id] = _Group(num_units=num_units)
        self.num_reserved += num_units

    def close_group(self, group_id: str) -> int:
        """Return the group's unused units to the budget and forget it; answer how many."""
        group = self._groups.get(group_id)
        if group is None:
            raise UnknownEpisodeError(
                f"group_id must be an open group, got {group_id!r}. Reserve it first."
            )
        unused = group.num_units - group.num_in_use
        self.num_reserved -= unused
        del self._groups[group_id]
        return unused

    def has_group(self, group_id: str) -> bool:
        """Return whether the group is open."""
        return group_id in self._groups

    # -- episodes

    def enqueue(self, episode_id: str, group_id: str | None, label: str | None) -> None:
        """Make an episode known; it holds nothing yet."""
        if episode_id in self.entries:
            raise _live(episode_id)
        if group_id is not None and group_id not in self._groups:
            raise UnknownEpisodeError(
                f"group_id must be an open group, got {group_id!r}. Reserve it first."
            )
        self.entries[episode_id] = Entry(episode_id, group_id, label)
        self.num_enqueued += 1
        self.tally.num_submitted += 1

    def admit(self, episode_id: str, label: str | None) -> None:
        """Enqueue and start an ungrouped episode; the caller has checked the bounds."""
        if episode_id in self.entries:
            raise _live(episode_id)
        version = self.version
        self.entries[episode_id] = Entry(
            episode_id, None, label, EpisodeState.RUNNING, version, version
        )
        self.num_running += 1
        self.tally.num_submitted += 1

    def entry(self, episode_id: str) -> Entry:
        """Return a live entry."""
        entry = self.entries.get(episode_id)
        if entry is None:
            raise UnknownEpisodeError(
                f"episode_id must be a live episode, got {episode_id!r}. "
                "It was never enqueued, or it has ended."
            )
        return entry

    def start(self, episode_id: str) -> None:
        """Give the episode a slot; an ungrouped one also takes a unit of the budget."""
        entry = self.entry(episode_id)
        after = _after(entry, EpisodeEvent.START)
        if entry.group_id is not None:
            group = self._group_of(entry)
            if group.num_in_use >= group.num_units:
                raise CapacityExceededError(
                    f"group {entry.group_id!r} must keep a unit for {episode_id!r}, got "
                    f"{group.num_units} units in use. Reserve a larger group."
                )
            group.num_in_use += 1
            self.num_reserved -= 1
        entry.state = after
        entry.started_version = entry.oldest_version = self.version
        self.num_enqueued -= 1
        self.num_running += 1

    def finish(self, episode_id: str, oldest_version: int | None) -> None:
        """Move a running episode to the queue; its slot is free."""
        entry = self.entries.get(episode_id) or self.entry(episode_id)
        entry.state = _ON_FINISH.get(entry.state) or _after(entry, EpisodeEvent.FINISH)
        if oldest_version is not None:
            entry.oldest_version = oldest_version
        entry.finished_version = self.version
        self.num_running -= 1
        self.finished += 1

    def end(self, episode_id: str, event: EpisodeEvent, reason: str) -> None:
        """Reject, fault or expire an episode; what it held returns."""
        entry = self.entry(episode_id)
        before = entry.state
        _after(entry, event)
        tally = self.tally
        if before is EpisodeState.ENQUEUED:
            self.num_enqueued -= 1
        else:
            self._return_unit(entry, before)
            tally.waste(reason, entry.label)
        if event is EpisodeEvent.REJECT:
            tally.num_rejected += 1
        elif event is EpisodeEvent.FAULT:
            tally.num_faulted += 1
        else:
            tally.num_expired += 1
        del self.entries[episode_id]

    def consume(self, episode_ids: Iterable[str]) -> int:
        """Move finished episodes into a new batch and return its number; all or none move."""
        ids = list(episode_ids)
        if len(set(ids)) != len(ids):
            raise ConfigError(f"episode_ids must be distinct, got {ids!r}. Name each one once.")
        known = self.entries
        entries = [known.get(episode_id) or self.entry(episode_id) for episode_id in ids]
        for entry in entries:
            if entry.state not in _ON_CONSUME:
                _after(entry, EpisodeEvent.CONSUME)
            if entry.group_id in self._groups:
                raise IllegalTransitionError(
                    f"group {entry.group_id!r} must be closed before {entry.episode_id!r} is "
                    "consumed, got an open group. Call close_group first."
                )
        for entry in entries:
            entry.state = EpisodeState.CONSUMED
        self.tally.consumed(entries, self.version)
        batch = self._next_batch
        self._next_batch += 1
        self.batches[batch] = ids
        return batch

    def release(self, batches: Iterable[int] | None) -> int:
        """Return the units of batches (all when None) to the budget; answer how many episodes."""
        numbers = list(self.batches) if batches is None else list(batches)
        for number in numbers:
            if number not in self.batches:
                raise UnknownEpisodeError(
                    f"batch must be one that consume answered and that is not released, "
                    f"got {number}. Open batches: {sorted(self.batches)}."
                )
        num_episodes = 0
        for number in numbers:
            ids = self.batches.pop(number)
            for episode_id in ids:
                del self.entries[episode_id]
            num_episodes += len(ids)
        self.released += num_episodes
        self.tally.num_trained += num_episodes
        return num_episodes

    def _group_of(self, entry: Entry) -> _Group:
        group = self._groups.get(entry.group_id) if entry.group_id is not None else None
        if group is None:
            raise IllegalTransitionError(
                f"group {entry.group_id!r} must be open to start {entry.episode_id!r}, got a "
                "closed group. Reserve it again under a new id."
            )
        return group

    def _return_unit(self, entry: Entry, before: EpisodeState) -> None:
        if before is EpisodeState.RUNNING:
            self.num_running -= 1
        else:
            self.released += 1
            self.tally.ages([entry], self.version)
        group = self._groups.get(entry.group_id) if entry.group_id is not None else None
        if group is not None:
            group.num_in_use -= 1
            self.num_reserved += 1


def _live(episode_id: str) -> DuplicateEpisodeError:
    return DuplicateEpisodeError(
        f"episode_id must be new, got {episode_id!r} which is live. Use a fresh id."
    )


def _after(entry: Entry, event: EpisodeEvent) -> EpisodeState:
    after = TRANSITIONS[event].get(entry.state)
    if after is None:
        allowed = sorted(state.value for state in TRANSITIONS[event])
        raise IllegalTransitionError(
            f"{event.value} must come in state {' or '.join(allowed)}, got {entry.state.value} "
            f"for episode {entry.episode_id!r}. Each episode ends exactly once."
        )
    return after
