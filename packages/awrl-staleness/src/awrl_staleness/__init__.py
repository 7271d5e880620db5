"""Decides when one more rollout episode may start and whether it may be trained on."""

from awrl_staleness.capacity import CONCURRENCY, STALENESS, Capacity, compute_capacity
from awrl_staleness.config import StalenessConfig
from awrl_staleness.cursor import CursorSnapshot, ResumeCursor
from awrl_staleness.errors import (
    CapacityExceededError,
    ConfigError,
    DuplicateEpisodeError,
    GateClosedError,
    IllegalTransitionError,
    StalenessError,
    UnknownEpisodeError,
)
from awrl_staleness.freshness import VersionSpan, is_fresh, is_last_chance, off_policyness
from awrl_staleness.gate import AdmissionGate, GateStatistics
from awrl_staleness.manager import StalenessManager
from awrl_staleness.snapshot import EpisodeSnapshot, LedgerSnapshot
from awrl_staleness.states import TERMINAL_STATES, TRANSITIONS, EpisodeEvent, EpisodeState
from awrl_staleness.statistics import StalenessStatistics

__all__ = [
    "AdmissionGate",
    "CONCURRENCY",
    "Capacity",
    "CapacityExceededError",
    "ConfigError",
    "CursorSnapshot",
    "DuplicateEpisodeError",
    "EpisodeEvent",
    "EpisodeSnapshot",
    "EpisodeState",
    "GateClosedError",
    "GateStatistics",
    "IllegalTransitionError",
    "LedgerSnapshot",
    "ResumeCursor",
    "STALENESS",
    "StalenessConfig",
    "StalenessError",
    "StalenessManager",
    "StalenessStatistics",
    "TERMINAL_STATES",
    "TRANSITIONS",
    "UnknownEpisodeError",
    "VersionSpan",
    "compute_capacity",
    "is_fresh",
    "is_last_chance",
    "off_policyness",
]
