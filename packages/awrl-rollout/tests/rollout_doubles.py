"""A worker whose episodes end when a test says so, and a driver for state machines."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import TypeVar

from awrl_rollout import (
    EpisodeRecord,
    EpisodeRequest,
    EpisodeResult,
    ExecutorStatistics,
    FaultKind,
    VirtualClock,
)
from awrl_rollout.episode import Fault, record_of
from awrl_rollout.executor import SlotView
from awrl_rollout.testing import settle

ResultT = TypeVar("ResultT")


class LoopHost:
    """Drives asynchronous objects step by step from synchronous code, in virtual time.

    For state machines of property tests: tasks that an object started go on during each `run`.

    Args:
        clock: The virtual time.
    """

    def __init__(self, clock: VirtualClock) -> None:
        self._runner = clock.new_runner()

    def run(self, step: Coroutine[object, object, ResultT]) -> ResultT:
        """Run one step to its end and return its result."""
        return self._runner.run(step)

    def call(self, function: Callable[[], None]) -> None:
        """Call a plain function inside the loop, then let every task run until it waits."""

        async def step() -> None:
            function()
            await settle()

        self.run(step())

    def settle(self) -> None:
        """Let every task run until it waits."""
        self.run(settle())

    def close(self) -> None:
        """Close the loop; tasks that still run are cancelled."""
        self._runner.close()


class ScriptedWorker:
    """A worker whose episodes end when the test says so.

    Args:
        name: Its name.
        num_slots: Its slots; the fake dies when a controller gives it more.

    Attributes:
        most_running: Most requests that it ever ran at once.
        requests: Running requests by id, in the order of their arrival.
        seen: Every request that ever arrived.
        delivered: Every record that was ever made takable.
        calls: Names of the methods that were called, in order.
        hang: Methods that never return from now on.
        cancels: Methods that raise a CancelledError of their own from now on.
        is_silent: True: completions are not told, only polling finds them.
    """

    def __init__(self, name: str = "worker", *, num_slots: int = 4) -> None:
        self.requests: dict[str, EpisodeRequest] = {}
        self.seen: list[EpisodeRequest] = []
        self.delivered: list[EpisodeRecord] = []
        self.calls: list[str] = []
        self.hang: set[str] = set()
        self.cancels: set[str] = set()
        self.is_silent = False
        self.most_running = 0
        self._name = name
        self._num_slots = num_slots
        self._records: dict[str, EpisodeRecord] = {}
        self._error: Exception | None = None
        self._on_completion: list[Callable[[str], None]] = []

    @property
    def name(self) -> str:
        """Its name."""
        return self._name

    @property
    def num_slots(self) -> int:
        """Its slots."""
        return self._num_slots

    def subscribe(self, on_completion: Callable[[str], None]) -> None:
        """Remember whom to tell of completions."""
        self._on_completion.append(on_completion)

    # -- the test's side

    def succeed(
        self, episode_id: str, *, reward: float = 1.0, oldest_version: int | None = None
    ) -> None:
        """End an episode well."""
        result = EpisodeResult(is_success=reward > 0, reward=reward, oldest_version=oldest_version)
        request = self.requests.pop(episode_id)
        self.deliver(record_of(request, result, worker=self._name))

    def filter_out(self, episode_id: str) -> None:
        """End an episode as a workflow does that answers None."""
        request = self.requests.pop(episode_id)
        self.deliver(record_of(request, None, worker=self._name))

    def fail(self, episode_id: str, kind: FaultKind = FaultKind.BROWSER_LOST) -> None:
        """End an episode with a fault."""
        fault = Fault(kind=kind, boundary="script", message="as scripted")
        request = self.requests.pop(episode_id)
        self.deliver(record_of(request, fault, worker=self._name))

    def forget(self, episode_id: str) -> None:
        """Lose an episode: it holds no slot and no record will ever come."""
        del self.requests[episode_id]

    def deliver(self, record: EpisodeRecord) -> None:
        """Make a record takable, also a second time or for an unknown episode."""
        self._records[record.episode_id] = record
        self.delivered.append(record)
        if not self.is_silent:
            for listener in self._on_completion:
                listener(self._name)

    def die(self, error: Exception | None = None) -> None:
        """Let every further call raise."""
        self._error = ConnectionError("the worker is gone") if error is None else error

    # -- the controller's side

    async def submit(self, requests: Sequence[EpisodeRequest]) -> None:
        """Start to run requests."""
        await self._enter("submit")
        for request in requests:
            self.requests[request.episode_id] = request
            self.seen.append(request)
        self.most_running = max(self.most_running, len(self.requests))
        if len(self.requests) > self._num_slots:
            raise AssertionError(f"{len(self.requests)} episodes in {self._num_slots} slots")

    async def take_finished(self, acknowledged: Sequence[str]) -> list[EpisodeRecord]:
        """Return the records that are not acknowledged."""
        await self._enter("take_finished")
        for episode_id in acknowledged:
            self._records.pop(episode_id, None)
        return list(self._records.values())

    async def cancel(self, episode_ids: Sequence[str]) -> None:
        """End episodes as cancelled."""
        await self._enter("cancel")
        for episode_id in episode_ids:
            if episode_id in self.requests:
                self.fail(episode_id, FaultKind.CANCELLED)

    async def pause(self) -> None:
        """Note the call."""
        await self._enter("pause")

    async def resume(self) -> None:
        """Note the call."""
        await self._enter("resume")

    async def statistics(self) -> ExecutorStatistics:
        """Return what the script runs."""
        await self._enter("statistics")
        views = tuple(
            SlotView(slot=slot, episode_id=key, stage="script", site="", for_s=0.0)
            for slot, key in enumerate(self.requests)
        )
        return ExecutorStatistics(
            name=self._name,
            num_slots=self._num_slots,
            num_waiting=0,
            num_running=len(self.requests),
            num_untaken=len(self._records),
            num_ended=len(self.seen) - len(self.requests),
            num_faults=0,
            is_admission_open=True,
            busy_s=0.0,
            alive_s=0.0,
            slots=views,
        )

    async def _enter(self, call: str) -> None:
        self.calls.append(call)
        if call in self.hang:
            await asyncio.get_running_loop().create_future()
        if call in self.cancels:
            raise asyncio.CancelledError
        if self._error is not None:
            raise self._error
