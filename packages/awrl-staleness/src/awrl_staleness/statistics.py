"""What a manager answers: capacity now; counts, ages, and what was wasted and why."""

from __future__ import annotations

import msgspec

CONCURRENCY = "concurrency"
"""Name of the bound by slots."""

STALENESS = "staleness"
"""Name of the bound by the budget of `(eta + 1) * B` episodes."""


class Capacity(msgspec.Struct, frozen=True, kw_only=True):
    """How many more episodes may start now, and which bound says so."""

    value: int
    """Episodes that may start now, never negative."""
    binding: str
    """Name of the smallest bound; on a tie the first of concurrency, staleness, extra bounds."""
    bounds: dict[str, int]
    """Every bound by name; an extra one may be negative."""

    def describe(self) -> str:
        """Return one sentence that names the binding bound."""
        listed = ", ".join(f"{name} {room}" for name, room in self.bounds.items())
        return f"{self.value} more episodes may start; {self.binding} binds ({listed})"


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
    """Consumed, the budget of their batch not released."""
    num_trained: int
    """Consumed so far, the budget of their batch released."""
    num_submitted: int
    """Enqueued so far: enqueued, running, accepted, rejected, faulted and expired ones."""
    num_rejected: int
    num_faulted: int
    num_expired: int
    finished: int
    """Delivered so far, consumed and discarded ones included: a term of the capacity formula."""
    released: int
    """Delivered ones whose budget was released so far: a term of the capacity formula."""
    off_policyness: dict[int, int]
    """Histogram at consumption: versions behind -> episodes."""
    in_flight_age: dict[int, int]
    """Histogram at consumption or loss: version at the end minus oldest version."""
    in_queue_age: dict[int, int]
    """Histogram at consumption or loss: version now minus version at the end."""
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
