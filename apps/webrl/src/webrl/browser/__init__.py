"""Real browsers for episodes: a pool of sessions over one Chromium, with typed faults."""

from __future__ import annotations

from webrl.browser.chromium import find_chromium
from webrl.browser.config import BrowserConfig, Deadlines
from webrl.browser.outcome import Event, EventKind, Mark, Observation, StepOutcome
from webrl.browser.pool import BrowserPool, PoolStatistics
from webrl.browser.session import BrowserSession
from webrl.browser.upstream import UpstreamConfig
from webrl.endings import EndReason

__all__ = [
    "BrowserConfig",
    "BrowserPool",
    "BrowserSession",
    "Deadlines",
    "EndReason",
    "Event",
    "EventKind",
    "Mark",
    "Observation",
    "PoolStatistics",
    "StepOutcome",
    "UpstreamConfig",
    "find_chromium",
]
