"""Time as a parameter: the real clock, and a virtual one that never waits.

Invariants of `VirtualClock`:
* time moves only when nothing is ready to run, and then exactly to the next timer;
* `asyncio.sleep`, `asyncio.timeout` and `loop.call_later` obey it, so code under test is unchanged;
* when nothing is ready and no timer is set, the run fails instead of hanging.

Deadlines everywhere in this package are `asyncio.timeout`, which follows the running loop.
"""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Coroutine
from typing import Protocol, TypeVar

ResultT = TypeVar("ResultT")

_DEADLOCK_GRACE_S = 1.0
"""Real seconds to wait for another thread before an idle virtual loop is called deadlocked."""


class Clock(Protocol):
    """What code needs to know of time, in seconds from an arbitrary origin."""

    def time(self) -> float:
        """Return the time now."""
        ...

    async def sleep(self, delay_s: float) -> None:
        """Return `delay_s` seconds from now."""
        ...


class RealClock:
    """The running loop's clock; under `VirtualClock.run` that is virtual time."""

    def time(self) -> float:
        """Return the running loop's time."""
        return asyncio.get_running_loop().time()

    async def sleep(self, delay_s: float) -> None:
        """Return `delay_s` seconds from now."""
        await asyncio.sleep(delay_s)


class VirtualClock:
    """A clock whose loop jumps over idle time."""

    def __init__(self, *, start_s: float = 0.0) -> None:
        self._now_s = start_s

    def time(self) -> float:
        """Return the virtual time now."""
        return self._now_s

    async def sleep(self, delay_s: float) -> None:
        """Return after `delay_s` virtual seconds."""
        await asyncio.sleep(delay_s)

    def run(self, main: Coroutine[object, object, ResultT]) -> ResultT:
        """Run `main` to its end in virtual time and return its result.

        Raises:
            RuntimeError: Nothing is ready and no timer is set, so `main` can never end.
        """
        with self.new_runner() as runner:
            return runner.run(main)

    def new_runner(self) -> asyncio.Runner:
        """Return a runner whose loop lives in this clock's time."""
        return asyncio.Runner(loop_factory=lambda: _VirtualLoop(self))

    def advance(self, delay_s: float) -> None:
        """Move time forward; called by the loop when it is idle."""
        self._now_s += delay_s


class _JumpingSelector(selectors.DefaultSelector):
    """Polls the real file objects, and turns waiting into a jump of the clock."""

    def __init__(self, clock: VirtualClock) -> None:
        super().__init__()
        self._clock = clock

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        events = super().select(0)
        if events or timeout == 0:
            return events
        if timeout is None:
            events = super().select(_DEADLOCK_GRACE_S)
            if not events:
                raise RuntimeError(
                    "virtual time must have a timer or a ready task, got neither. "
                    "Every task waits for another: this is a deadlock."
                )
            return events
        self._clock.advance(timeout)
        return events


class _VirtualLoop(asyncio.SelectorEventLoop):
    def __init__(self, clock: VirtualClock) -> None:
        self._virtual_clock = clock
        super().__init__(_JumpingSelector(clock))
        # A timer fires when it is due within the resolution; a jump may fall short by one rounding.
        self._clock_resolution = 1e-6

    def time(self) -> float:
        return self._virtual_clock.time()
