"""Counts of a pool, as a frozen snapshot."""

from __future__ import annotations

import msgspec


class PoolStatistics(msgspec.Struct, frozen=True, kw_only=True):
    """Counts since the pool was entered."""

    num_slots: int
    """Sessions that may be open."""
    num_open_sessions: int
    """Sessions that are open."""
    num_episodes: int
    """Episodes that were started, each further try included."""
    num_contexts: int
    """Contexts that were made."""
    num_browser_launches: int
    """Browsers that were launched, the first included."""
    num_driver_starts: int
    """Drivers that were started, the first included."""
