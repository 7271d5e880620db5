"""Fakes and drivers for tests of code that uses `awrl_rollout`; nothing here sleeps.

What happens at which attempt or step is scripted, never random.
"""

from __future__ import annotations

import asyncio
import hashlib
import math
import random
from collections.abc import Callable, Sequence

import msgspec

from awrl_rollout.controller.config import TaskSource
from awrl_rollout.episode import EpisodeRequest, EpisodeResult
from awrl_rollout.errors import ServerUnavailableError
from awrl_rollout.executor import EpisodeContext, Workflow
from awrl_rollout.generation.protocol import GenerateRequest, GenerateResult

_SETTLE_CYCLES = 64
"""Loop cycles that `settle` yields; the longest chain of wake-ups in this package is below 20."""


async def settle(num_cycles: int = _SETTLE_CYCLES) -> None:
    """Return once every task has run until it waits for something outside of the loop."""
    for _ in range(num_cycles):
        await asyncio.sleep(0)


def make_group(
    group_id: str, num_members: int, *, payload: object = None, label: str | None = None
) -> list[EpisodeRequest]:
    """Return the requests of one group, with ids `GROUP/MEMBER`."""
    return [
        EpisodeRequest(
            episode_id=f"{group_id}/{member}",
            group_id=group_id,
            member=member,
            group_size=num_members,
            payload=payload,
            label=label,
        )
        for member in range(num_members)
    ]


def endless_groups(num_members: int, *, limit: int | None = None) -> TaskSource:
    """Return a source of groups `g0`, `g1`, ...; None after `limit` of them."""
    num_made = 0

    def source() -> list[EpisodeRequest] | None:
        nonlocal num_made
        if limit is not None and num_made >= limit:
            return None
        num_made += 1
        return make_group(f"g{num_made - 1}", num_members)

    return source


def scripted_workflow(
    duration_s: Callable[[EpisodeRequest], float] = lambda request: 0.0,
    result: Callable[[EpisodeRequest], EpisodeResult | None] = lambda request: EpisodeResult(
        is_success=True, reward=1.0
    ),
) -> Workflow:
    """Return a workflow that takes `duration_s(request)` and answers `result(request)`."""

    async def workflow(request: EpisodeRequest, context: EpisodeContext) -> EpisodeResult | None:
        await context.clock.sleep(duration_s(request))
        return result(request)

    return workflow


def lognormal_durations(
    *, mean_s: float, cv: float, seed: int = 0
) -> Callable[[EpisodeRequest], float]:
    """Return a lognormal duration per episode id, the same in every pool that runs it.

    `cv` is the standard deviation over the mean; 1 is the heavy tail of web episodes.
    """
    variance = math.log(1.0 + cv * cv)
    mu, sigma = math.log(mean_s) - variance / 2.0, math.sqrt(variance)

    def duration_s(request: EpisodeRequest) -> float:
        return random.Random(f"{seed}/{request.episode_id}").lognormvariate(mu, sigma)

    return duration_s


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
