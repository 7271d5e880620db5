"""Which groups are open, who is missing, and what to do when a member ends. Pure.

Invariants:
* a group is complete exactly when each of its members has ended well, was filtered, or was lost
  after its last refill; it is reported complete once;
* a fault that can pass is refilled after a wait that doubles each time; a refill whose wait is over
  goes to the front of the pending line, before any new group's members;
* where a fault stays and no member has ended well, the group is given up: no member of it starts or
  is refilled any more. Where one has, the others go on without the one that was lost;
* records are keyed by group id and member, never by the order of their arrival.

Called by `RolloutController`, which turns the answers into ledger events.
"""

from __future__ import annotations

import heapq
import math
from collections import deque
from collections.abc import Callable, Sequence

import msgspec

from awrl_rollout.episode import EpisodeRecord, EpisodeRequest, FaultKind, Outcome

AT_ONCE: frozenset[FaultKind] = frozenset({FaultKind.WORKER_LOST, FaultKind.CANCELLED})
"""Nothing has to recover before another worker can run the episode."""

LONGEST_DELAY_S = 60.0
"""Before a refill; its group holds its budget meanwhile."""


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
    lost_to: FaultKind | None = None
    """What the group was given up for, None when it was not."""


class GroupInVain(msgspec.Struct, frozen=True, kw_only=True):
    """A group that was given up: what is running of it is to be cancelled."""

    group_id: str
    reason: str
    waiting: tuple[EpisodeRequest, ...]
    """Members that had not started; they are in no line any more."""
    complete: CompleteGroup | None
    """The group, where none of its members runs."""


class _OpenGroup(msgspec.Struct):
    sequence: int
    requests: dict[int, EpisodeRequest]
    num_open: int
    records: dict[int, EpisodeRecord] = msgspec.field(default_factory=dict)
    num_lost: int = 0
    num_site_faults: int = 0
    lost_to: FaultKind | None = None
    oldest_version: int | None = None
    """Oldest version that any of its members may have used, None before the first start."""


class GroupTracker:
    """The open groups and the line of members that wait for a slot.

    Args:
        max_refills: Further requests for one member after faults; then the member counts as lost.
        is_used: Whether an episode id is live or in line, so that no refill takes it.
        delay_s: Wait before the first refill of a member, in seconds; it doubles with each.
    """

    def __init__(
        self,
        max_refills: int,
        is_used: Callable[[str], bool] = lambda episode_id: False,
        *,
        delay_s: float = 0.0,
    ) -> None:
        self.pending: deque[EpisodeRequest] = deque()
        self._delay_s = delay_s
        self._delayed: list[tuple[float, int, EpisodeRequest]] = []
        """A heap of refills by the time at which their wait is over."""
        self.num_refills = 0
        self._max_refills = max_refills
        self._is_used = is_used
        self._groups: dict[str, _OpenGroup] = {}
        self._num_opened = 0

    @property
    def num_open(self) -> int:
        """Groups that are not complete."""
        return len(self._groups)

    @property
    def num_waiting(self) -> int:
        """Members that wait for a slot, or for their refill."""
        return len(self.pending) + len(self._delayed)

    @property
    def next_due_s(self) -> float:
        """When the next refill's wait is over; infinity when none waits."""
        return self._delayed[0][0] if self._delayed else math.inf

    def release_due(self, now_s: float) -> None:
        """Put the refills whose wait is over in line."""
        while self.next_due_s <= now_s:
            self.pending.appendleft(heapq.heappop(self._delayed)[2])

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
        self, request: EpisodeRequest, record: EpisodeRecord, now_s: float = 0.0
    ) -> EpisodeRequest | CompleteGroup | GroupInVain | None:
        """Note a member's end; return its refill, its group when that is over, or None.

        A refill is in line already; the ledger has to be told of it.
        """
        group = self._groups[request.group_id]
        if record.fault is not None and group.lost_to is None:
            kind = record.fault.kind
            group.num_site_faults += kind.is_of_site or kind is FaultKind.NETWORK_DOWN
            is_hopeless = kind.is_permanent or group.num_site_faults > self._max_refills
            if is_hopeless and not group.records:
                return self._give_up(request.group_id, group, kind)
            # An episode whose judge gave no verdict in all its time is left out, not run again.
            is_repeated = not kind.is_permanent and kind is not FaultKind.JUDGE_ERROR
            if is_repeated and request.attempt < self._max_refills:
                delay_s = (
                    0.0 if kind in AT_ONCE else self._delay_s * 2.0 ** min(request.attempt, 60)
                )
                return self._refill(group, request, now_s + min(LONGEST_DELAY_S, delay_s), now_s)
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
        for request in (*self.pending, *(item for _, _, item in self._delayed)):
            left[request.group_id][1].append(request.episode_id)
        self._groups.clear()
        self.pending.clear()
        self._delayed.clear()
        return left

    def _give_up(self, group_id: str, group: _OpenGroup, kind: FaultKind) -> GroupInVain:
        in_line = (*self.pending, *(item for _, _, item in self._delayed))
        waiting = tuple(item for item in in_line if item.group_id == group_id)
        if waiting:
            self.pending = deque(item for item in self.pending if item.group_id != group_id)
            self._delayed = [item for item in self._delayed if item[2].group_id != group_id]
            heapq.heapify(self._delayed)
        group.lost_to = kind
        group.num_lost += 1 + len(waiting)
        group.num_open -= 1 + len(waiting)
        if not group.num_open:
            del self._groups[group_id]
        return GroupInVain(
            group_id=group_id,
            reason=f"its group is lost to {kind.value}",
            waiting=waiting,
            complete=None if group.num_open else _complete(group_id, group),
        )

    def _refill(
        self, group: _OpenGroup, request: EpisodeRequest, due_s: float, now_s: float
    ) -> EpisodeRequest:
        first = group.requests[request.member]
        attempt = request.attempt + 1
        episode_id = f"{first.episode_id}~{attempt}"
        while self._is_used(episode_id):
            episode_id += "~"
        refill = msgspec.structs.replace(first, episode_id=episode_id, attempt=attempt)
        self.num_refills += 1
        if due_s > now_s:
            heapq.heappush(self._delayed, (due_s, self.num_refills, refill))
        else:
            self.pending.appendleft(refill)
        return refill


def _complete(group_id: str, group: _OpenGroup) -> CompleteGroup:
    return CompleteGroup(
        group_id=group_id,
        sequence=group.sequence,
        requests=tuple(group.requests[member] for member in sorted(group.requests)),
        records=tuple(group.records[member] for member in sorted(group.records)),
        num_lost=group.num_lost,
        lost_to=group.lost_to,
    )
