"""Inference servers under load, in virtual time.

The model: every running request gets tokens at the same rate, and the more run, the slower each one
is; a prompt costs as much as the tokens that could have been sampled meanwhile. Requests above
`max_running` wait in line. While a weight update holds the server, nothing moves; after it each
request that was cut pays for its prompt again (the `abort` way of pausing).

Invariants: work is conserved but for those repeated prompts; requests that were started together
with equal work end together.
"""

from __future__ import annotations

import heapq
import itertools
from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from webrl.simulate.events import EventLine
from webrl.simulate.model import ServerModel

_DONE = 1e-9
"""Work, in tokens, that counts as none: rounding of sums."""


class _Request(NamedTuple):
    ends_at_work: float
    order: int
    done: Callable[[], None]


class SimulatedServer:
    """One server.

    Args:
        model: Speed and room.
        version: Weight version that it holds.
    """

    def __init__(self, line: EventLine, model: ServerModel, *, version: int = 0) -> None:
        self.version = version
        self.busy_s = 0.0
        """Seconds with at least one running request."""
        self.request_s = 0.0
        """Seconds times running requests."""
        self._line = line
        self._model = model
        self._work = 0.0
        self._updated_s = 0.0
        self._running: list[_Request] = []
        self._waiting: deque[tuple[float, Callable[[], None]]] = deque()
        self._order = itertools.count()
        self._planned_s: float | None = None
        self._is_paused = False

    @property
    def num_running(self) -> int:
        """Requests that are being answered."""
        return len(self._running)

    @property
    def num_requests(self) -> int:
        """Requests that it has, those that wait included."""
        return len(self._running) + len(self._waiting)

    def add(self, num_tokens: float, done: Callable[[], None]) -> None:
        """Answer a request.

        Args:
            done: Called when it is answered; may add the next one.
        """
        self._advance()
        if len(self._running) < self._model.max_running:
            self._start(num_tokens, done)
            self._plan()
        else:
            self._waiting.append((num_tokens, done))

    def pause(self, now_s: float) -> None:
        """Let nothing move from now on."""
        self._line.now_s = max(self._line.now_s, now_s)
        self._advance()
        self._is_paused = True

    def resume(self, now_s: float, version: int) -> None:
        """Go on with new weights; what was cut is read again from its start.

        Args:
            version: Version of the new weights.
        """
        self._line.now_s = max(self._line.now_s, now_s)
        self._updated_s = self._line.now_s
        self._is_paused = False
        self.version = version
        again = self._model.prefill_tokens
        self._running = [
            _Request(request.ends_at_work + again, request.order, request.done)
            for request in self._running
        ]
        self._planned_s = None
        self._plan()

    def _start(self, num_tokens: float, done: Callable[[], None]) -> None:
        work = self._work + num_tokens + self._model.prefill_tokens
        heapq.heappush(self._running, _Request(work, next(self._order), done))

    def _rate(self) -> float:
        """Return tokens a second that each running request gets."""
        model = self._model
        return 1.0 / (model.token_s * (1.0 + model.crowding * (len(self._running) - 1)))

    def _advance(self) -> None:
        now_s = self._line.now_s
        passed_s = now_s - self._updated_s
        self._updated_s = now_s
        if passed_s <= 0.0 or self._is_paused or not self._running:
            return
        self.busy_s += passed_s
        self.request_s += passed_s * len(self._running)
        self._work += passed_s * self._rate()

    def _plan(self) -> None:
        """Look again when the next request may end; looking too early is harmless."""
        if not self._running or self._is_paused:
            return
        left = max(0.0, self._running[0].ends_at_work - self._work)
        at_s = self._line.now_s + left / self._rate()
        if self._planned_s is None or at_s < self._planned_s:
            self._planned_s = at_s
            self._line.at(at_s, self._look)

    def _look(self) -> None:
        if self._planned_s is None or self._line.now_s < self._planned_s - 1e-9:
            return  # planned before another request changed the speed
        self._planned_s = None
        self._advance()
        if self._is_paused:
            return
        ended: list[_Request] = []
        while self._running and self._running[0].ends_at_work <= self._work + _DONE * self._work:
            ended.append(heapq.heappop(self._running))
            if self._waiting:
                self._start(*self._waiting.popleft())
        self._plan()
        for request in ended:
            request.done()
