"""Continuous batching: which requests run, and what each step does with them.

Invariants:

* A request is in exactly one place: waiting, or running, or answered; it is answered once.
* A step admits what waits (one prefill) and makes one token for every row. Between two steps the
  weights may change; every token carries the label of the weights of its step.
* Nothing runs while paused. `abort` empties both queues, `in_place` leaves the rows as they are,
  `retract` puts running requests back at the head of the queue, to be prefilled again.
* After a change of weights no prefill of older weights serves a new row.

Synchronous and without threads, clocks or I/O: the engine's thread calls it, tests call it
directly.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from webrl.embedded.request import (
    Drawn,
    FinishReason,
    GenerationAnswer,
    GenerationRequest,
    Prompt,
)
from webrl.errors import BadRequestError

PauseMode = Literal["abort", "in_place", "retract"]

Delivery = tuple[Callable[[GenerationAnswer], None], GenerationAnswer]
"""Who takes an answer, and the answer."""

_QUEUE_ABORT = FinishReason(type="abort", message="Abort in waiting queue")
_RUNNING_ABORT = FinishReason(type="abort", message="Aborted")


@dataclass(frozen=True, kw_only=True, slots=True)
class SchedulerStatistics:
    """Snapshot of a scheduler; counts are since the start."""

    num_running: int
    """Requests in the running batch now."""
    num_waiting: int
    """Requests that wait for a row, or for `resume`, now."""
    num_finished: int
    """Requests that ended by themselves."""
    num_aborted: int
    """Requests that were cut."""
    num_refused: int
    """Requests that could not be served."""
    num_prefill_tokens: int
    """Prompt tokens computed."""
    num_shared_prompts: int
    """Prompts that needed no prefill of their own."""
    num_decode_steps: int
    """Decode forwards."""
    num_output_tokens: int
    """Tokens generated."""
    is_paused: bool
    """Whether generation is paused now."""


class PromptReader(Protocol):
    """What the scheduler needs of a model."""

    @property
    def eos_token_ids(self) -> frozenset[int]:
        """Ids that end an answer."""
        ...

    @property
    def context_length(self) -> int:
        """Most tokens of prompt and answer together."""
        ...

    def prepare(self, token_ids: Sequence[int], images: Sequence[bytes]) -> Prompt:
        """Return a prompt that can be served; raises `BadRequestError` when it can't be."""
        ...


class TokenBatch(Protocol):
    """What the scheduler needs of the running batch."""

    requests: list[GenerationRequest]
    """Requests with a row."""
    num_prefill_tokens: int
    """Prompt tokens computed."""
    num_shared_prompts: int
    """Prompts that needed no prefill of their own."""
    num_decode_steps: int
    """Decode forwards."""
    num_output_tokens: int
    """Tokens generated."""

    def forget_prompts(self) -> None:
        """Drop what older weights computed of prompts; rows in use stay."""
        ...

    def admit(self, requests: Sequence[GenerationRequest], version: str) -> list[Drawn]:
        """Give `requests` rows, and draw the first token of each."""
        ...

    def decode(self, version: str) -> list[Drawn]:
        """Draw the next token of every request in the batch."""
        ...

    def release(self, request: GenerationRequest) -> None:
        """Take `request` out of the batch."""
        ...

    def clear(self) -> list[GenerationRequest]:
        """Empty the batch; return who was in it."""
        ...


