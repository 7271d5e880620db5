"""What a controller tells of itself: its figures, and who waits for whom in one sentence. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

import msgspec
from awrl_staleness import StalenessStatistics

from awrl_rollout.executor import SlotView


class ControllerStatistics(msgspec.Struct, frozen=True, kw_only=True):
    """A frozen picture of one controller."""

    num_workers: int
    """Live ones."""
    num_slots: int
    """Over the live workers."""
    num_in_flight: int
    """Episodes at workers."""
    num_pending: int
    """Members of admitted groups that wait for a slot, or for their refill."""
    num_open_groups: int
    num_ready_groups: int
    """Complete, accepted, not in a batch."""
    num_ready_episodes: int
    """Counted as the ready groups were asked for."""
    num_completed: int
    """Episodes with a record so far."""
    num_faults: int
    num_refills: int
    num_duplicates: int
    """Records of episodes that were complete before."""
    num_worker_deaths: int
    num_restored: int
    """Episodes that finished before a resume."""
    num_smaller_groups: int
    """Groups delivered with fewer members than asked for."""
    num_short_batches: int
    """Batches that closed short because no further group could be admitted."""
    dropped_groups: dict[str, int]
    """Groups that never reached a batch, by reason."""
    is_admission_open: bool
    is_on_trial: bool
    """Whether episodes start one by one, because the infrastructure seems to be down."""
    blocked_by: str | None
    """Name of the bound that refused the next group."""
    staleness: StalenessStatistics

    def metrics(self) -> dict[str, float]:
        """Return the figures as flat `rollout/...` and `staleness/...` keys for a metrics sink."""
        return {
            "rollout/workers_live": float(self.num_workers),
            "rollout/slots": float(self.num_slots),
            "rollout/in_flight_episodes": float(self.num_in_flight),
            "rollout/pending_episodes": float(self.num_pending),
            "rollout/ready_episodes": float(self.num_ready_episodes),
            "rollout/completed_episodes": float(self.num_completed),
            "rollout/faulted_episodes": float(self.num_faults),
            "rollout/refilled_episodes": float(self.num_refills),
            "rollout/on_trial": float(self.is_on_trial),
            "rollout/restored_episodes": float(self.num_restored),
            "rollout/duplicate_records": float(self.num_duplicates),
            "rollout/dropped_groups": float(sum(self.dropped_groups.values())),
            **self.staleness.metrics(),
        }


def describe_wait(
    *,
    num_missing: int,
    waiting_s: float,
    num_slots: int,
    views: Iterable[SlotView],
    stuck_after_s: float,
    situation: str,
) -> str:
    """Return what the trainer waits for, and where most of the slots are stuck.

    Slots that stay in one stage for `stuck_after_s` count as stuck; without one, the `situation` is
    told.
    """
    head = f"trainer waits for {num_missing} episodes since {waiting_s:.0f} s"
    stuck = Counter((view.stage, view.site) for view in views if view.for_s >= stuck_after_s)
    if not stuck:
        return f"{head}; no slot is stuck: {situation}"
    parts: list[str] = []
    for (stage, site), count in stuck.most_common(3):
        where = f" at site {site}" if site else ""
        parts.append(f"{count} of {num_slots} slots are in `{stage}`{where}")
    return f"{head}; {', '.join(parts)} for more than {stuck_after_s:.0f} s"
