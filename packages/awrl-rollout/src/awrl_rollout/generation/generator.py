"""Generation that a weight update may cut and that goes on where it was cut.

Invariants:

* A token that was delivered is never generated again: a cut request is resubmitted as prompt plus
  tokens so far, with the same images, and its budget shrinks by what was kept.
* Every token keeps the log-prob and the version that its own attempt was answered with.
* The caller's request is not changed, and every attempt carries all of its settings.
* Each wait ends: one deadline covers all attempts; the failures in a row are bounded; attempts
  that are cut before their first token are spaced, never repeated in a spin.
* Between `pause` and `resume` no attempt is sent. Attempts that are already at the server are not
  touched: the server's own pause ends or keeps them.

Called by rollout workflows, any number at once, in one event loop.
"""

from __future__ import annotations

import asyncio
import random

import msgspec

from awrl_rollout.concurrency import deadline
from awrl_rollout.errors import ServerRefusedError, ServerUnavailableError
from awrl_rollout.generation.protocol import (
    GenerateClient,
    GenerateRequest,
    GenerateResult,
    StopReason,
)
from awrl_rollout.retry import RetryPolicy, Sleep

DEFAULT_RETRY = RetryPolicy(max_retries=5, base_delay_s=0.05, max_delay_s=2.0, jitter=0.0)
"""Attempts in a row that may end without an answer before the request fails."""


class _Progress:
    """Tokens of one request so far; appends whole attempts only."""

    def __init__(self, request: GenerateRequest) -> None:
        self._request = request
        self._prompt = tuple(request.input_ids)
        self.output_ids: tuple[int, ...] = ()
        self._logprobs: tuple[float, ...] = ()
        self._versions: tuple[int, ...] = ()

    @property
    def num_left(self) -> int:
        return self._request.max_new_tokens - len(self.output_ids)

    def next_attempt(self) -> GenerateRequest:
        if not self.output_ids:
            return self._request
        return msgspec.structs.replace(
            self._request,
            input_ids=self._prompt + self.output_ids,
            max_new_tokens=self.num_left,
        )

    def append(self, answer: GenerateResult) -> None:
        self.output_ids += answer.output_ids
        self._logprobs += answer.logprobs
        self._versions += answer.versions

    def finish(self, stop_reason: StopReason) -> GenerateResult:
        return GenerateResult(
            output_ids=self.output_ids,
            logprobs=self._logprobs,
            versions=self._versions,
            stop_reason=stop_reason,
        )


class InterruptibleGenerator:
    """Answers requests in full over a client whose answers may be cut.

    Args:
        client: Answers one attempt at a time; not owned, so not closed here.
        deadline_s: Seconds for a whole request: all attempts, all waits, a paused server included.
        retry: Repeats after attempts without an answer, counted in a row. Cuts before the first token
            are spaced by its waits too, and are not bounded.

    Raises:
        ValueError: `deadline_s` is not above 0.
    """

    def __init__(
        self,
        client: GenerateClient,
        *,
        deadline_s: float = 300.0,
        retry: RetryPolicy = DEFAULT_RETRY,
        sleep: Sleep = asyncio.sleep,
    ) -> None:
        if not deadline_s > 0:
            raise ValueError(f"deadline_s must be > 0, got {deadline_s}. Give seconds.")
        self._client = client
        self._deadline_s = deadline_s
        self._retry = retry
        self._sleep = sleep
        self._rng = random.Random(0)
        self._gate = asyncio.Event()
        self._gate.set()
        self._num_away = 0
        self._none_away = asyncio.Event()
        self._none_away.set()
        self.num_interrupted = 0
        """Attempts that a server cut (`abort`) so far."""

    @property
    def is_paused(self) -> bool:
        """Whether new attempts are held back."""
        return not self._gate.is_set()

    def pause(self) -> None:
        """Hold back every further attempt until `resume`. A second call changes nothing."""
        self._gate.clear()

    def resume(self) -> None:
        """Let attempts go out again; those that waited are sent. Harmless when not paused."""
        self._gate.set()

    async def drained(self, *, deadline_s: float) -> bool:
        """Return True once no attempt is at a server, False when one still is at the deadline.

        Pause first, or new attempts keep coming.
        """
        try:
            async with deadline(deadline_s):
                await self._none_away.wait()
        except TimeoutError:
            return False
        return True

    async def generate(
        self, request: GenerateRequest, *, deadline_s: float | None = None
    ) -> GenerateResult:
        """Return the whole answer, across as many cuts as happen.

        Returns:
            All tokens with their log-probs and versions; `stop_reason` is `stop` or `length`.

        Raises:
            ServerUnavailableError: The deadline passed, or too many attempts in a row had no answer.
            ServerRefusedError: The server says that the request is wrong.
        """
        limit_s = self._deadline_s if deadline_s is None else deadline_s
        progress = _Progress(request)
        try:
            async with deadline(limit_s):
                return await self._run(progress)
        except TimeoutError as error:
            raise ServerUnavailableError(
                f"generation must end within {limit_s:g} s, got {len(progress.output_ids)} of "
                f"{request.max_new_tokens} tokens (episode {request.episode_id!r}). "
                "Look for a server that stays paused, or raise deadline_s."
            ) from error

    async def _run(self, progress: _Progress) -> GenerateResult:
        empty_cuts = 0
        while True:
            answer = await self._answer(progress.next_attempt())
            if len(answer.output_ids) > progress.num_left:
                raise ServerRefusedError(
                    f"answer must hold at most {progress.num_left} tokens, got "
                    f"{len(answer.output_ids)}. The server ignores max_new_tokens; its tokens can "
                    "not be trusted."
                )
            progress.append(answer)
            if answer.stop_reason != "abort":
                return progress.finish(answer.stop_reason)
            self.num_interrupted += 1
            if progress.num_left == 0:
                return progress.finish("length")
            empty_cuts = 0 if answer.output_ids else empty_cuts + 1
            # The first empty cut is the normal one of a request that waited in the queue.
            if empty_cuts > 1:
                await self._sleep(self._retry.delay_s(empty_cuts - 1, self._rng))

    async def _answer(self, request: GenerateRequest) -> GenerateResult:
        try:
            return await self._retry.call(
                lambda: self._attempt(request),
                repeats=ServerUnavailableError,
                sleep=self._sleep,
                rng=self._rng,
            )
        except ServerUnavailableError as error:
            raise ServerUnavailableError(
                f"generation must be answered within {self._retry.max_retries + 1} "
                f"attempts in a row, got none. Last error: {error}"
            ) from error

    async def _attempt(self, request: GenerateRequest) -> GenerateResult:
        await self._gate.wait()
        self._num_away += 1
        self._none_away.clear()
        try:
            return await self._client.generate(request)
        finally:
            self._num_away -= 1
            if not self._num_away:
                self._none_away.set()
