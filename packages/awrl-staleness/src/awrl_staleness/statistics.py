"""What a manager reports: counts now, totals so far, ages, and what was wasted and why."""

from __future__ import annotations

from collections import Counter

import msgspec

from awrl_staleness.capacity import Capacity


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
    settled: int
    """Settled so far: a term of the capacity formula."""
    num_publishes: int
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


class Tally:
    """Counts that only grow; the part of a ledger that decides nothing."""

    def __init__(self) -> None:
        self.num_submitted = 0
        self.num_trained = 0
        self.num_rejected = 0
        self.num_faulted = 0
        self.num_expired = 0
        self.num_publishes = 0
        self.num_skips = 0
        self.off_policyness: Counter[int] = Counter()
        self.in_flight_age: Counter[int] = Counter()
        self.in_queue_age: Counter[int] = Counter()
        self.wasted_by_reason: Counter[str] = Counter()
        self.wasted_by_label: Counter[str] = Counter()

    def waste(self, reason: str, label: str | None) -> None:
        """Count one episode that ran and will not be trained on."""
        self.wasted_by_reason[reason] += 1
        self.wasted_by_label[label if label is not None else "unlabelled"] += 1

    def ages(self, oldest: int, at_end: int, now: int) -> None:
        """Split one finished episode's age into its flight and its wait."""
        self.in_flight_age[max(0, at_end - oldest)] += 1
        self.in_queue_age[max(0, now - at_end)] += 1
