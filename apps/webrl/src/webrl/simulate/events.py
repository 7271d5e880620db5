"""Events of virtual time that do not go through asyncio one by one.

Steps of episodes are by far the most frequent events, and no task needs to hear of them: only the
end of an episode wakes one. So events wait in a heap of their own; the silent ones are handled ahead
of time up to the next audible one, and the loop gets a timer for that one alone.

Invariants:
* events are handled in the order of their time, equal ones in the order of their making;
* an audible event is handled when the loop's clock shows its time;
* what audible events set off in asyncio has run to its end before later events are looked at.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
from collections.abc import Callable

_LOOK_AHEAD_S = 1e-4
"""Virtual time after an audible event until silent ones are handled: above the loop's resolution,
so that every task that the event woke has run before, and far below any latency."""


class EventLine:
    """A heap of callbacks at points in virtual time."""

    def __init__(self) -> None:
        """Start empty at time 0; the first event starts a timer in the running loop."""
        self._heap: list[tuple[float, int, Callable[[], None], bool]] = []
        self._order = itertools.count()
        self._timer: asyncio.TimerHandle | None = None
        self._timer_s = 0.0
        self.now_s = 0.0
        """Time of the event that is being handled, or of the last one."""

    def at(self, time_s: float, callback: Callable[[], None], *, is_audible: bool = False) -> None:
        """Have a callback called at a time; one in the past is called next.

        Args:
            callback: Called without arguments; must not wait.
            is_audible: Whether it wakes a task.
        """
        heapq.heappush(self._heap, (time_s, next(self._order), callback, is_audible))

    def arm(self, time_s: float) -> None:
        """Look at the events soon after `time_s`; to be called by whoever adds some from a task."""
        self._set_timer(time_s + _LOOK_AHEAD_S)

    def close(self) -> None:
        """Forget the timer."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _set_timer(self, time_s: float) -> None:
        if self._timer is not None:
            if self._timer_s <= time_s:
                return
            self._timer.cancel()
        self._timer_s = time_s
        self._timer = asyncio.get_running_loop().call_at(time_s, self._handle)

    def _handle(self) -> None:
        """Handle what is due: silent events up to the next audible one, and that one in its time."""
        self._timer = None
        loop_s = asyncio.get_running_loop().time() + 1e-9
        heap = self._heap
        while heap:
            time_s, _, callback, is_audible = heap[0]
            if is_audible and time_s > loop_s:
                self._set_timer(time_s)
                return
            heapq.heappop(heap)
            if time_s > self.now_s:
                self.now_s = time_s
            callback()
            if is_audible:
                self._set_timer(loop_s + _LOOK_AHEAD_S)
                return
