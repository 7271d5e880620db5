"""`AdmissionGate`: waits in asyncio for what `StalenessManager` only answers.

Invariants:
* waiters are served in the order of their arrival; nobody overtakes, `acquire_nowait` included;
* a waiter is woken by every event that may create capacity (an ending, a publish, a settle), from
  whatever thread it comes, and by `aclose`;
* a waiter that is cancelled leaves nothing behind: what it was granted returns at once.

The slot is released by telling the manager how the episode ended; the gate hears of it.
Made and used in one event loop; the manager may be used by other threads.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Mapping
from typing import NamedTuple

import msgspec

from awrl_staleness.errors import CapacityExceededError, GateClosedError
from awrl_staleness.manager import StalenessManager


class GateStatistics(msgspec.Struct, frozen=True, kw_only=True):
    """A frozen picture of one gate."""

    num_waiting: int
    num_granted: int
    is_closed: bool


class _Waiter(NamedTuple):
    future: asyncio.Future[None]
    ask: Callable[[Mapping[str, int]], bool]
    give_back: Callable[[], None]


class AdmissionGate:
    """Fair, closable admission to one manager.

    Args:
        manager: The run's one authority.
        extra_bounds: Returns further named bounds in episodes, read at each attempt.
    """

    def __init__(
        self,
        manager: StalenessManager,
        *,
        extra_bounds: Callable[[], Mapping[str, int]] | None = None,
    ) -> None:
        self._manager = manager
        self._extra_bounds = extra_bounds
        self._waiters: deque[_Waiter] = deque()
        self._num_granted = 0
        self._is_closed = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._unsubscribe = manager.subscribe(self._hear)

    async def acquire(self, episode_id: str, *, label: str | None = None) -> None:
        """Return with the episode enqueued and started, in the order of the calls.

        Raises:
            GateClosedError: The gate is closed, or was closed meanwhile.
            DuplicateEpisodeError: The id is live.
        """

        def ask(bounds: Mapping[str, int]) -> bool:
            return self._manager.try_admit(episode_id, label=label, **bounds)

        def give_back() -> None:
            self._manager.reject(episode_id, "cancelled while it was admitted")

        await self._acquire(ask, give_back)

    async def acquire_group(self, group_id: str, num_episodes: int) -> None:
        """Return with units reserved for a whole group, in the order of the calls.

        Raises:
            GateClosedError: The gate is closed, or was closed meanwhile.
            ConfigError: The group can never fit.
            DuplicateEpisodeError: The group is open.
        """

        def ask(bounds: Mapping[str, int]) -> bool:
            return self._manager.try_reserve(group_id, num_episodes, **bounds)

        def give_back() -> None:
            self._manager.close_group(group_id)

        await self._acquire(ask, give_back)

    def acquire_nowait(self, episode_id: str, *, label: str | None = None) -> None:
        """Start the episode now or raise.

        Raises:
            CapacityExceededError: There is no room, or others wait already.
            GateClosedError: The gate is closed.
            DuplicateEpisodeError: The id is live.
        """
        self._check_open()
        bounds = self._bounds()
        if self._waiters or not self._manager.try_admit(episode_id, label=label, **bounds):
            raise CapacityExceededError(
                f"capacity must be free to start {episode_id!r} at once, got "
                f"{len(self._waiters)} waiters and: {self._manager.capacity(**bounds).describe()}. "
                "Use acquire to wait."
            )
        self._num_granted += 1

    def notify(self) -> None:
        """Try again now; for extra bounds that change without any event of the manager."""
        while self._waiters:
            waiter = self._waiters[0]
            if not waiter.future.done():
                try:
                    is_granted = waiter.ask(self._bounds())
                except Exception as error:  # noqa: BLE001 - handed to the one who asked
                    waiter.future.set_exception(error)
                else:
                    if not is_granted:
                        return
                    self._num_granted += 1
                    waiter.future.set_result(None)
            self._waiters.popleft()

    async def aclose(self) -> None:
        """Wake every waiter with `GateClosedError`; harmless if repeated."""
        if self._is_closed:
            return
        self._is_closed = True
        self._unsubscribe()
        for waiter in self._waiters:
            if not waiter.future.done():
                waiter.future.set_exception(_closed())
        self._waiters.clear()

    def statistics(self) -> GateStatistics:
        """Return a frozen picture of the gate."""
        return GateStatistics(
            num_waiting=len(self._waiters),
            num_granted=self._num_granted,
            is_closed=self._is_closed,
        )

    async def _acquire(
        self, ask: Callable[[Mapping[str, int]], bool], give_back: Callable[[], None]
    ) -> None:
        self._check_open()
        self._loop = asyncio.get_running_loop()
        waiter = _Waiter(self._loop.create_future(), ask, give_back)
        self._waiters.append(waiter)
        self.notify()
        try:
            await waiter.future
        except asyncio.CancelledError:
            future = waiter.future
            if future.done() and not future.cancelled() and future.exception() is None:
                waiter.give_back()
            else:
                future.cancel()
                self.notify()
            raise

    def _bounds(self) -> Mapping[str, int]:
        return {} if self._extra_bounds is None else self._extra_bounds()

    def _hear(self) -> None:
        if self._loop is not None and self._waiters:
            self._loop.call_soon_threadsafe(self.notify)

    def _check_open(self) -> None:
        if self._is_closed:
            raise _closed()


def _closed() -> GateClosedError:
    return GateClosedError("gate must be open, got a closed one. Make a new one for a new run.")
