"""All workers together: who has a free slot, and which episode flies where.

Invariants: an episode flies on one live worker; it lands exactly once, with a record or as a fault
of its dead worker or of its deadline; later records of it are counted and ignored.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import NamedTuple

from awrl_rollout.clock import Clock
from awrl_rollout.episode import EpisodeRecord, EpisodeRequest, Measured, record_fault
from awrl_rollout.faults import Fault, FaultKind
from awrl_rollout.worker_link import WorkerLink

logger = logging.getLogger(__name__)


_MAX_GIVEN_UP = 10_000
"""Given-up ids whose late records are still told; an id is a few dozen bytes."""


class Flight(NamedTuple):
    """One episode between its assignment and its landing."""

    request: EpisodeRequest
    link: WorkerLink
    started_s: float


class Fleet:
    """The links of one controller and the flights on them.

    Args:
        clock: Source of time.
        on_landed: Called once per episode, with its request and its record.
        on_late: Called with the record of an episode that was given up before, once.
    """

    def __init__(
        self,
        clock: Clock,
        on_landed: Callable[[EpisodeRequest, EpisodeRecord], None],
        on_late: Callable[[EpisodeRecord], None],
    ) -> None:
        self.links: dict[str, WorkerLink] = {}
        self.num_duplicates = 0
        self.num_worker_deaths = 0
        self.num_landed = 0
        self.num_training = 0
        """Training episodes in flight."""
        self.num_faults = 0
        self._clock = clock
        self._on_landed = on_landed
        self._on_late = on_late
        self._flights: dict[str, Flight] = {}
        self._home: dict[str, str] = {}
        self._given_up: dict[str, None] = {}

    @property
    def num_in_flight(self) -> int:
        """Episodes in flight, evaluation included."""
        return len(self._flights)

    @property
    def has_free(self) -> bool:
        """Whether any live worker has a free slot."""
        return any(link.num_free > 0 for link in self.links.values())

    @property
    def live(self) -> list[WorkerLink]:
        """Links whose worker is not dead."""
        return [link for link in self.links.values() if not link.is_dead]

    def add(self, link: WorkerLink) -> None:
        """Add a link; a dead one of the same name is replaced.

        Raises:
            ValueError: A live worker has this name.
        """
        known = self.links.get(link.name)
        if known is not None and not known.is_dead:
            raise ValueError(
                f"worker name must be unique, got {link.name!r} twice. Rename one of them."
            )
        self.links[link.name] = link

    def pick(self, group_id: str) -> WorkerLink | None:
        """Return a live link with a free slot, by preference the one where siblings fly."""
        home = self.links.get(self._home.get(group_id, ""))
        if home is not None and home.num_free > 0:
            return home
        best = max(self.links.values(), key=lambda link: link.num_free, default=None)
        return best if best is not None and best.num_free > 0 else None

    def assign(self, request: EpisodeRequest, link: WorkerLink) -> None:
        """Put an episode in flight."""
        self._flights[request.episode_id] = Flight(request, link, self._clock.time())
        self.num_training += not request.is_eval
        if request.group_size > 1 and not request.is_eval:
            self._home[request.group_id] = link.name
        link.assign(request)

    def forget_group(self, group_id: str) -> None:
        """Forget where a complete group's siblings flew."""
        self._home.pop(group_id, None)

    def land(self, records: Sequence[EpisodeRecord]) -> None:
        """Take records; each flight lands once, the rest are duplicates."""
        for record in records:
            flight = self._flights.pop(record.episode_id, None)
            if flight is None:
                self._late(record)
                continue
            flight.link.release(record.episode_id)
            self.num_landed += 1
            self.num_training -= not flight.request.is_eval
            self.num_faults += record.fault is not None
            self._on_landed(flight.request, record)

    def lose(self, link: WorkerLink, reason: str) -> None:
        """Land every flight of a dead worker as a fault."""
        self.num_worker_deaths += 1
        for request in list(link.in_flight.values()):
            self._land_as_fault(
                request, FaultKind.WORKER_LOST, f"worker {link.name!r} is dead: {reason}"
            )

    def land_overdue(self, deadline_s: float) -> list[Flight]:
        """Land every flight older than `deadline_s` as a fault and return them."""
        limit_s = self._clock.time() - deadline_s
        overdue: list[Flight] = []
        for flight in self._flights.values():  # in the order of assignment
            if flight.started_s > limit_s:
                break
            overdue.append(flight)
        for flight in overdue:
            self._land_as_fault(
                flight.request,
                FaultKind.TIMEOUT,
                f"no record within {deadline_s} s from worker {flight.link.name!r}",
            )
        return overdue

    def land_all(self, reason: str) -> None:
        """Land every flight as cancelled."""
        for flight in list(self._flights.values()):
            self._land_as_fault(flight.request, FaultKind.CANCELLED, reason)

    def cancel(self, episode_ids: Sequence[str], reason: str) -> list[Flight]:
        """Land these flights as cancelled and return those that were in the air."""
        flights = [self._flights[key] for key in episode_ids if key in self._flights]
        for flight in flights:
            self._land_as_fault(flight.request, FaultKind.CANCELLED, reason)
        return flights

    def _late(self, record: EpisodeRecord) -> None:
        self.num_duplicates += 1
        if record.episode_id in self._given_up:
            del self._given_up[record.episode_id]
            self._on_late(record)

    def _land_as_fault(self, request: EpisodeRequest, kind: FaultKind, message: str) -> None:
        self._given_up[request.episode_id] = None
        if len(self._given_up) > _MAX_GIVEN_UP:
            del self._given_up[next(iter(self._given_up))]
        fault = Fault(kind=kind, boundary="controller", error_type="", message=message)
        self.land([record_fault(request, fault, Measured())])
