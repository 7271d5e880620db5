"""Which groups are open, who is missing, and what to do when a member ends. Pure.

Invariants:
* a group is complete exactly when each of its members has ended well, was filtered, or was lost
  after its last refill; it is reported complete once;
* refills go to the front of the pending line, before any new group's members;
* records are keyed by group id and member, never by the order of their arrival.

Called by `RolloutController`, which turns the answers into ledger events.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence

import msgspec

from awrl_rollout.episode import EpisodeRecord, EpisodeRequest, Outcome


class CompleteGroup(msgspec.Struct, frozen=True, kw_only=True):
    """A group whose members have all ended."""

    group_id: str
    sequence: int
    """Order of admission."""
    requests: tuple[EpisodeRequest, ...]
    """The first request of each member, by member."""
    records: tuple[EpisodeRecord, ...]
    """Members that ended well, by member."""
    num_lost: int
    """Members lost to faults after their last refill."""


class _OpenGroup(msgspec.Struct):
    sequence: int
    requests: dict[int, EpisodeRequest]
    num_open: int
    records: dict[int, EpisodeRecord] = msgspec.field(default_factory=dict)
    num_lost: int = 0
    oldest_version: int | None = None
    """Oldest version that any of its members may have used, None before the first start."""


class GroupTracker:
    """The open groups and the line of members that wait for a slot.

    Args:
        max_refills: Further requests for one member after faults; then the member counts as lost.
        is_used: Whether an episode id is live or in line, so that no refill takes it.
    """

    def __init__(
        self, max_refills: int, is_used: Callable[[str], bool] = lambda episode_id: False
    ) -> None:
        self.pending: deque[EpisodeRequest] = deque()
        self.num_refills = 0
        self._max_refills = max_refills
        self._is_used = is_used
        self._groups: dict[str, _OpenGroup] = {}
        self._num_opened = 0

    @property
    def num_open(self) -> int:
        """Groups that are not complete."""
        return len(self._groups)

    def open(self, requests: Sequence[EpisodeRequest]) -> None:
        """Add a group; its members join the end of the pending line."""
        group_id = requests[0].group_id
        self._groups[group_id] = _OpenGroup(
            sequence=self._num_opened,
            requests={request.member: request for request in requests},
            num_open=len(requests),
        )
        self._num_opened += 1
        self.pending.extend(requests)

    def is_open(self, group_id: str) -> bool:
        """Return whether a group of this id is not complete."""
        return group_id in self._groups

    def started(self, request: EpisodeRequest, version: int) -> None:
        """Note the version at which a member started."""
        group = self._groups[request.group_id]
        if group.oldest_version is None or version < group.oldest_version:
            group.oldest_version = version

    def has_group_as_old_as(self, version: int) -> bool:
        """Return whether an open group may hold tokens of this version or an older one."""
        return any(
            group.oldest_version is not None and group.oldest_version <= version
            for group in self._groups.values()
        )

    def ended(
        self, request: EpisodeRequest, record: EpisodeRecord
    ) -> EpisodeRequest | CompleteGroup | None:
        """Note a member's end; return its refill, its group when that is complete, or None.

        A refill is in the pending line already; the ledger has to be told of it.
        """
        group = self._groups[request.group_id]
        if record.outcome is Outcome.FAULT and request.attempt < self._max_refills:
            return self._refill(group, request)
        if record.outcome is Outcome.FAULT:
            group.num_lost += 1
        elif record.outcome is not Outcome.REJECTED:
            group.records[request.member] = record
        group.num_open -= 1
        if group.num_open:
            return None
        del self._groups[request.group_id]
        return _complete(request.group_id, group)

    def restored(
        self, requests: Sequence[EpisodeRequest], records: Sequence[EpisodeRecord]
    ) -> CompleteGroup:
        """Return a group that was complete before a resume, in line behind those opened so far."""
        self._num_opened += 1
        return _complete(
            requests[0].group_id,
            _OpenGroup(
                sequence=self._num_opened - 1,
                requests={request.member: request for request in requests},
                num_open=0,
                records={record.member: record for record in records},
                num_lost=len(requests) - len(records),
            ),
        )

    def abandon(self) -> dict[str, tuple[list[EpisodeRecord], list[str]]]:
        """Forget everything; return, by open group, its records and the ids in the ledger.

        The ledger still holds members that ended well and those that wait for a slot.
        """
        left = {
            group_id: (
                list(group.records.values()),
                [record.episode_id for record in group.records.values()],
            )
            for group_id, group in self._groups.items()
        }
        for request in self.pending:
            left[request.group_id][1].append(request.episode_id)
        self._groups.clear()
        self.pending.clear()
        return left

    def _refill(self, group: _OpenGroup, request: EpisodeRequest) -> EpisodeRequest:
        first = group.requests[request.member]
        attempt = request.attempt + 1
        episode_id = f"{first.episode_id}~{attempt}"
        while self._is_used(episode_id):
            episode_id += "~"
        refill = msgspec.structs.replace(first, episode_id=episode_id, attempt=attempt)
        self.pending.appendleft(refill)
        self.num_refills += 1
        return refill


def _complete(group_id: str, group: _OpenGroup) -> CompleteGroup:
    return CompleteGroup(
        group_id=group_id,
        sequence=group.sequence,
        requests=tuple(group.requests[member] for member in sorted(group.requests)),
        records=tuple(group.records[member] for member in sorted(group.records)),
        num_lost=group.num_lost,
    )
