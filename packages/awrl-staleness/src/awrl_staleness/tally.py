"""Counts that only grow; kept beside the ledger, read by reports alone."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Protocol

from awrl_staleness.freshness import off_policyness


class Aged(Protocol):
    """What ages are read from; an entry of the ledger."""

    oldest_version: int
    finished_version: int


class Tally:
    """Counts that only grow; the part of a ledger that decides nothing."""

    def __init__(self) -> None:
        self.num_submitted = 0
        self.num_trained = 0
        self.num_rejected = 0
        self.num_faulted = 0
        self.num_expired = 0
        self.num_advances = 0
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

    def ages(self, entries: Sequence[Aged], now: int) -> None:
        """Split each finished episode's age into its flight and its wait."""
        self.in_flight_age.update([max(0, e.finished_version - e.oldest_version) for e in entries])
        self.in_queue_age.update([max(0, now - e.finished_version) for e in entries])

    def consumed(self, entries: Sequence[Aged], now: int) -> None:
        """Count how far each trained episode lies behind."""
        self.off_policyness.update([off_policyness(e.oldest_version, now) for e in entries])
        self.ages(entries, now)