class RequestScheduler:
    """All requests of one server, and the label of its weights.

    Args:
        reader: Looks at prompts as they come.
        batch: Runs them.
        max_running: Requests in the running batch.
        weight_version: Label of the weights at the start.
    """

    def __init__(
        self,
        reader: PromptReader,
        batch: TokenBatch,
        *,
        max_running: int = 64,
        weight_version: str = "default",
    ) -> None:
        self._reader = reader
        self._batch = batch
        self._max_running = max_running
        self._waiting: deque[GenerationRequest] = deque()
        self._admitting: list[GenerationRequest] = []
        self._deliveries: list[Delivery] = []
        self._is_paused = False
        self._is_draining = False
        self._num_finished = 0
        self._num_aborted = 0
        self._num_refused = 0
        self.weight_version = weight_version

    @property
    def has_work(self) -> bool:
        """Whether a `step` would do something."""
        if self._is_paused:
            return False
        return bool(self._batch.requests or (self._waiting and not self._is_draining))

    @property
    def is_paused(self) -> bool:
        """Whether generation is paused."""
        return self._is_paused

    @property
    def num_running(self) -> int:
        """Requests in the running batch."""
        return len(self._batch.requests)

    def take_deliveries(self) -> list[Delivery]:
        """Return the answers since the last call, in order."""
        deliveries, self._deliveries = self._deliveries, []
        return deliveries

    def submit(self, request: GenerationRequest) -> None:
        """Queue a request; one that can't be served is answered with its error."""
        try:
            self._prepare(request)
        except BadRequestError as error:
            self.reject(request, error)
        else:
            self._waiting.append(request)

    def reject(self, request: GenerationRequest, error: Exception) -> None:
        """GenerationAnswer a request that is in neither queue with `error`."""
        self._num_refused += 1
        self._answer(request, None, error)

    def _prepare(self, request: GenerationRequest) -> None:
        assert not request.output_ids
        request.prompt = self._reader.prepare(request.prompt_ids, request.images)
        request.num_prompt_tokens = request.prompt.num_tokens
        limit = self._reader.context_length
        room = limit - request.num_prompt_tokens
        if room < 1:
            raise BadRequestError(
                f"The input ({request.num_prompt_tokens} tokens) must be shorter than the model's "
                f"context length ({limit} tokens). Shorten the history."
            )
        wanted = request.params.max_new_tokens
        request.budget = room if wanted is None else min(wanted, room)
        eos = frozenset[int]() if request.params.ignore_eos else self._reader.eos_token_ids
        request.stop_ids = eos | frozenset(request.params.stop_token_ids or ())

    def abort(self, rid_prefix: str) -> int:
        """GenerationAnswer each request whose id starts with `rid_prefix` with what it has; count them."""
        doomed = [
            request
            for request in (*self._waiting, *self._batch.requests)
            if request.rid.startswith(rid_prefix)
        ]
        self._cut(doomed)
        return len(doomed)

    def _cut(self, requests: Sequence[GenerationRequest]) -> None:
        doomed = {id(request) for request in requests}
        running = [request for request in self._batch.requests if id(request) in doomed]
        waiting = [request for request in self._waiting if id(request) in doomed]
        self._waiting = deque(r for r in self._waiting if id(r) not in doomed)
        for request in waiting:
            self._answer(request, _QUEUE_ABORT)
        for request in running:
            self._batch.release(request)
            self._answer(request, _RUNNING_ABORT)
        self._num_aborted += len(requests)

    def abort_exact(self, rid: str) -> None:
        """GenerationAnswer the one request `rid`, if it is still here, with what it has."""
        for request in (*self._waiting, *self._batch.requests):
            if request.rid == rid:
                self._cut([request])

    def set_version(self, weight_version: str) -> None:
        """Take a new label for weights that are already here."""
        self.weight_version = weight_version

    def pause(self, mode: PauseMode) -> None:
        """Stop generating until `resume`. Requests that come later wait, in every mode."""
        if mode == "abort" and not self._is_paused:
            self.abort("")
        elif mode == "retract":
            self._retract_all()
        self._is_paused = True

    def resume(self) -> None:
        """Go on generating."""
        self._is_paused = False

    def _retract_all(self) -> None:
        retracted = list(self._batch.requests)
        back: list[GenerationRequest] = []
        for request in retracted:
            self._batch.release(request)
            so_far = request.prompt_ids + tuple(request.output_ids)
            try:
                request.prompt = self._reader.prepare(so_far, request.images)
            except BadRequestError as error:
                # It drew an id that only a prompt may hold, such as an image placeholder.
                self.reject(request, error)
            else:
                back.append(request)
        self._waiting.extendleft(reversed(back))

    def set_draining(self, is_draining: bool) -> None:
        """Admit nothing while draining, so that what runs ends under one version."""
        self._is_draining = is_draining

    def weights_changed(self, weight_version: str | None) -> None:
        """Forget what older weights computed; take the new label, if there is one."""
        self._batch.forget_prompts()
        if weight_version is not None:
            self.weight_version = weight_version

    def flush(self) -> bool:
        """Drop the shared prompts; refuse (false) while requests run or wait, as SGLang does."""
        if self._waiting or self._batch.requests:
            return False
        self._batch.forget_prompts()
        return True

    def step(self) -> None:
        """Admit what waits, then make one token for every row; nothing when paused."""
        if not self.has_work:
            return
        version = self.weight_version
        if not self._is_draining and self._waiting:
            room = self._max_running - self.num_running
            fresh = [self._waiting.popleft() for _ in range(min(room, len(self._waiting)))]
            self._admitting = fresh
            if fresh:
                self._report(self._batch.admit(fresh, version))
            self._admitting = []
        if self._batch.requests:
            self._report(self._batch.decode(version))

    def fail_running(self, error: Exception) -> None:
        """GenerationAnswer every request that a broken step had in hand with `error`; start clean."""
        in_batch = self._batch.clear()
        in_hand = {id(request): request for request in (*self._admitting, *in_batch)}
        self._admitting = []
        for request in in_hand.values():
            if not request.is_answered:
                self.reject(request, error)

    def _report(self, drawn: Iterable[Drawn]) -> None:
        for request, finish in drawn:
            if finish is not None:
                self._num_finished += 1
            if finish is not None or request.is_stream:
                self._answer(request, finish)

    def _answer(
        self,
        request: GenerationRequest,
        finish: FinishReason | None,
        error: Exception | None = None,
    ) -> None:
        request.is_answered = finish is not None or error is not None
        answer = request.answer(self.weight_version, finish, error)
        self._deliveries.append((request.deliver, answer))

    def statistics(self) -> SchedulerStatistics:
        """Return the counters as of now."""
        return SchedulerStatistics(
            num_running=self.num_running,
            num_waiting=len(self._waiting),
            num_finished=self._num_finished,
            num_aborted=self._num_aborted,
            num_refused=self._num_refused,
            num_prefill_tokens=self._batch.num_prefill_tokens,
            num_shared_prompts=self._batch.num_shared_prompts,
            num_decode_steps=self._batch.num_decode_steps,
            num_output_tokens=self._batch.num_output_tokens,
            is_paused=self._is_paused,
        )
