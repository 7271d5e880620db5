"""What a manager reports: counts now, totals so far, ages, and what was wasted and why."""

from __future__ import annotations

import msgspec

from awrl_staleness.capacity import Capacity
from awrl_staleness.ledger import Ledger


class StalenessStatistics(msgspec.Struct, frozen=True, kw_only=True):
    """A frozen picture of one manager; counts are episodes, ages are weight versions."""

    version: int
    capacity: Capacity
    """Without extra bounds."""
    num_enqueued: int
    """Known, not started."""
    num_running: int
    num_reserved: int
    """Units that open groups hold for members that are not running."""
    num_queued: int
    """Finished, not consumed."""
    num_training: int
    """Consumed, their batch not settled."""
    num_trained: int
    """Consumed so far, their batch settled."""
    num_submitted: int
    """Enqueued so far; the sum of all the other counts."""
    num_rejected: int
    num_faulted: int
    num_expired: int
    finished: int
    """Delivered so far, consumed and discarded ones included: a term of the capacity formula."""
    released: int
    """Episodes whose budget was released so far: a term of the capacity formula."""
    num_advances: int
    num_skips: int
    """Batches settled without a new version."""
    off_policyness: dict[int, int]
    """Histogram at consumption: versions behind -> episodes."""
    in_flight_age: dict[int, int]
    """Histogram at consumption or expiry: version at the end minus oldest version."""
    in_queue_age: dict[int, int]
    """Histogram at consumption or expiry: version now minus version at the end."""
    wasted_by_reason: dict[str, int]
    """Episodes that ran and were not trained on, by `rejected: ...`, `faulted: ...`, `expired`."""
    wasted_by_label: dict[str, int]
    """The same episodes by the caller's label, for example the task's difficulty."""

    @property
    def num_accepted(self) -> int:
        """Episodes that ended well and were not discarded since."""
        return self.num_queued + self.num_training + self.num_trained

    @property
    def mean_off_policyness(self) -> float:
        """Mean over the consumed episodes, 0 when there are none."""
        total = sum(self.off_policyness.values())
        weighted = sum(age * count for age, count in self.off_policyness.items())
        return weighted / total if total else 0.0

    def metrics(self) -> dict[str, float]:
        """Return the figures as flat `staleness/...` keys for a metrics sink."""
        return {
            "staleness/capacity_episodes": float(self.capacity.value),
            "staleness/running_episodes": float(self.num_running),
            "staleness/reserved_episodes": float(self.num_reserved),
            "staleness/queued_episodes": float(self.num_queued),
            "staleness/training_episodes": float(self.num_training),
            "staleness/off_policyness_mean_versions": self.mean_off_policyness,
            "staleness/off_policyness_max_versions": float(max(self.off_policyness, default=0)),
            "staleness/wasted_episodes": float(sum(self.wasted_by_reason.values())),
        }


def take_statistics(ledger: Ledger, capacity: Capacity) -> StalenessStatistics:
    """Return a frozen picture of a ledger."""
    tally = ledger.tally
    num_training = ledger.num_training
    return StalenessStatistics(
        version=ledger.version,
        capacity=capacity,
        num_enqueued=ledger.num_enqueued,
        num_running=ledger.num_running,
        num_reserved=ledger.num_reserved,
        num_queued=ledger.finished - ledger.released - num_training,
        num_training=num_training,
        num_trained=tally.num_trained,
        num_submitted=tally.num_submitted,
        num_rejected=tally.num_rejected,
        num_faulted=tally.num_faulted,
        num_expired=tally.num_expired,
        finished=ledger.finished,
        released=ledger.released,
        num_advances=tally.num_advances,
        num_skips=tally.num_skips,
        off_policyness=dict(tally.off_policyness),
        in_flight_age=dict(tally.in_flight_age),
        in_queue_age=dict(tally.in_queue_age),
        wasted_by_reason=dict(tally.wasted_by_reason),
        wasted_by_label=dict(tally.wasted_by_label),
    )
