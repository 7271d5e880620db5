"""The callables that a `RolloutController` takes from its caller, with defaults that do nothing."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from awrl_rollout.episode import EpisodeRecord

AcceptGroup = Callable[[Sequence[EpisodeRecord]], str | None]
"""Returns why a complete group is rejected (for example `zero variance`), None to accept it."""

DiscardHook = Callable[[Sequence[EpisodeRecord], str], None]
"""Hears of training records that will never be in a batch, with the reason; releases leases."""

GroupDropHook = Callable[[str, str], None]
"""Hears, by group id and reason, of a group that will never be in a batch."""


def _accept_all(records: Sequence[EpisodeRecord]) -> str | None:
    del records
    return None


def _ignore_records(records: Sequence[EpisodeRecord], reason: str) -> None:
    del records, reason


def _ignore_group(group_id: str, reason: str) -> None:
    del group_id, reason


def _ignore_worker(name: str) -> None:
    del name


class ControllerHooks(NamedTuple):
    """All of them; each runs in the controller's loop and must return at once."""

    accept_group: AcceptGroup = _accept_all
    on_discarded: DiscardHook = _ignore_records
    on_group_dropped: GroupDropHook = _ignore_group
    on_worker_lost: Callable[[str], None] = _ignore_worker

    @classmethod
    def of(
        cls,
        accept_group: AcceptGroup | None,
        on_discarded: DiscardHook | None,
        on_group_dropped: GroupDropHook | None,
        on_worker_lost: Callable[[str], None] | None,
    ) -> ControllerHooks:
        """Return the hooks, each None replaced by one that does nothing."""
        return cls(
            accept_group or _accept_all,
            on_discarded or _ignore_records,
            on_group_dropped or _ignore_group,
            on_worker_lost or _ignore_worker,
        )
