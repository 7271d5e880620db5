"""The receivers of a publisher: who takes part, and who is in quarantine.

Invariant: every call to a receiver has a deadline, and its failure is a value.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Coroutine, Mapping, Sequence
from typing import Any, TypeVar

from awrl_trainer.outcome import CallOutcome, outcome_of_async
from awrl_trainer.weights.protocols import WeightReceiver

logger = logging.getLogger(__name__)
ResultT = TypeVar("ResultT")
OtherT = TypeVar("OtherT")


async def outcome_within(awaitable: Awaitable[ResultT], deadline_s: float) -> CallOutcome[ResultT]:
    """Await something for at most `deadline_s` seconds; a `TimeoutError` is an outcome too."""

    async def bounded() -> ResultT:
        async with asyncio.timeout(deadline_s):
            return await awaitable

    return await outcome_of_async(bounded())


class Receivers:
    """Receivers by name, in the order they were given, and the reasons of those left out.

    Raises:
        ValueError: No receivers, or two of one name.
    """

    def __init__(self, receivers: Sequence[WeightReceiver]) -> None:
        self._by_name = {receiver.name: receiver for receiver in receivers}
        if not receivers or len(self._by_name) < len(receivers):
            raise ValueError(
                f"receivers must have unique names and be at least one, got"
                f" {[receiver.name for receiver in receivers]}. Name them by URL."
            )
        self.quarantined: dict[str, str] = {}

    def active(self) -> dict[str, WeightReceiver]:
        """Return the receivers that take part."""
        return {n: r for n, r in self._by_name.items() if n not in self.quarantined}

    def quarantine(self, name: str, reason: str) -> None:
        """Leave a receiver out until it is readmitted."""
        self.quarantined[name] = reason
        logger.warning("receiver %s is quarantined: %s", name, reason)

    def quarantine_failed(self, outcomes: Mapping[str, CallOutcome[ResultT]], phase: str) -> bool:
        """Leave out every receiver whose outcome is an error; return whether there was one."""
        failed = {name: o.error for name, o in outcomes.items() if o.error is not None}
        for name, error in failed.items():
            self.quarantine(name, f"{phase}: {type(error).__name__}: {error}")
        return bool(failed)

    def readmit(self, receiver: WeightReceiver) -> None:
        """Take a receiver in, in the place of the one of its name."""
        self._by_name[receiver.name] = receiver
        self.quarantined.pop(receiver.name, None)


async def each(
    calls: Mapping[str, Awaitable[ResultT]], deadline_s: float
) -> dict[str, CallOutcome[ResultT]]:
    """Await calls at the same time, each up to the deadline."""
    async with asyncio.TaskGroup() as group:
        tasks = {
            name: group.create_task(outcome_within(call, deadline_s))
            for name, call in calls.items()
        }
    return {name: task.result() for name, task in tasks.items()}


async def both(
    first: Coroutine[Any, Any, ResultT], second: Coroutine[Any, Any, OtherT]
) -> tuple[ResultT, OtherT]:
    """Await two outcomes at the same time."""
    async with asyncio.TaskGroup() as group:
        one, other = group.create_task(first), group.create_task(second)
    return one.result(), other.result()
