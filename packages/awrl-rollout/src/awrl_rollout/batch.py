"""Complete groups that wait for the trainer, and the batches made of them. Pure.

Invariants:
* groups leave oldest first: by oldest version, then by the order of admission;
* none is lost or handed out twice;
* a group counts with the members that it was *asked for*, so that lost or expired members never
  leave a hole that no new group fits into.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import overload

import msgspec

from awrl_rollout.episode import EpisodeRecord
from awrl_rollout.groups import CompleteGroup


class GroupResult(msgspec.Struct, frozen=True, kw_only=True):
    """One group of a batch.

    Advantages are computed over `records`; only `trainable` ones are trained on.
    """

    group_id: str
    records: tuple[EpisodeRecord, ...]
    """Every member that ended well, by member, expired ones included."""
    expired: frozenset[str]
    """Ids of members that are too far behind to be trained on."""
    group_size: int
    """Members that were asked for."""
    num_lost: int
    """Members lost to faults."""

    @property
    def trainable(self) -> tuple[EpisodeRecord, ...]:
        """The members that may be trained on; at least one."""
        return tuple(record for record in self.records if record.episode_id not in self.expired)


class RolloutBatch(Sequence[GroupResult]):
    """The groups of one batch, oldest first.

    Attributes:
        groups: The groups.
        batch: Number for `RolloutController.advance` and `release_budget`.
        version: Weight version at the moment of the assembly.
        is_short: Fewer episodes than asked for, because no further group could ever be admitted.
    """

    def __init__(
        self, groups: Sequence[GroupResult], *, batch: int, version: int, is_short: bool
    ) -> None:
        self.groups = tuple(groups)
        self.batch = batch
        self.version = version
        self.is_short = is_short

    def __len__(self) -> int:
        """Return the number of groups."""
        return len(self.groups)

    @overload
    def __getitem__(self, index: int) -> GroupResult: ...

    @overload
    def __getitem__(self, index: slice) -> Sequence[GroupResult]: ...

    def __getitem__(self, index: int | slice) -> GroupResult | Sequence[GroupResult]:
        """Return one group or several."""
        return self.groups[index]

    def __iter__(self) -> Iterator[GroupResult]:
        """Iterate over the groups."""
        return iter(self.groups)

    @property
    def num_episodes(self) -> int:
        """Episodes that may be trained on."""
        return sum(len(group.trainable) for group in self.groups)


class ReadyQueue:
    """Accepted complete groups, oldest first."""

    def __init__(self) -> None:
        self.num_episodes = 0
        """Episodes that the waiting groups were asked for."""
        self._groups: list[CompleteGroup] = []

    def __len__(self) -> int:
        """Return the number of groups."""
        return len(self._groups)

    def __iter__(self) -> Iterator[CompleteGroup]:
        """Iterate, oldest first."""
        return iter(self._groups)

    def add(self, group: CompleteGroup) -> None:
        """Put a group at its place."""
        insort(self._groups, group, key=_age)
        self.num_episodes += len(group.requests)

    def remove_where(self, predicate: Callable[[CompleteGroup], bool]) -> list[CompleteGroup]:
        """Take out and return every group that satisfies the predicate."""
        taken: list[CompleteGroup] = []
        kept: list[CompleteGroup] = []
        for group in self._groups:
            (taken if predicate(group) else kept).append(group)
        self._groups = kept
        self.num_episodes -= _num_asked(taken)
        return taken

    def take(self, num_episodes: int) -> list[CompleteGroup]:
        """Take the oldest groups until they were asked for `num_episodes`, or all."""
        total = num_taken = 0
        while num_taken < len(self._groups) and total < num_episodes:
            total += len(self._groups[num_taken].requests)
            num_taken += 1
        taken = self._groups[:num_taken]
        del self._groups[:num_taken]
        self.num_episodes -= total
        return taken


def _num_asked(groups: Iterable[CompleteGroup]) -> int:
    return sum(len(group.requests) for group in groups)


def _age(group: CompleteGroup) -> tuple[int, int]:
    versions = [
        record.oldest_version for record in group.records if record.oldest_version is not None
    ]
    return (min(versions, default=0), group.sequence)
