"""The package's one place that catches everything.

Invariant: whatever a caller's function or a remote receiver raises becomes a value here, so that the
one who waits for several of them hears of all, and then decides. Cancellation passes through when
somebody asked for it; a `CancelledError` of a remote part's own is a failure like any other.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

ResultT = TypeVar("ResultT")


@dataclass(frozen=True, slots=True)
class CallOutcome(Generic[ResultT]):
    """A result, or the exception in its place."""

    value: ResultT | None = None
    """What was returned; None after a failure."""
    error: Exception | None = None
    """What was raised; None after a success."""


def outcome_of(action: Callable[[], ResultT]) -> CallOutcome[ResultT]:
    """Run a function and return its result or its exception."""
    try:
        return CallOutcome(value=action())
    except Exception as error:  # noqa: BLE001 - the boundary; see the module's docstring
        return CallOutcome(error=error)


async def outcome_of_async(awaitable: Awaitable[ResultT]) -> CallOutcome[ResultT]:
    """Await something and return its result or its exception."""
    try:
        return CallOutcome(value=await awaitable)
    except asyncio.CancelledError as error:
        task = asyncio.current_task()
        if task is None or task.cancelling():
            raise
        return CallOutcome(error=RuntimeError(f"it was cancelled by itself: {error!r}"))
    except Exception as error:  # noqa: BLE001 - the boundary; see the module's docstring
        return CallOutcome(error=error)
