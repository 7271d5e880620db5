"""The parts of one `RolloutController`, as its helpers see them."""

from __future__ import annotations

from typing import NamedTuple

from awrl_staleness import StalenessManager

from awrl_rollout.admission import Admission
from awrl_rollout.assembly import Assembly
from awrl_rollout.breaker import FaultBreaker
from awrl_rollout.eval_desk import EvalDesk
from awrl_rollout.fleet import Fleet
from awrl_rollout.groups import GroupBook
from awrl_rollout.statistics import ControllerStatistics


class ControllerParts(NamedTuple):
    """Everything that decides; the controller owns the loops around it."""

    manager: StalenessManager
    book: GroupBook
    admission: Admission
    assembly: Assembly
    fleet: Fleet
    desk: EvalDesk
    breaker: FaultBreaker

    def describe(self) -> str:
        """Return one sentence: what waits for what."""
        blocked = self.admission.blocked_by
        return (
            f"{self.fleet.num_in_flight} episodes in flight on {len(self.fleet.live)} workers, "
            f"{len(self.book.pending)} members wait for a slot, {self.book.num_open} groups are "
            f"open, {len(self.assembly.ready)} are ready; {self.manager.capacity().describe()}"
            + (f"; the next group was refused by {blocked}" if blocked else "")
            + ("; admission is paused" if self.admission.is_paused else "")
        )

    def statistics(self) -> ControllerStatistics:
        """Return a frozen picture of flights, groups and counts."""
        fleet, assembly = self.fleet, self.assembly
        return ControllerStatistics(
            num_workers=len(fleet.live),
            num_slots=sum(link.num_slots for link in fleet.live),
            num_in_flight=fleet.num_in_flight,
            num_pending=len(self.book.pending),
            num_eval_waiting=len(self.desk.waiting),
            num_open_groups=self.book.num_open,
            num_ready_groups=len(assembly.ready),
            num_ready_episodes=assembly.ready.num_episodes,
            num_landed=fleet.num_landed,
            num_faults=fleet.num_faults,
            num_refills=self.book.num_refills,
            num_duplicates=fleet.num_duplicates,
            num_worker_deaths=fleet.num_worker_deaths,
            num_smaller_groups=assembly.num_smaller_groups,
            num_short_batches=assembly.num_short_batches,
            dropped_groups=dict(assembly.dropped_groups),
            is_admission_open=not self.admission.is_paused,
            blocked_by=self.admission.blocked_by,
            staleness=self.manager.statistics(),
        )
