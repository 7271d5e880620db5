"""Which sites let the agent in: what was seen of each, and whose tasks wait.

Invariants:
    * a site is closed by faults of its own that would come again (blocked, no such name, refused, a bad
      certificate), while most of what ended on it were these; for so long as the newest says;
    * what was seen fades: after `expiry_s` it counts a third;
    * a closed site is never the reason that nothing is drawn: where every site is, its tasks are
      drawn all the same, and the breaker decides;
    * the file is one moment's, whole or not there; a damaged one is set aside and told.

Consumes records of ended episodes; asked at each draw.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable
from pathlib import Path

import msgspec
from awrl_rollout import EpisodeRecord, EpisodeRequest, FaultKind

from webrl.rollout.batch_source import GroupStream

logger = logging.getLogger(__name__)

CLOSING = frozenset(
    {
        FaultKind.SITE_BLOCKED,
        FaultKind.ADDRESS_REFUSED,
        FaultKind.NAME_NOT_RESOLVED,
        FaultKind.CONNECTION_REFUSED,
        FaultKind.BAD_CERTIFICATE,
    }
)
"""Faults that close a site; a page that is gone, or deadly, says nothing of the others."""

MOST_SKIPPED = 10_000
"""Groups of closed sites that one draw passes over."""

SAVE_S = 10.0
"""Least time between two writes of the file."""


class SiteEntry(msgspec.Struct, kw_only=True):
    """What was seen of one site; counts fade."""

    num_ended: float = 0.0
    """Episodes that ended in success or failure."""
    num_success: float = 0.0
    """Those of them that succeeded."""
    num_closing: float = 0.0
    """Episodes that faults ended which would come again."""
    num_failed: float = 0.0
    """Episodes that other faults of the site ended."""
    latency_s: float = 0.0
    """Seconds of all that ended in success or failure, together."""
    seen_s: float = 0.0
    """When it was last seen, in seconds since the epoch."""
    closed_s: float = 0.0
    """When it was last found closed, likewise."""
    reason: str = ""
    """Kind of that fault."""


class SiteLedger:
    """Counts what happens on each site.

    Args:
        path: Where it is kept; nowhere when None.
        expiry_s: Seconds for which a site stays closed, and after which what was seen counts a third.
        clock: Seconds since the epoch.
    """

    def __init__(
        self, path: Path | None, *, expiry_s: float, clock: Callable[[], float] = time.time
    ) -> None:
        self._path = path
        self._expiry_s = expiry_s
        self._clock = clock
        self._entries = {} if path is None else _load(path)
        self._num_skipped = 0
        self._is_changed = False
        self._saved_s = -math.inf

    def note(self, record: EpisodeRecord) -> None:
        """Count an episode that ended; those without a site, and cancelled ones, say nothing."""
        fault = record.fault
        if not record.site or (fault is None and not record.has_ended_well):
            return
        if fault is not None and not fault.kind.is_of_site:
            return
        entry = self._faded(record.site)
        if fault is None:
            entry.num_ended += 1
            entry.num_success += record.reward is not None and record.reward > 0
            entry.latency_s += max(0.0, record.ended_s - record.started_s)
        elif fault.kind in CLOSING:
            entry.num_closing += 1
            entry.closed_s, entry.reason = self._clock(), fault.kind.value
        else:
            entry.num_failed += 1
        self._is_changed = True

    def is_open(self, site: str) -> bool:
        """Return whether tasks of a site are to be drawn."""
        entry = self._entries.get(site)
        if entry is None or self._clock() - entry.closed_s >= self._expiry_s:
            return True
        return entry.num_closing <= entry.num_ended

    def note_skipped(self) -> None:
        """Count a group that was not drawn."""
        self._num_skipped += 1

    def metrics(self) -> dict[str, float]:
        """Return how many sites were seen and are closed, and the groups passed over; write the file."""
        self.save()
        if not self._entries:
            return {}
        closed = sum(not self.is_open(site) for site in self._entries)
        return {
            "site/seen": float(len(self._entries)),
            "site/closed": float(closed),
            "site/skipped_groups": float(self._num_skipped),
        }

    def save(self, *, is_last: bool = False) -> None:
        """Write the file where something changed, and the last time was a while ago."""
        now = self._clock()
        if self._path is None or not self._is_changed:
            return
        if now - self._saved_s < SAVE_S and not is_last:
            return
        draft = self._path.with_name(f".{self._path.name}.draft")
        try:
            draft.write_bytes(msgspec.json.format(msgspec.json.encode(self._entries), indent=1))
            draft.replace(self._path)
        except OSError as error:
            logger.warning("what was seen of sites is not kept: %s", error)
            return
        self._is_changed, self._saved_s = False, now

    def _faded(self, site: str) -> SiteEntry:
        """Return a site's entry as of now."""
        entry, now = self._entries.setdefault(site, SiteEntry()), self._clock()
        share = math.exp(-max(0.0, now - entry.seen_s) / self._expiry_s) if entry.seen_s else 1.0
        for name in ("num_ended", "num_success", "num_closing", "num_failed", "latency_s"):
            setattr(entry, name, getattr(entry, name) * share)
        entry.seen_s = now
        return entry


class OpenSites:
    """A stream of groups without those of closed sites; a `GroupStream`.

    Args:
        stream: Where groups come from; a group that is passed over is finished there.
        ledger: Knows which sites are closed.
    """

    def __init__(self, stream: GroupStream, ledger: SiteLedger) -> None:
        self._stream = stream
        self._ledger = ledger

    def next_group(self) -> list[EpisodeRequest]:
        """Return the next group of an open site; of a closed one where there are no others."""
        first = group = self._stream.next_group()
        seen: set[str] = set()
        for _ in range(MOST_SKIPPED):
            site = group[0].site
            if self._ledger.is_open(site):
                break
            if group[0].payload == first[0].payload and site in seen:
                break  # Once round: every task is of a closed site.
            seen.add(site)
            self._ledger.note_skipped()
            self._stream.finish(group[0].group_id)
            group = self._stream.next_group()
        return group

    def finish(self, group_id: str) -> None:
        """Note that a group never has to come again."""
        self._stream.finish(group_id)


def _load(path: Path) -> dict[str, SiteEntry]:
    """Return what an earlier process has seen."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=dict[str, SiteEntry])
    except FileNotFoundError:
        return {}
    except (OSError, msgspec.DecodeError) as error:
        aside = path.with_name(f"{path.name}.damaged")
        logger.warning("%s can not be read and is set aside as %s: %s", path, aside.name, error)
        try:
            path.replace(aside)
        except OSError as refused:
            logger.warning("%s stays where it is: %s", path, refused)
        return {}
