"""Faults: why an episode ended without saying anything about the policy.

A fault is typed, names the boundary that saw it, and never becomes a reward.
"""

from __future__ import annotations

import enum

import msgspec


class FaultKind(enum.Enum):
    """What broke; the closed set that statistics and retry policies count by."""

    BROWSER_LOST = "browser_lost"
    SITE_BLOCKED = "site_blocked"
    NAVIGATION_ERROR = "navigation_error"
    TIMEOUT = "timeout"
    JUDGE_ERROR = "judge_error"
    GENERATION_ERROR = "generation_error"
    WORKER_LOST = "worker_lost"
    CANCELLED = "cancelled"
    WORKFLOW_ERROR = "workflow_error"


class Fault(msgspec.Struct, frozen=True, kw_only=True):
    """One fault, as recorded with its episode."""

    kind: FaultKind
    """What broke."""
    boundary: str
    """Which named boundary saw it, for example `executor` or `worker`."""
    error_type: str
    """Class name of the exception, or empty when there was none."""
    message: str
    """The exception's text or a sentence."""
    num_attempts: int = 1
    """How often the executor ran the episode before it gave up."""

    def describe(self) -> str:
        """Return the fault as one short sentence for logs and statistics."""
        error = f"{self.error_type}: " if self.error_type else ""
        return f"{self.kind.value} at {self.boundary}: {error}{self.message}"


def cancelled(message: str, *, boundary: str, num_attempts: int = 1) -> Fault:
    """Return the fault of an episode that somebody ended on purpose."""
    return Fault(
        kind=FaultKind.CANCELLED,
        boundary=boundary,
        error_type="",
        message=message,
        num_attempts=num_attempts,
    )
