"""A circuit breaker that tells one site from everything: it counts groups and sites. Pure.

::

    closed --suspicion--> on trial --nothing better for `patience_s`--> open
      ^                      |
      '------ it works ------'

Suspicions, each about the groups that ended last:
* the infrastructure ended most of their episodes, on most of their sites;
* a few in a row were lost and none of their sites gave a sign of life;
* a whole window of them in a row was lost, whatever to.

Invariants:
* siblings count once: a group is well as soon as one member ended, lost when a fault stays, half of
  its members met one before, or all are over;
* while one group in a window is well, sites alone never bring up a suspicion;
* on trial episodes start one by one after growing waits; only what is found then opens the breaker,
  so an outage that ends costs some seconds, and none stops a run at once;
* once open it stays open.
"""

from __future__ import annotations

import logging
from collections import Counter, deque
from collections.abc import Iterable

import msgspec

from awrl_rollout.episode import EpisodeRecord, EpisodeRequest, FaultKind
from awrl_rollout.errors import StarvedError

logger = logging.getLogger(__name__)

NOT_COUNTED: frozenset[FaultKind] = frozenset({FaultKind.CANCELLED, FaultKind.WORKER_LOST})
"""Ours, not the environment's: cancelled on request, or one dead worker that took many along."""

SIGNS_OF_LIFE: frozenset[FaultKind] = frozenset(
    {
        FaultKind.SITE_BLOCKED,
        FaultKind.ADDRESS_REFUSED,
        FaultKind.BAD_CERTIFICATE,
        FaultKind.NO_PAGE,
        FaultKind.PAGE_ERROR,
        FaultKind.DEADLY_PAGE,
    }
)
"""Faults that only an answer of the site or of its name can bring about: the network works."""

FEW = 8
"""Groups: with a quarter of all sites down, as many in a row are down once in 60,000."""

FIRST_WAIT_S = 1.0
LONGEST_WAIT_S = 15.0
"""Between two starts on trial: a dozen of them fit into the usual patience."""

TEXT_LENGTH = 400
"""Characters of a fault's message that an error repeats."""


class _Seen(msgspec.Struct, eq=False):
    """What is known of one group."""

    site: str
    faulted: set[int] = msgspec.field(default_factory=set[int])
    """Members that met a fault."""
    last_fault: FaultKind | None = None
    is_lost: bool = False
    is_well: bool = False
    num_ends: int = 0
    """Of members and their refills."""
    num_infrastructure_faults: int = 0


class _Trial(msgspec.Struct):
    reason: str
    since_s: float
    next_start_s: float
    is_about_share: bool
    wait_s: float = FIRST_WAIT_S
    num_lost: int = 0


