"""Frozen pictures of executors, pools and controllers."""

from __future__ import annotations

import msgspec
from awrl_staleness import StalenessStatistics


class SlotView(msgspec.Struct, frozen=True, kw_only=True):
    """What one busy slot does now, for the watchdog."""

    slot: int
    episode_id: str
    is_eval: bool
    stage: str
    """The workflow's own word, for example `navigate`; `start` before the first one."""
    site: str
    """Where, for example a host name; may be empty."""
    for_s: float
    """Seconds in this stage."""


class ExecutorStatistics(msgspec.Struct, frozen=True, kw_only=True):
    """A frozen picture of one executor."""

    name: str
    num_slots: int
    num_waiting: int
    """Requests accepted, not started."""
    num_running: int
    num_untaken: int
    """Records that nobody took yet."""
    num_ended: int
    """Records produced so far."""
    num_faults: int
    is_admission_open: bool
    busy_s: float
    """Seconds that slots spent inside episodes, summed over slots."""
    alive_s: float
    """Seconds since the slots started, times their number."""
    slots: tuple[SlotView, ...]
    """What each busy slot does now."""

    @property
    def idle_share(self) -> float:
        """Share of slot time without an episode, 0 to 1."""
        return max(0.0, 1.0 - self.busy_s / self.alive_s) if self.alive_s > 0 else 0.0


class ControllerStatistics(msgspec.Struct, frozen=True, kw_only=True):
    """A frozen picture of one controller."""

    num_workers: int
    """Live ones."""
    num_slots: int
    """Over the live workers."""
    num_in_flight: int
    """Episodes at workers, evaluation included."""
    num_pending: int
    """Members of admitted groups that wait for a slot."""
    num_eval_waiting: int
    num_open_groups: int
    num_ready_groups: int
    """Complete, accepted, not in a batch."""
    num_ready_episodes: int
    """Counted as the ready groups were asked for."""
    num_landed: int
    """Records so far."""
    num_faults: int
    num_refills: int
    num_duplicates: int
    """Records of episodes that had landed before."""
    num_worker_deaths: int
    num_smaller_groups: int
    """Groups delivered with fewer members than asked for."""
    num_short_batches: int
    """Batches that closed short because no further group could be admitted."""
    dropped_groups: dict[str, int]
    """Groups that never reached a batch, by reason."""
    is_admission_open: bool
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
            "rollout/landed_episodes": float(self.num_landed),
            "rollout/faulted_episodes": float(self.num_faults),
            "rollout/refilled_episodes": float(self.num_refills),
            "rollout/duplicate_records": float(self.num_duplicates),
            "rollout/dropped_groups": float(sum(self.dropped_groups.values())),
            **self.staleness.metrics(),
        }
