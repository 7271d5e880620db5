"""How a `RolloutController` waits, polls and gives up, validated once; and the caller's hooks."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Literal

import msgspec

from awrl_rollout.episode import EpisodeRecord, EpisodeRequest

TaskSource = Callable[[], Sequence[EpisodeRequest] | None]
"""Returns the next group's requests; None when a single pass is over."""

ExtraBounds = Callable[[], Mapping[str, int]]
"""Returns further named bounds in episodes, for example an image store's free room."""

AcceptGroup = Callable[[Sequence[EpisodeRecord]], str | None]
"""Returns why a complete group is rejected (for example `zero variance`), None to accept it."""

DiscardHook = Callable[[Sequence[EpisodeRecord], str], None]
"""Told of records that will never be in a batch, with the reason; releases leases."""

EndedHook = Callable[[EpisodeRecord], None]
"""Told of each record once, as it arrives, whatever becomes of it: what a ledger of sites counts."""

GroupDropHook = Callable[[str, str], None]
"""Told, by group id and reason, of a group that will never be in a batch."""


class ControllerConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Time limits and policies of one controller.

    Raises:
        ValueError: A number is out of its range.
    """

    poll_interval_s: float = 1.0
    """Longest time until a record is seen whose callback was lost, and between admissions."""
    worker_call_deadline_s: float = 60.0
    """A worker whose method takes longer is dead."""
    episode_deadline_s: float | None = 3600.0
    """An episode without a record after this long is a fault; above the worker's own limit."""
    on_overrun: Literal["drop", "wait"] = "drop"
    """`wait`: a batch first waits for open groups that would expire with the next version."""
    overrun_deadline_s: float = 600.0
    """Longest such wait; what is still running then is dropped later, as under `drop`."""
    starved_after_s: float = 60.0
    """A batch that cannot fill for this long, with nothing running, is an error."""
    max_fault_share: float | None = 0.5
    """Largest share of groups lost to the infrastructure over `fault_window`; None never stops the
    run. What sites do to their own groups is not counted, nor are dead workers."""
    fault_window: int = 32
    """Groups that the share is taken over."""
    outage_patience_s: float = 180.0
    """How long the infrastructure may be down, though it is tried again and again, before the run
    stops."""
    watchdog_interval_s: float = 120.0
    """While the trainer waits this long, a sentence that says for whom is logged, again and again;
    a slot that stays this long in one stage counts as stuck."""
    max_refills: int = 2
    """Further requests for one member of a group after faults that can pass; then it counts as lost."""
    refill_delay_s: float = 1.0
    """Wait before a member's first refill; it doubles with each, up to a minute."""
    when_incomplete: Literal["deliver", "drop"] = "deliver"
    """Of a group with lost members, deliver those that ended well, or drop the whole group."""
    min_members: int = 1
    """A smaller group is dropped whatever `when_incomplete` says."""

    def __post_init__(self) -> None:
        """Check every number against its rule."""
        for name in ("fault_window", "max_refills", "min_members"):
            if type(getattr(self, name)) is not int:
                raise ValueError(f"{name} must be a whole number, got {getattr(self, name)!r}.")
        for name in (
            "poll_interval_s",
            "worker_call_deadline_s",
            "episode_deadline_s",
            "overrun_deadline_s",
            "starved_after_s",
            "fault_window",
            "watchdog_interval_s",
        ):
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise ValueError(f"{name} must be above 0, got {value}. Seconds end in _s.")
        for name, words in (
            ("on_overrun", ("drop", "wait")),
            ("when_incomplete", ("deliver", "drop")),
        ):
            if getattr(self, name) not in words:
                raise ValueError(f"{name} must be one of {words}, got {getattr(self, name)!r}.")
        self._check_ranges()

    def _check_ranges(self) -> None:
        share = self.max_fault_share
        if share is not None and not 0 <= share <= 1:
            raise ValueError(
                f"max_fault_share must be between 0 and 1, got {share}. Use None to switch it off."
            )
        for name, thing in (
            ("max_refills", "refill"),
            ("outage_patience_s", "wait"),
            ("refill_delay_s", "wait"),
        ):
            if not getattr(self, name) >= 0:
                raise ValueError(
                    f"{name} must be at least 0, got {getattr(self, name)}. Use 0 for no {thing}."
                )
        if self.min_members < 1:
            raise ValueError(
                f"min_members must be at least 1, got {self.min_members}. "
                "A group without members has nothing to train on."
            )
