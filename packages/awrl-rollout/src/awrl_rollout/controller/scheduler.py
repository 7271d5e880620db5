"""Which episode starts next. No tasks, no waiting: `RolloutController` calls it.

Invariants:
* a request leaves here already started in the ledger, so check and start are one step;
* refills come first, then members of admitted groups, then submitted groups, then the task source;
* a group that did not fit stays first in line, so the order of tasks is kept.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Sequence

import msgspec
from awrl_staleness import StalenessManager

from awrl_rollout.controller.config import ExtraBounds, TaskSource
from awrl_rollout.controller.groups import GroupTracker
from awrl_rollout.episode import EpisodeRequest


class Scheduler:
    """Decides, against the manager's bounds, which episode starts next.

    Args:
        extra_bounds: Further bounds, read before each new group.
    """

    def __init__(
        self,
        manager: StalenessManager,
        groups: GroupTracker,
        source: TaskSource | None,
        extra_bounds: ExtraBounds | None,
    ) -> None:
        self.is_paused = False
        self.blocked_by: str | None = None
        """Name of the bound that refused the last new group, None when it fitted."""
        self._manager = manager
        self._groups = groups
        self._source = source
        self._extra_bounds = extra_bounds
        self._submitted: deque[tuple[EpisodeRequest, ...]] = deque()
        self._held: tuple[EpisodeRequest, ...] | None = None
        """The source's group that did not fit yet."""

    @property
    def has_more(self) -> bool:
        """Whether a further group may still come."""
        return bool(self._submitted) or self._held is not None or self._source is not None

    def submit(self, requests: Sequence[EpisodeRequest]) -> None:
        """Put groups in line, ahead of the task source; all of them or none.

        Raises:
            ValueError: A group is malformed or can never fit, or an id is in use.
        """
        grouped: dict[str, list[EpisodeRequest]] = {}
        for request in requests:
            grouped.setdefault(request.group_id, []).append(request)
        groups = [check_group(group) for group in grouped.values()]
        self._check_new(groups)
        self._submitted.extend(groups)

    def is_used(self, episode_id: str) -> bool:
        """Return whether an episode of this id is live or in line."""
        in_line = (item.episode_id for group in self._in_line() for item in group)
        return self._manager.is_live(episode_id) or episode_id in in_line

    def _in_line(self) -> list[tuple[EpisodeRequest, ...]]:
        return [*self._submitted, *([] if self._held is None else [self._held])]

    def _check_new(self, groups: Sequence[tuple[EpisodeRequest, ...]]) -> None:
        in_line = self._in_line()
        waiting = {group[0].group_id for group in in_line}
        ids = Counter(item.episode_id for group in (*in_line, *groups) for item in group)
        for group in groups:
            self._manager.refusing_bound(len(group))  # raises for one that can never fit
            group_id = group[0].group_id
            used = [
                item.episode_id
                for item in group
                if ids[item.episode_id] > 1 or self._manager.is_live(item.episode_id)
            ]
            if used or group_id in waiting or self._groups.is_open(group_id):
                raise ValueError(
                    f"group_id and episode_id must be new, got group {group_id!r} with episodes "
                    f"{used!r} in use. Nothing was accepted: use fresh ids."
                )

    def next_start(self) -> EpisodeRequest | None:
        """Return an episode that is started in the ledger, or None when none may start."""
        if self.is_paused or (not self._groups.pending and not self._admit_group()):
            return None
        request = self._groups.pending[0]
        if not self._manager.try_start(request.episode_id):
            return None
        self._groups.pending.popleft()
        version = self._manager.version
        self._groups.started(request, version)
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
        if self._submitted:
            self._submitted.popleft()
        else:
            self._held = None
        for request in group:
            self._manager.enqueue(
                request.episode_id, group_id=request.group_id, label=request.label
            )
        self._groups.open(group)
        return True

    def _next_group(self) -> tuple[EpisodeRequest, ...] | None:
        if self._submitted:
            return self._submitted[0]
        if self._held is None and self._source is not None:
            requests = self._source()
            if requests is None:
                self._source = None
            else:
                group = check_group(requests)
                self._check_new([group])
                self._held = group
        return self._held


def check_group(requests: Sequence[EpisodeRequest]) -> tuple[EpisodeRequest, ...]:
    """Return the requests as one well-formed group, with `group_size` filled in.

    Raises:
        ValueError: It is empty, mixes groups, or repeats members.
    """
    group = tuple(requests)
    ids = {request.group_id for request in group}
    members = {request.member for request in group}
    if len(ids) != 1 or len(members) != len(group):
        raise ValueError(
            "a group must hold requests of one group_id with distinct members, got "
            f"{[(item.group_id, item.member) for item in group]!r}. "
            "Give siblings one group_id and members 0, 1, 2, ..."
        )
    return tuple(msgspec.structs.replace(item, group_size=len(group)) for item in group)
