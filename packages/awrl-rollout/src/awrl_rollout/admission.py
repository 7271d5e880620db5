"""Which training episode starts next. No tasks, no waiting: `RolloutController` calls it.

Invariants:
* a request leaves here already started in the ledger, so check and start are one step;
* refills come first, then members of admitted groups, then the backlog, then the task source;
* a group that did not fit stays first in line, so the order of tasks is kept.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence

import msgspec
from awrl_staleness import StalenessManager

from awrl_rollout.episode import EpisodeRequest
from awrl_rollout.groups import GroupBook

TaskSource = Callable[[], Sequence[EpisodeRequest] | None]
"""Returns the next group's requests; None when a single pass is over."""

ExtraBounds = Callable[[], Mapping[str, int]]
"""Returns further named bounds in episodes, for example an image store's free room."""


class Admission:
    """Decides, against the manager's bounds, which episode starts next.

    Args:
        manager: The run's one authority.
        book: Open groups and pending members.
        source: The endless or single pass over tasks.
        extra_bounds: Further bounds, read before each new group.
    """

    def __init__(
        self,
        manager: StalenessManager,
        book: GroupBook,
        source: TaskSource | None,
        extra_bounds: ExtraBounds | None,
    ) -> None:
        self.is_paused = False
        self.is_exhausted = source is None
        self.blocked_by: str | None = None
        """Name of the bound that refused the last new group, None when it fitted."""
        self._manager = manager
        self._book = book
        self._source = source
        self._extra_bounds = extra_bounds
        self._backlog: deque[tuple[EpisodeRequest, ...]] = deque()
        self._held: tuple[EpisodeRequest, ...] | None = None
        """The source's group that did not fit yet."""

    @property
    def num_backlog(self) -> int:
        """Groups that wait for room, the source's unread ones not counted."""
        return len(self._backlog) + (self._held is not None)

    @property
    def has_more(self) -> bool:
        """Whether a further group may still come."""
        return bool(self._backlog) or self._held is not None or not self.is_exhausted

    def backlog(self) -> list[tuple[EpisodeRequest, ...]]:
        """Return the groups that wait for room, first in line first."""
        return [*self._backlog, *([] if self._held is None else [self._held])]

    def submit(self, requests: Sequence[EpisodeRequest]) -> None:
        """Put groups into the backlog, ahead of the task source.

        Raises:
            ValueError: A group is malformed.
        """
        groups: dict[str, list[EpisodeRequest]] = {}
        for request in requests:
            groups.setdefault(request.group_id, []).append(request)
        self._backlog.extend(check_group(group) for group in groups.values())

    def next_start(self) -> EpisodeRequest | None:
        """Return an episode that is started in the ledger, or None when none may start."""
        if self.is_paused or (not self._book.pending and not self._admit_group()):
            return None
        request = self._book.pending[0]
        if not self._manager.try_start(request.episode_id):
            return None
        self._book.pending.popleft()
        version = self._manager.version
        self._book.started(request, version)
        return msgspec.structs.replace(request, weight_version=version)

    def _admit_group(self) -> bool:
        group = self._next_group()
        if group is None:
            return False
        extra = {} if self._extra_bounds is None else dict(self._extra_bounds())
        if not self._manager.try_reserve(group[0].group_id, len(group), **extra):
            self.blocked_by = self._manager.refusing_bound(len(group), **extra)
            return False
        self.blocked_by = None
        self._drop_next()
        for request in group:
            self._manager.enqueue(
                request.episode_id, group_id=request.group_id, label=request.label
            )
        self._book.open(group)
        return True

    def _next_group(self) -> tuple[EpisodeRequest, ...] | None:
        if self._backlog:
            return self._backlog[0]
        if self._held is None and not self.is_exhausted and self._source is not None:
            requests = self._source()
            self.is_exhausted = requests is None
            self._held = None if requests is None else check_group(requests)
        return self._held

    def _drop_next(self) -> None:
        if self._backlog:
            self._backlog.popleft()
        else:
            self._held = None


def check_group(requests: Sequence[EpisodeRequest]) -> tuple[EpisodeRequest, ...]:
    """Return the requests as one well-formed group, with `group_size` filled in.

    Raises:
        ValueError: It is empty, mixes groups, repeats members, or holds evaluation episodes.
    """
    group = tuple(requests)
    ids = {request.group_id for request in group}
    members = {request.member for request in group}
    if len(ids) != 1 or len(members) != len(group) or any(item.is_eval for item in group):
        raise ValueError(
            "a group must hold training requests of one group_id with distinct members, got "
            f"{[(item.group_id, item.member, item.is_eval) for item in group]!r}. "
            "Give siblings one group_id and members 0, 1, 2, ..."
        )
    return tuple(msgspec.structs.replace(item, group_size=len(group)) for item in group)
