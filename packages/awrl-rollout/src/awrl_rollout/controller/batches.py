"""From ended members to batches: ledger endings, the acceptance hook, the hard check.

Invariants:
* each ended member is told to the manager exactly once;
* a group that is dropped or rejected returns all its units;
* each record either reaches a batch or is told as discarded, never both;
* groups leave oldest first, by oldest version, then by the order of admission; none is lost or handed
  out twice;
* a group counts with the members that it was *asked for*, so that lost or expired members never
  leave a hole that no new group fits into;
* staleness is checked here, at the moment of the assembly, on the oldest trainable token.
"""

from __future__ import annotations

from bisect import insort
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import NamedTuple, cast, overload

import msgspec
from awrl_staleness import StalenessManager

from awrl_rollout.controller.config import (
    AcceptGroup,
    ControllerConfig,
    DiscardHook,
    GroupDropHook,
)
from awrl_rollout.controller.groups import CompleteGroup, GroupInVain, GroupTracker
from awrl_rollout.episode import EpisodeRecord, EpisodeRequest, Outcome

FILTERED = "filtered by the workflow"
"""Reason of members whose workflow answered None."""


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


class GroupHooks(NamedTuple):
    """What the caller decides and hears of groups; each returns at once."""

    accept_group: AcceptGroup | None = None
    on_discarded: DiscardHook | None = None
    on_group_dropped: GroupDropHook | None = None

    def discarded(self, records: Sequence[EpisodeRecord], reason: str) -> None:
        """Tell of records that no batch will hold."""
        if records and self.on_discarded is not None:
            self.on_discarded(records, reason)

    def dropped(self, group_id: str, reason: str) -> None:
        """Tell of a group that no batch will hold."""
        if self.on_group_dropped is not None:
            self.on_group_dropped(group_id, reason)


