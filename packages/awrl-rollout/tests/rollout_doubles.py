"""A worker and an inference server that do what a test says, and a driver for state machines."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable, Coroutine, Sequence
from typing import TypeVar

import msgspec
from awrl_rollout import (
    EpisodeRecord,
    EpisodeRequest,
    EpisodeResult,
    ExecutorStatistics,
    FaultKind,
    GenerateRequest,
    GenerateResult,
    ServerUnavailableError,
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
        self,
        episode_id: str,
        *,
        reward: float = 1.0,
        oldest_version: int | None = None,
        newest_version: int | None = None,
    ) -> None:
        """End an episode well."""
        result = EpisodeResult(
            is_success=reward > 0,
            reward=reward,
            oldest_version=oldest_version,
            newest_version=newest_version,
        )
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


class Cut(msgspec.Struct, frozen=True, kw_only=True):
    """The server cuts this attempt after some tokens."""

    num_tokens: int = 0
    """Tokens that it still delivers; fewer when the answer ends before."""
    next_version: int | None = None
    """Weight version of the attempts that follow; unchanged when `None`."""


class FailedAttempt(msgspec.Struct, frozen=True, kw_only=True):
    """This attempt has no answer."""

    message: str = "connection lost"
    """Text of the error."""


class ScriptedClient:
    """A `GenerateClient` whose attempts follow a script, then run to their end.

    The next token is a function of all tokens before it and of the images, so an answer that was
    glued together from pieces is right exactly when it equals the uncut one.

    Args:
        script: What happens to the first attempts, one item each.
    """

    def __init__(
        self,
        script: Sequence[Cut | FailedAttempt] = (),
        *,
        version: int = 0,
        vocab_size: int = 50,
        end_token_id: int = 0,
        on_attempt: Callable[[GenerateRequest], None] | None = None,
    ) -> None:
        self._script = list(script)
        self._vocab_size = vocab_size
        self._end_token_id = end_token_id
        self._on_attempt = on_attempt
        self.version = version
        self.attempts: list[GenerateRequest] = []

    def next_token(self, prefix: Sequence[int], images: Sequence[str]) -> int:
        """Return the token that follows `prefix`."""
        content = repr((tuple(prefix), tuple(images))).encode()
        return int.from_bytes(hashlib.sha256(content).digest()[:4], "big") % self._vocab_size

    async def generate(self, request: GenerateRequest) -> GenerateResult:
        """Answer one attempt as the script says.

        Raises:
            ServerUnavailableError: The script says that this attempt fails.
        """
        self.attempts.append(request)
        if self._on_attempt is not None:
            self._on_attempt(request)
        event = self._script.pop(0) if self._script else None
        if isinstance(event, FailedAttempt):
            raise ServerUnavailableError(event.message)
        limit = request.max_new_tokens if event is None else event.num_tokens
        result = self._answer(request, limit, is_cut=event is not None)
        if event is not None and event.next_version is not None:
            self.version = event.next_version
        return result

    def _answer(self, request: GenerateRequest, limit: int, *, is_cut: bool) -> GenerateResult:
        prefix = list(request.input_ids)
        output: list[int] = []
        while len(output) < min(limit, request.max_new_tokens):
            output.append(self.next_token(prefix, request.images))
            prefix.append(output[-1])
            if output[-1] == self._end_token_id:
                break
        is_stop = bool(output) and output[-1] == self._end_token_id
        is_full = len(output) == request.max_new_tokens
        reason = "stop" if is_stop else "length" if is_full and not is_cut else "abort"
        return GenerateResult(
            output_ids=tuple(output),
            logprobs=tuple(-0.001 * (token + 1) for token in output),
            versions=(self.version,) * len(output),
            stop_reason=reason,
        )

    async def aclose(self) -> None:
        """Do nothing: there is no connection."""
