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
import logging
from collections.abc import Awaitable, Callable

import msgspec

from awrl_rollout.errors import (
    GenerationDeadlineError,
    ServerRefusedError,
    ServerUnavailableError,
)
from awrl_rollout.protocol import GenerateClient, GenerateRequest, GenerateResult, StopReason

__all__ = ["GenerationConfig", "GenerationStatistics", "InterruptibleGenerator"]

logger = logging.getLogger(__name__)


class GenerationConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Limits of one interruptible request.

    Raises:
        ValueError: A field breaks its rule; the message names it.
    """

    deadline_s: float = 300.0
    """Seconds for a whole request: all attempts, all waits, a paused server included."""
    max_failures: int = 5
    """Attempts in a row that may end without an answer before the request fails."""
    first_backoff_s: float = 0.05
    """Wait after the first failure or empty cut; doubles with each one that follows."""
    max_backoff_s: float = 2.0
    """Longest single wait between attempts."""

    def __post_init__(self) -> None:
        if not self.deadline_s > 0:
            raise ValueError(f"deadline_s must be > 0, got {self.deadline_s}. Give seconds.")
        if self.max_failures < 0:
            raise ValueError(
                f"max_failures must be >= 0, got {self.max_failures}. Use 0 to never retry."
            )
        if not 0 <= self.first_backoff_s <= self.max_backoff_s:
            raise ValueError(
                f"first_backoff_s must be in [0, max_backoff_s], got {self.first_backoff_s}. "
                f"max_backoff_s is {self.max_backoff_s}."
            )


class GenerationStatistics(msgspec.Struct, frozen=True, kw_only=True):
    """Snapshot of the counters of one generator, since it was made."""

    num_requests: int
    """Requests that were started."""
    num_running: int
    """Requests that have not ended yet."""
    num_attempts: int
    """Attempts that were sent to the server."""
    num_interrupted: int
    """Attempts that a server cut (`abort`)."""
    num_failed_attempts: int
    """Attempts that ended without an answer."""
    num_tokens: int
    """Tokens in finished requests."""
    num_mixed_version: int
    """Finished requests whose tokens span more than one weight version."""


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
    """Answers requests in full over a client whose answers may be cut."""

    def __init__(
        self,
        client: GenerateClient,
        *,
        config: GenerationConfig | None = None,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        """Make a generator that sends its attempts through `client`.

        Args:
            client: Answers one attempt at a time; not owned, so not closed here.
            config: Limits; the defaults when `None`.
            sleep: Waits between attempts; a virtual clock's in tests.
        """
        self._client = client
        self._config = config or GenerationConfig()
        self._sleep = sleep
        self._gate = asyncio.Event()
        self._gate.set()
        self._num_away = 0
        self._none_away = asyncio.Event()
        self._none_away.set()
        self._num_requests = 0
        self._num_running = 0
        self._num_attempts = 0
        self._num_interrupted = 0
        self._num_failed = 0
        self._num_tokens = 0
        self._num_mixed = 0

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
            async with asyncio.timeout(deadline_s):
                await self._none_away.wait()
        except TimeoutError:
            return False
        return True

    async def generate(
        self, request: GenerateRequest, *, deadline_s: float | None = None
    ) -> GenerateResult:
        """Return the whole answer, across as many cuts as happen.

        Args:
            request: What to generate; not changed.
            deadline_s: Seconds for this request; the configured ones when `None`.

        Returns:
            All tokens with their log-probs and versions; `stop_reason` is `stop` or `length`.

        Raises:
            GenerationDeadlineError: The deadline passed; it tells what was kept so far.
            ServerUnavailableError: Too many attempts in a row had no answer.
            ServerRefusedError: The server says that the request is wrong.
        """
        limit_s = self._config.deadline_s if deadline_s is None else deadline_s
        progress = _Progress(request)
        self._num_requests += 1
        self._num_running += 1
        try:
            async with asyncio.timeout(limit_s):
                result = await self._run(progress)
        except TimeoutError as error:
            raise GenerationDeadlineError(
                f"generation must end within {limit_s:g} s, got {len(progress.output_ids)} of "
                f"{request.max_new_tokens} tokens (episode {request.episode_id!r}). "
                "Look for a server that stays paused, or raise deadline_s."
            ) from error
        finally:
            self._num_running -= 1
        self._num_tokens += len(result.output_ids)
        self._num_mixed += len(set(result.versions)) > 1
        return result

    async def _run(self, progress: _Progress) -> GenerateResult:
        failures = 0
        empty_cuts = 0
        while True:
            await self._gate.wait()
            self._num_attempts += 1
            try:
                answer = await self._attempt(progress.next_attempt())
            except ServerUnavailableError as error:
                failures += 1
                self._num_failed += 1
                if failures > self._config.max_failures:
                    raise ServerUnavailableError(
                        f"generation must be answered within {self._config.max_failures + 1} "
                        f"attempts in a row, got none. Last error: {error}"
                    ) from error
                logger.warning("attempt %d had no answer: %s", failures, error)
                await self._sleep(self._backoff_s(failures))
                continue
            failures = 0
            progress.append(_checked(answer, progress.num_left))
            if answer.stop_reason != "abort":
                return progress.finish(answer.stop_reason)
            self._num_interrupted += 1
            if progress.num_left == 0:
                return progress.finish("length")
            empty_cuts = 0 if answer.output_ids else empty_cuts + 1
            # The first empty cut is the normal one of a request that waited in the queue.
            if empty_cuts > 1:
                await self._sleep(self._backoff_s(empty_cuts - 1))

    async def _attempt(self, request: GenerateRequest) -> GenerateResult:
        self._num_away += 1
        self._none_away.clear()
        try:
            return await self._client.generate(request)
        finally:
            self._num_away -= 1
            if not self._num_away:
                self._none_away.set()

    def _backoff_s(self, count: int) -> float:
        return min(self._config.max_backoff_s, self._config.first_backoff_s * 2.0 ** (count - 1))

    def statistics(self) -> GenerationStatistics:
        """Return the counters so far."""
        return GenerationStatistics(
            num_requests=self._num_requests,
            num_running=self._num_running,
            num_attempts=self._num_attempts,
            num_interrupted=self._num_interrupted,
            num_failed_attempts=self._num_failed,
            num_tokens=self._num_tokens,
            num_mixed_version=self._num_mixed,
        )


def _checked(answer: GenerateResult, budget: int) -> GenerateResult:
    if len(answer.output_ids) > budget:
        raise ServerRefusedError(
            f"answer must hold at most {budget} tokens, got {len(answer.output_ids)}. "
            "The server ignores max_new_tokens; its tokens can not be trusted."
        )
    return answer
