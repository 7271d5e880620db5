"""Stand-ins for an inference server, for tests of code that generates.

Invariants:

* The next token is a function of all tokens before it and of the images, so an answer that was
  glued together from pieces is right exactly when it equals the uncut one.
* What happens at which attempt is scripted, never random.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence

import msgspec

from awrl_rollout.errors import ServerUnavailableError
from awrl_rollout.protocol import GenerateRequest, GenerateResult

__all__ = ["Cut", "FailedAttempt", "ScriptedClient"]


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
    """A `GenerateClient` whose attempts follow a script, then run to their end."""

    def __init__(
        self,
        script: Sequence[Cut | FailedAttempt] = (),
        *,
        version: int = 0,
        vocab_size: int = 50,
        end_token_id: int = 0,
        on_attempt: Callable[[GenerateRequest], None] | None = None,
    ) -> None:
        """Make a client.

        Args:
            script: What happens to the first attempts, one item each.
            version: Weight version at the start.
            vocab_size: Tokens are in [0, vocab_size).
            end_token_id: Token that ends an answer.
            on_attempt: Called with each attempt before it is answered.
        """
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
