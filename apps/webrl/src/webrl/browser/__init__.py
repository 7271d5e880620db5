"""Real browsers for episodes: a pool of sessions over one Chromium, with typed faults."""

from webrl.browser.chromium import find_chromium
from webrl.browser.config import BrowserConfig, Deadlines
from webrl.browser.errors import BrowserFault, BrowserNotFoundError, FaultKind
from webrl.browser.outcome import EndReason, Event, EventKind, Observation, StepOutcome
from webrl.browser.pool import BrowserPool, PoolStatistics
from webrl.browser.session import BrowserSession

__all__ = [
    "BrowserConfig",
    "BrowserFault",
    "BrowserNotFoundError",
    "BrowserPool",
    "BrowserSession",
    "Deadlines",
    "EndReason",
    "Event",
    "EventKind",
    "FaultKind",
    "Observation",
    "PoolStatistics",
    "StepOutcome",
    "find_chromium",
]