class BatchAssembler:
    """Carries one run's records from their arrival to a batch."""

    def __init__(
        self,
        manager: StalenessManager,
        groups: GroupTracker,
        config: ControllerConfig,
        hooks: GroupHooks,
    ) -> None:
        self.ready = ReadyQueue()
        self.dropped_groups: Counter[str] = Counter()
        """Groups that never reached a batch, by reason."""
        self.num_restored = 0
        """Episodes that finished before a resume."""
        self.num_smaller_groups = 0
        self.num_short_batches = 0
        self.in_training: set[int] = set()
        """Batches whose budget was not released yet."""
        self._manager = manager
        self._groups = groups
        self._config = config
        self._hooks = hooks
        self._swept_version: int | None = None

    def ended(
        self, request: EpisodeRequest, record: EpisodeRecord, now_s: float = 0.0
    ) -> CompleteGroup | GroupInVain | None:
        """Tell the ledger of one member's end; return its group when that is over."""
        manager = self._manager
        if record.fault is not None:
            manager.fault(request.episode_id, record.fault.kind.value)
            self._hooks.discarded([record], record.fault.describe())
        elif record.outcome is Outcome.REJECTED:
            manager.reject(request.episode_id, FILTERED)
            self._hooks.discarded([record], FILTERED)
        else:
            if record.oldest_version is None:
                record = msgspec.structs.replace(record, oldest_version=request.weight_version)
            manager.finish(request.episode_id, oldest_version=record.oldest_version)
        following = self._groups.ended(request, record, now_s)
        if isinstance(following, GroupInVain):
            for waiting in following.waiting:
                manager.reject(waiting.episode_id, following.reason)
            if following.complete is not None:
                self._completed(following.complete)
            return following
        if isinstance(following, CompleteGroup):
            self._completed(following)
            return following
        if following is not None:
            manager.enqueue(following.episode_id, group_id=request.group_id, label=request.label)
        return None

    def restore(self, requests: Sequence[EpisodeRequest], records: Sequence[EpisodeRecord]) -> bool:
        """Queue a group that was complete before a resume; False when it can't be trained on."""
        version = self._manager.version
        versions = [(record.oldest_version, record.newest_version) for record in records]
        if any(oldest is None or max(oldest, newest or 0) > version for oldest, newest in versions):
            return False
        group = self._groups.restored(requests, records)
        if self._is_stale(group) or not self._manager.try_restore(
            {record.episode_id: record.oldest_version or 0 for record in records},
            label=records[0].label,
        ):
            return False
        self.ready.add(group)
        self.num_restored += len(records)
        return True

    def late(self, record: EpisodeRecord) -> None:
        """Pass on the record of an episode that was given up before."""
        self._hooks.discarded([record], "late: the episode was given up before")

    def sweep(self) -> None:
        """Drop the waiting groups none of whose members is fresh any more."""
        # Waiting groups age with the version alone; one that completes too old never gets here.
        if self._swept_version == self._manager.version:
            return
        self._swept_version = self._manager.version
        for group in self.ready.remove_where(self._is_stale):
            self._expire(group)

    def abandon(self, reason: str) -> list[Callable[[], None]]:
        """End every open group in the ledger; return the calls that tell the hooks of it."""
        abandoned, hooks = self._groups.abandon(), self._hooks
        calls: list[Callable[[], None]] = []
        for group_id, (records, episode_ids) in abandoned.items():
            for episode_id in episode_ids:
                self._manager.reject(episode_id, reason)
            self._manager.close_group(group_id)
            calls.append(partial(hooks.discarded, records, reason))
            calls.append(partial(hooks.dropped, group_id, reason))
        return calls

    def take(self, num_episodes: int, *, is_short: bool) -> RolloutBatch:
        """Return a batch of the oldest groups; the caller has swept and counted."""
        results = [self._judge(group) for group in self.ready.take(num_episodes)]
        ids = [record.episode_id for result in results for record in result.trainable]
        batch = self._manager.consume(ids)
        self.in_training.add(batch)
        self.num_short_batches += is_short
        return RolloutBatch(results, batch=batch, version=self._manager.version, is_short=is_short)

    def released(self, batches: Sequence[int] | None) -> None:
        """Forget batches that were published, skipped or discarded; all when None."""
        self.in_training.difference_update(set(self.in_training) if batches is None else batches)

    def describe_training(self) -> str:
        """Return which batches hold budget, and what gives it back; nothing when none does."""
        if not self.in_training:
            return ""
        numbers = ", ".join(map(str, sorted(self.in_training)))
        return f"; the budget of batches {numbers} waits for advance or release_budget"

    def _judge(self, group: CompleteGroup) -> GroupResult:
        """Expire the group's members that are too far behind now."""
        stale = [record.episode_id for record in group.records if not self._is_fresh(record)]
        for episode_id in stale:
            self._manager.expire(episode_id)
        return GroupResult(
            group_id=group.group_id,
            records=group.records,
            expired=frozenset(stale),
            group_size=len(group.requests),
            num_lost=group.num_lost,
        )

    def _completed(self, group: CompleteGroup) -> None:
        reason: str | None = "accept_group failed"
        try:
            reason = self._refusal(group)
        finally:  # also then the group's units return, and its records are told of
            self._settle(group, reason)

    def _settle(self, group: CompleteGroup, reason: str | None) -> None:
        if reason is None:
            self._manager.close_group(group.group_id)
            self.num_smaller_groups += len(group.records) < len(group.requests)
            if self._is_stale(group):
                self._expire(group)
            else:
                self.ready.add(group)
            return
        for record in group.records:
            self._manager.reject(record.episode_id, reason)
        self._manager.close_group(group.group_id)
        self._drop(group, reason)

    def _expire(self, group: CompleteGroup) -> None:
        for record in group.records:
            self._manager.expire(record.episode_id)
        self._drop(group, "expired")

    def _drop(self, group: CompleteGroup, reason: str) -> None:
        self.dropped_groups[reason] += 1
        self._hooks.discarded(group.records, reason)
        self._hooks.dropped(group.group_id, reason)

    def _refusal(self, group: CompleteGroup) -> str | None:
        if not group.records and group.lost_to is not None:
            return f"lost to {group.lost_to.value}"
        if not group.records:
            return "all members lost" if group.num_lost else "all members filtered"
        if len(group.records) < self._config.min_members:
            return f"fewer than {self._config.min_members} members"
        if group.num_lost and self._config.when_incomplete == "drop":
            return "incomplete"
        accept = self._hooks.accept_group
        answer = None if accept is None else cast("object", accept(group.records))
        if answer is not None and not isinstance(answer, str):
            raise TypeError(f"accept_group must return a reason or None, got {answer!r}.")
        return answer

    def _is_stale(self, group: CompleteGroup) -> bool:
        return not any(map(self._is_fresh, group.records))

    def _is_fresh(self, record: EpisodeRecord) -> bool:
        return record.oldest_version is not None and self._manager.is_fresh(record.oldest_version)


class ReadyQueue:
    """Accepted complete groups, oldest first."""

    def __init__(self) -> None:
        self.num_episodes = 0
        """Episodes that the waiting groups were asked for."""
        self._groups: list[CompleteGroup] = []

    def __len__(self) -> int:
        """Return the number of groups."""
        return len(self._groups)

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
