"""From ended members to batches: ledger endings, the acceptance hook, the hard check.

Invariants:
* each ended member is told to the manager exactly once;
* a group that is dropped or rejected returns all its units;
* each training record either reaches a batch or is told as discarded, never both;
* staleness is checked here, at the moment of the assembly, on the oldest trainable token.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import msgspec
from awrl_staleness import StalenessManager

from awrl_rollout.batch import GroupResult, ReadyQueue, RolloutBatch
from awrl_rollout.episode import EpisodeRecord, EpisodeRequest, Outcome
from awrl_rollout.groups import CompleteGroup, GroupBook
from awrl_rollout.hooks import ControllerHooks

FILTERED = "filtered by the workflow"
"""Reason of members whose workflow answered None."""


class Assembly:
    """Carries one run's records from landing to batch.

    Args:
        manager: The run's one authority.
        book: Open groups.
        hooks: The caller's callables.
    """

    def __init__(self, manager: StalenessManager, book: GroupBook, hooks: ControllerHooks) -> None:
        self.ready = ReadyQueue()
        self.dropped_groups: Counter[str] = Counter()
        """Groups that never reached a batch, by reason."""
        self.num_smaller_groups = 0
        self.num_short_batches = 0
        self.in_training: dict[int, tuple[CompleteGroup, ...]] = {}
        """Consumed groups by batch, until their budget is released."""
        self._manager = manager
        self._book = book
        self._hooks = hooks
        self._swept_version: int | None = None

    def ended(self, request: EpisodeRequest, record: EpisodeRecord) -> CompleteGroup | None:
        """Tell the ledger of one member's end; return its group when that is complete."""
        manager = self._manager
        if record.fault is not None:
            manager.fault(request.episode_id, record.fault.kind.value)
            self._hooks.on_discarded([record], record.fault.describe())
        elif record.outcome is Outcome.REJECTED:
            manager.reject(request.episode_id, FILTERED)
            self._hooks.on_discarded([record], FILTERED)
        else:
            if record.oldest_version is None:
                record = msgspec.structs.replace(record, oldest_version=request.weight_version)
            manager.finish(request.episode_id, oldest_version=record.oldest_version)
        ending = self._book.ended(request, record)
        if ending.refill is not None:
            manager.enqueue(
                ending.refill.episode_id, group_id=request.group_id, label=request.label
            )
        if ending.complete is not None:
            self._completed(ending.complete)
        return ending.complete

    def late(self, records: Sequence[EpisodeRecord]) -> None:
        """Pass on records of training episodes that were given up before."""
        self._hooks.on_discarded(records, "late: the episode was given up before")

    def sweep(self) -> None:
        """Drop the waiting groups none of whose members is fresh any more."""
        # Waiting groups age with the version alone; one that completes too old never gets here.
        if self._swept_version == self._manager.version:
            return
        self._swept_version = self._manager.version
        for group in self.ready.remove_where(self._is_stale):
            self._expire(group)

    def abandon(self, reason: str) -> None:
        """End every open group in the ledger; the waiting ones stay."""
        for group_id, members in self._book.abandon().items():
            for episode_id in members.episode_ids:
                self._manager.reject(episode_id, reason)
            self._manager.close_group(group_id)
            self._hooks.on_discarded(members.records, reason)
            self._hooks.on_group_dropped(group_id, reason)

    def take(self, num_episodes: int, *, is_short: bool) -> RolloutBatch:
        """Return a batch of the oldest groups; the caller has swept and counted."""
        judged = [self._judge(group) for group in self.ready.take(num_episodes)]
        ids = [record.episode_id for group in judged for record in group.fresh_records]
        batch = self._manager.consume(ids)
        self.in_training[batch] = tuple(judged)
        self.num_short_batches += is_short
        results = [
            GroupResult(
                group_id=group.group_id,
                records=group.records,
                expired=group.expired,
                group_size=len(group.requests),
                num_lost=group.num_lost,
            )
            for group in judged
        ]
        return RolloutBatch(results, batch=batch, version=self._manager.version, is_short=is_short)

    def forget(self, batches: Sequence[int] | None) -> None:
        """Forget batches that were published, skipped or discarded; all when None."""
        for batch in list(self.in_training) if batches is None else batches:
            self.in_training.pop(batch, None)

    def _judge(self, group: CompleteGroup) -> CompleteGroup:
        """Expire the group's members that are too far behind now."""
        stale = [record.episode_id for record in group.fresh_records if not self._is_fresh(record)]
        for episode_id in stale:
            self._manager.expire(episode_id)
        return msgspec.structs.replace(group, expired=group.expired.union(stale))

    def _completed(self, group: CompleteGroup) -> None:
        reason = self._refusal(group)
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
        for record in group.fresh_records:
            self._manager.expire(record.episode_id)
        self._drop(group, "expired")

    def _drop(self, group: CompleteGroup, reason: str) -> None:
        self.dropped_groups[reason] += 1
        if group.records:
            self._hooks.on_discarded(group.records, reason)
        self._hooks.on_group_dropped(group.group_id, reason)

    def _refusal(self, group: CompleteGroup) -> str | None:
        policy = self._book.policy
        if not group.records:
            return "all members lost" if group.num_lost else "all members filtered"
        if len(group.records) < policy.min_members:
            return f"fewer than {policy.min_members} members"
        if group.num_lost and policy.when_incomplete == "drop":
            return "incomplete"
        return self._hooks.accept_group(group.records)

    def _is_stale(self, group: CompleteGroup) -> bool:
        return not any(map(self._is_fresh, group.fresh_records))

    def _is_fresh(self, record: EpisodeRecord) -> bool:
        return record.oldest_version is not None and self._manager.is_fresh(record.oldest_version)
