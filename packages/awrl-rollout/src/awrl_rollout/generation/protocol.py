"""What one generation request and its answer are, and who may answer it.

Invariants:

* A request is never changed by whoever handles it: it is frozen and its containers are tuples.
* In every answer the tokens, their log-probs and their versions have one length, so nothing that
  is derived from an answer can be misaligned.
* An answer without a token says `abort`, and each of its log-probs is a finite number: a token whose
  log-prob is missing can not be trained on.
* A version in an answer is the one that *produced* the token, as the server said it; it is never
  read from a clock, from the caller, or at another moment.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal, Protocol

import msgspec

StopReason = Literal["stop", "length", "abort"]
"""`stop`: an end token; `length`: the budget; `abort`: cut by the server, resubmit to go on."""


class GenerateRequest(msgspec.Struct, frozen=True, kw_only=True):
    """One request for tokens after a prompt.

    Raises:
        ValueError: A field breaks its rule; the message names it.
    """

    input_ids: Sequence[int]
    """Token ids of the prompt, with exactly one placeholder id per image. Not empty."""
    images: Sequence[str] = ()
    """Images in prompt order, already in a form the server takes: base64 text or a data URI."""
    max_new_tokens: int = 64
    """Budget: number of tokens that may still be generated. At least 1."""
    temperature: float = 1.0
    """Sampling temperature. 0 means greedy; log-probs are then those at temperature 1."""
    top_p: float = 1.0
    """Nucleus bound in (0, 1]. Log-probs are those of the full distribution all the same."""
    masked_token_ids: Sequence[int] = ()
    """Ids that are never sampled; their logits are minus infinity in the log-softmax too."""
    stop_token_ids: Sequence[int] = ()
    """Further ids that end the answer, beside the end token of the model."""
    seed: int | None = None
    """Sampling seed for servers that take one; `None` leaves the draw to the server."""
    episode_id: str = ""
    """Owner of the request; prefix of its id at the server, so that an episode can be aborted."""

    def __post_init__(self) -> None:
        if not self.input_ids:
            raise ValueError("input_ids must hold at least one token, got none. Give a prompt.")
        if type(self.max_new_tokens) is not int or self.max_new_tokens < 1:
            raise ValueError(
                f"max_new_tokens must be >= 1, got {self.max_new_tokens}. "
                "A prompt that fills the context leaves nothing to generate: shorten it."
            )
        if not 0.0 <= self.temperature < math.inf:
            raise ValueError(
                f"temperature must be >= 0, got {self.temperature}. Use 0 for greedy decoding."
            )
        if not 0.0 < self.top_p <= 1.0:
            raise ValueError(f"top_p must be in (0, 1], got {self.top_p}. Use 1 to switch it off.")


class GenerateResult(msgspec.Struct, frozen=True, kw_only=True):
    """Tokens with the log-prob and the weight version of each.

    Raises:
        ValueError: The three sequences differ in length, a log-prob is not a finite number, a token or
            version not a whole one, or there is no token though the answer ended.
    """

    output_ids: tuple[int, ...]
    """Generated token ids, the end token included."""
    logprobs: tuple[float, ...]
    """Log-prob of each token at the sampling temperature, over the ids that are not masked."""
    versions: tuple[int, ...]
    """Weight version that produced each token."""
    stop_reason: StopReason
    """Why the answer ended."""

    def __post_init__(self) -> None:
        lengths = (len(self.output_ids), len(self.logprobs), len(self.versions))
        if len(set(lengths)) != 1:
            raise ValueError(
                "output_ids, logprobs and versions must have one length, got "
                f"{lengths[0]}, {lengths[1]} and {lengths[2]}. Ask the server for log-probs."
            )
        if not all(type(item) is int and 0 <= item < 2**31 for item in self.output_ids):
            raise ValueError(f"output_ids must be token ids, got {self.output_ids}.")
        if not all(type(version) is int for version in self.versions):
            raise ValueError(f"versions must be whole numbers, got {self.versions}.")
        if any(isinstance(value, bool) or not math.isfinite(value) for value in self.logprobs):
            raise ValueError(
                f"logprobs must be finite numbers, got {self.logprobs}. "
                "The server's weights hold NaN or infinity."
            )
        if not self.output_ids and self.stop_reason != "abort":
            raise ValueError(
                f"an answer that ended with {self.stop_reason!r} must hold a token, got none. "
                "Ask the server for log-probs."
            )


class GenerateClient(Protocol):
    """Whoever can answer a request once; the consumer's view of an inference server."""

    async def generate(self, request: GenerateRequest) -> GenerateResult:
        """Return what one attempt produced; an interrupted one says `abort` and keeps its tokens.

        Raises:
            ServerUnavailableError: No answer now; the same request may succeed later.
            ServerRefusedError: The request itself is wrong; repeating it can't help.
        """
        ...