class FaultBreaker:
    """Watches how the last groups ended.

    Args:
        max_share: Largest share of groups that may be lost to the infrastructure; None, or 1, never
            opens.
        window: Groups that the share is taken over.
        patience_s: How long everything may be down before the breaker opens, in seconds.
    """

    def __init__(self, *, max_share: float | None, window: int, patience_s: float = 0.0) -> None:
        self._max_share = 1.0 if max_share is None else max_share
        self._patience_s = patience_s
        self._window = window
        self._few = min(FEW, window)
        self._groups: dict[str, _Seen] = {}
        """Those that have members left."""
        self._last: deque[_Seen] = deque(maxlen=window)
        self._in_vain: deque[_Seen] = deque(maxlen=window)
        """Lost groups since the last one that was well."""
        self._num_silent = 0
        """The last of those, in a row, that gave no sign of life."""
        self._trial: _Trial | None = None
        self._opened: str | None = None
        self._texts: dict[FaultKind, str] = {}
        """The last message of each kind."""

    @property
    def is_open(self) -> bool:
        """Whether the run has to stop."""
        return self._opened is not None

    @property
    def is_on_trial(self) -> bool:
        """Whether episodes start one by one, until it is known whether anything works."""
        return self._trial is not None

    def may_start(self, now_s: float) -> bool:
        """Return whether an episode may start now."""
        return not self.is_open and (self._trial is None or now_s >= self._trial.next_start_s)

    def started(self, now_s: float) -> None:
        """Note that an episode has started; on trial the next one waits longer."""
        if self._trial is not None:
            self._trial.wait_s = min(LONGEST_WAIT_S, 2.0 * self._trial.wait_s)
            self._trial.next_start_s = now_s + self._trial.wait_s

    def note(self, request: EpisodeRequest, record: EpisodeRecord, now_s: float) -> None:
        """Count one episode's end, for its group."""
        fault = record.fault
        if self._max_share >= 1.0 or (fault is not None and fault.kind in NOT_COUNTED):
            return
        group = self._groups.setdefault(request.group_id, _Seen(request.site))
        group.num_ends += 1
        if fault is None:
            if not group.is_well:
                self._well(group, now_s)
            return
        # A site that fails is the infrastructure's doing where it is our own.
        group.num_infrastructure_faults += not (fault.kind.is_of_site and request.site)
        self._texts[fault.kind] = fault.message.strip().partition("\n")[0][:TEXT_LENGTH]
        group.faulted.add(request.member)
        group.last_fault = fault.kind
        is_lost = fault.kind.is_permanent or 2 * len(group.faulted) >= request.group_size
        if is_lost and not group.is_lost and not group.is_well:
            self._lost(group, fault.kind, now_s)

    def forget(self, group_id: str, now_s: float) -> None:
        """Note that a group is complete: none of its members is seen again."""
        group = self._groups.pop(group_id, None)
        if group is None:
            return
        if group.last_fault is not None and not (group.is_well or group.is_lost):
            self._lost(group, group.last_fault, now_s)
        self._last.append(group)
        self._judge(now_s)

    def describe(self) -> str:
        """Return why episodes start one by one; nothing when they do not."""
        return "" if self._trial is None else f"; starts are held back: {self._trial.reason}"

    def check(self) -> None:
        """Raise when the breaker is open.

        Raises:
            StarvedError: The infrastructure failed for too long.
        """
        if self._opened is not None:
            raise StarvedError(self._opened)

    def _well(self, group: _Seen, now_s: float) -> None:
        group.is_well = True
        self._in_vain.clear()
        self._num_silent = 0
        self._judge(now_s)

    def _lost(self, group: _Seen, kind: FaultKind, now_s: float) -> None:
        group.is_lost = True
        self._in_vain.append(group)
        self._num_silent = 0 if kind in SIGNS_OF_LIFE else self._num_silent + 1
        if self._trial is not None:
            self._trial.num_lost += 1
        self._judge(now_s)

    def _judge(self, now_s: float) -> None:
        if self._opened is not None:
            return
        if self._trial is None:
            self._suspect(now_s)
            return
        trial, reason = self._trial, self._nothing_works()
        if trial.is_about_share:
            reason = reason or self._too_many_lost(self._few)
        num_seen = len(self._last) if trial.is_about_share else self._few
        is_patient = now_s - trial.since_s < self._patience_s
        is_patient = is_patient or not (trial.num_lost or trial.is_about_share)
        if num_seen < self._few or (reason is not None and is_patient):
            return
        self._trial = None
        if reason is None:
            logger.warning("episodes start freely again")
        else:
            self._opened = f"{reason}{self._last_messages()}"

    def _suspect(self, now_s: float) -> None:
        """Go on trial where something more than single sites seems to be wrong."""
        nothing_works = self._nothing_works()
        reason = nothing_works or self._too_many_lost(self._window)
        if reason is None:
            return
        logger.warning("episodes start one by one from now on: %s", reason)
        self._trial = _Trial(
            reason=reason,
            since_s=now_s,
            next_start_s=now_s + FIRST_WAIT_S,
            is_about_share=nothing_works is None,
        )
        if nothing_works is None:
            self._last.clear()

    def _nothing_works(self) -> str | None:
        """Return what all lost groups of late say, None when it need not be everything."""
        if self._num_silent < self._few and len(self._in_vain) < self._window:
            return None
        sites = {group.site for group in self._in_vain}
        what = (
            f"{len(sites)} sites: this is not one site, everything is down"
            if len(sites) > 1
            else f"{next(iter(sites)) or 'our own pages'}, the only site of late"
        )
        return (
            f"a group in {self._few} must get through, got {len(self._in_vain)} in a row "
            f"that did not ({_counted(self._in_vain)}) on {what}. Look at network, proxy and name "
            f"server of the workers, and what the faults say; to wait longer than {self._patience_s:g} s, "
            "raise outage_patience_s."
        )

    def _too_many_lost(self, num_needed: int) -> str | None:
        """Return what the infrastructure's share of lost groups says, None when it is small."""
        limit = self._max_share
        lost = [
            item for item in self._last if item.num_infrastructure_faults > limit * item.num_ends
        ]
        groups = [*lost, *(item for item in self._last if item.is_well and item not in lost)]
        is_early = len(self._last) < num_needed or len(groups) < self._few
        if is_early or len(lost) <= self._max_share * len(groups):
            return None
        of_site = Counter(group.site for group in groups)
        lost_of_site = Counter(group.site for group in lost)
        bad = [
            site for site, count in lost_of_site.items() if count > self._max_share * of_site[site]
        ]
        if len(bad) <= self._max_share * len(of_site):
            return None
        return (
            f"share of groups lost to the infrastructure must be at most {self._max_share} over "
            f"{len(groups)} groups, got {len(lost) / len(groups):.2f} ({_counted(lost)}). Mend the "
            "most frequent kind, or raise max_fault_share."
        )

    def _last_messages(self) -> str:
        kinds = Counter(group.last_fault for group in (*self._last, *self._in_vain))
        told = (
            f"\n  the last {kind.value}: {self._texts[kind]}"
            for kind, _ in kinds.most_common()
            if kind is not None
        )
        return "".join(told)


def _counted(groups: Iterable[_Seen]) -> str:
    kinds = Counter(group.last_fault.value for group in groups if group.last_fault is not None)
    return ", ".join(f"{kind} {count}" for kind, count in kinds.most_common())
