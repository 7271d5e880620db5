"""How a `RolloutController` waits, polls and gives up, validated once."""

from __future__ import annotations

from typing import Literal

import msgspec

from awrl_rollout.groups import GroupPolicy


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
    """Largest share of faulted training episodes over `fault_window`; None never stops the run.
    Cancelled episodes and those of a dead worker are not counted."""
    fault_window: int = 64
    """Training episodes that the share is taken over."""
    watchdog_interval_s: float = 120.0
    """While the trainer waits this long, a sentence that says for whom is logged, again and again;
    a slot that stays this long in one stage counts as stuck."""
    group: GroupPolicy = GroupPolicy()
    """What happens to groups that lose members."""

    def __post_init__(self) -> None:
        """Check every number against its rule."""
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
            if value is not None and value <= 0:
                raise ValueError(f"{name} must be above 0, got {value}. Seconds end in _s.")
        share = self.max_fault_share
        if share is not None and not 0 <= share <= 1:
            raise ValueError(
                f"max_fault_share must be between 0 and 1, got {share}. Use None to switch it off."
            )
