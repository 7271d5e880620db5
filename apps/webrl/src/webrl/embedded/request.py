"""One generation request inside the server, from its prompt to its last answer.

Invariants:

* Each request gets exactly one final answer, whatever happens to it.
* Tokens, log-probs and version labels are appended together and never changed afterwards.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, Protocol

import torch

from webrl.embedded.sampling import SamplingRow
from webrl.embedded.wire import SamplingParams

if TYPE_CHECKING:
    from webrl.embedded.kv_cache import PromptKV
    from webrl.policy import ModelInputs


@dataclass(frozen=True, kw_only=True, slots=True)
class FinishReason:
    """Why an answer ended."""

    type: Literal["stop", "length", "abort"]
    """SGLang's word for it."""
    matched: int | None = None
    """The end token of `stop`."""
    message: str | None = None
    """What an `abort` says."""


@dataclass(frozen=True, kw_only=True, slots=True)
class GenerationAnswer:
    """A request's state at one moment, for the HTTP side."""

    output_ids: tuple[int, ...]
    """Tokens so far."""
    logprobs: tuple[float, ...]
    """Their log-probs."""
    versions: tuple[str, ...]
    """Label of the weights that produced each."""
    weight_version: str
    """Label of the weights at the time of this answer."""
    num_prompt_tokens: int
    """Prompt tokens, image tokens included; 0 when it was not looked at yet."""
    num_cached_tokens: int
    """Prompt tokens whose prefill was shared."""
    finish: FinishReason | None
    """`None` while it goes on."""
    error: Exception | None = None
    """Set when the request could not be served."""


class Prompt(Protocol):
    """A prompt that was looked at and can be served."""

    @property
    def num_tokens(self) -> int:
        """Tokens, image tokens included."""
        ...


@dataclass(kw_only=True, slots=True)
class GenerationRequest:
    """A request as the scheduler holds it."""

    rid: str
    """Its id at the server."""
    prompt_ids: tuple[int, ...]
    """Prompt with one placeholder per image."""
    images: tuple[bytes, ...]
    """Encoded images."""
    params: SamplingParams
    """How to sample."""
    bias: torch.Tensor | None
    """[V] logit bias, shared by equal requests."""
    seed: int
    """Seed of its draws."""
    deliver: Callable[[GenerationAnswer], None]
    """Takes each answer; called on the HTTP side."""
    is_stream: bool = False
    """Whether it is answered at every token."""
    stop_ids: frozenset[int] = frozenset()
    """Ids that end it."""
    prompt: Prompt | None = None
    """What must be prefilled, while it waits; `None` once it has a row."""
    num_prompt_tokens: int = 0
    """Expanded prompt tokens."""
    num_cached_tokens: int = 0
    """Of these, shared."""
    budget: int = 0
    """Most tokens of its answer."""
    next_position: int = 0
    """Rotary position of its next token."""
    num_places: int = 0
    """Filled places of its KV row."""
    is_answered: bool = False
    """Whether its final answer is out."""
    output_ids: list[int] = field(default_factory=list)
    """Tokens so far."""
    logprobs: list[float] = field(default_factory=list)
    """Their log-probs."""
    versions: list[str] = field(default_factory=list)
    """Their weight labels."""

    def sampling_row(self) -> SamplingRow:
        """Return how to draw the next token."""
        params = self.params
        return SamplingRow(
            temperature=params.logprob_temperature,
            is_greedy=params.is_greedy,
            top_p=1.0 if params.top_p is None else params.top_p,
            top_k=-1 if params.top_k is None else params.top_k,
            bias=self.bias,
            seed=self.seed,
            position=self.num_prompt_tokens + len(self.output_ids),
        )

    def append(self, token_id: int, logprob: float, version: str) -> FinishReason | None:
        """Add a token; return why the answer ends with it, if it does."""
        self.output_ids.append(token_id)
        self.logprobs.append(logprob)
        self.versions.append(version)
        if token_id in self.stop_ids:
            return FinishReason(type="stop", matched=token_id)
        if len(self.output_ids) >= self.budget:
            return FinishReason(type="length")
        return None

    def answer(
        self, weight_version: str, finish: FinishReason | None, error: Exception | None = None
    ) -> GenerationAnswer:
        """Return the state as of now."""
        return GenerationAnswer(
            output_ids=tuple(self.output_ids),
            logprobs=tuple(self.logprobs),
            versions=tuple(self.versions),
            weight_version=weight_version,
            num_prompt_tokens=self.num_prompt_tokens,
            num_cached_tokens=self.num_cached_tokens,
            finish=finish,
            error=error,
        )


Drawn = tuple[GenerationRequest, FinishReason | None]
"""A request that got one more token, and why it ended with it, if it did."""


PromptKey = tuple[tuple[int, ...], tuple[bytes, ...]]
"""Token ids with one placeholder per image, and a digest of each image's bytes; equal keys mean
equal model inputs."""


def prepared_key(token_ids: Sequence[int], images: Sequence[bytes]) -> PromptKey:
    """Return the key of a prompt."""
    digests = tuple(hashlib.blake2b(image, digest_size=16).digest() for image in images)
    return tuple(token_ids), digests


@dataclass(frozen=True, kw_only=True, slots=True)
class PreparedPrompt:
    """A prompt that is ready for a prefill."""

    key: PromptKey
    """What it shares with equal prompts."""
    inputs: ModelInputs
    """Tensors of the forward."""

    @property
    def num_tokens(self) -> int:
        """Tokens, image tokens included."""
        return len(self.inputs.input_ids)


@dataclass(frozen=True, kw_only=True, slots=True)
class PromptState:
    """What a prefill leaves behind."""

    kv: PromptKV
    """Keys and values of the whole prompt."""
    logits: torch.Tensor
    """[V] float32 logits of the token after the prompt."""
    next_position: int
    """Rotary position of the token after the prompt."""

    @property
    def num_bytes(self) -> int:
        """Memory that it holds."""
        tensors = (*self.kv.keys, *self.kv.values, self.logits)
        return sum(tensor.numel() * tensor.element_size() for tensor in tensors)
