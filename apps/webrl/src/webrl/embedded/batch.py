"""The running batch: requests that have a KV row, prefilled together and decoded together.

Invariants:

* Request `i` of `requests` owns row `i` of the KV cache; both change together.
* Requests with equal prompts in one admission, or with a prompt that is still cached, share one
  prefill; each draws its own tokens.
* A request whose last token is drawn leaves the batch at once.

Synchronous; owned by the scheduler.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from cachetools import LRUCache

from webrl.embedded.kv_cache import RowCache
from webrl.embedded.request import (
    Drawn,
    GenerationRequest,
    PreparedPrompt,
    PromptKey,
    PromptState,
)
from webrl.embedded.runner import Runner
from webrl.embedded.sampling import draw_tokens


class RunningBatch:
    """Requests with a KV row.

    Args:
        max_prefill_tokens: Padded tokens of one prefill forward.
        cache_bytes: Bytes of prefilled prompts that are kept for sharing.
    """

    def __init__(self, runner: Runner, *, max_prefill_tokens: int, cache_bytes: int) -> None:
        self._runner = runner
        self._max_prefill_tokens = max_prefill_tokens
        self._rows = RowCache()
        self._prompts: LRUCache[PromptKey, PromptState] = LRUCache(
            cache_bytes, getsizeof=lambda state: state.num_bytes
        )
        self.requests: list[GenerationRequest] = []
        self.num_prefill_tokens = 0
        self.num_shared_prompts = 0
        self.num_decode_steps = 0
        self.num_output_tokens = 0

    def forget_prompts(self) -> None:
        """Drop every shared prefill and image feature; rows in use stay."""
        self._prompts.clear()
        self._runner.weights_changed()

    def admit(self, requests: Sequence[GenerationRequest], version: str) -> list[Drawn]:
        """Prefill `requests`, give them rows, and draw the first token of each."""
        states = self._prompt_states(requests)
        keys = [_prompt(request).key for request in requests]
        for request, key in zip(requests, keys, strict=True):
            state = states[key]
            self._rows.append(state.kv)
            request.num_places = state.kv.num_tokens
            request.next_position = state.next_position
            request.prompt = None
            self.requests.append(request)
        logits = torch.stack([states[key].logits for key in keys])
        return self._draw(list(requests), logits, version)

    def decode(self, version: str) -> list[Drawn]:
        """Draw the next token of every request in the batch."""
        requests = list(self.requests)
        self.num_decode_steps += 1
        logits = self._runner.decode(
            [request.output_ids[-1] for request in requests],
            [request.next_position for request in requests],
            self._rows.view([request.num_places for request in requests]),
        )
        for request in requests:
            request.num_places += 1
            request.next_position += 1
        return self._draw(requests, logits, version)

    def release(self, request: GenerationRequest) -> None:
        """Take `request` out of the batch."""
        row = next(i for i, other in enumerate(self.requests) if other is request)
        self._rows.remove(row, self.requests[-1].num_places)
        last = self.requests.pop()
        if last is not request:
            self.requests[row] = last

    def clear(self) -> list[GenerationRequest]:
        """Empty the batch, rows and shared prompts too; return who was in it."""
        requests, self.requests = self.requests, []
        self._rows.clear()
        self._prompts.clear()
        return requests

    def _draw(
        self, requests: list[GenerationRequest], logits: torch.Tensor, version: str
    ) -> list[Drawn]:
        token_ids, logprobs = draw_tokens(logits, [r.sampling_row() for r in requests])
        self.num_output_tokens += len(requests)
        drawn: list[Drawn] = []
        for request, token_id, logprob in zip(requests, token_ids, logprobs, strict=True):
            finish = request.append(token_id, logprob, version)
            if finish is not None:
                self.release(request)
            drawn.append((request, finish))
        return drawn

    def _prompt_states(self, requests: Sequence[GenerationRequest]) -> dict[PromptKey, PromptState]:
        states: dict[PromptKey, PromptState] = {}
        missing: dict[PromptKey, PreparedPrompt] = {}
        for request in requests:
            prompt = _prompt(request)
            known = states.get(prompt.key) or self._prompts.get(prompt.key)
            if known is not None:
                states[prompt.key] = known
            if known is not None or prompt.key in missing:
                self.num_shared_prompts += 1
                request.num_cached_tokens = request.num_prompt_tokens
            else:
                missing[prompt.key] = prompt
        for chunk in self._chunks(list(missing.values())):
            self.num_prefill_tokens += sum(prompt.num_tokens for prompt in chunk)
            for prompt, state in zip(chunk, self._runner.prefill(chunk), strict=True):
                states[prompt.key] = state
                if state.num_bytes <= self._prompts.maxsize:
                    self._prompts[prompt.key] = state
        return states

    def _chunks(self, prompts: list[PreparedPrompt]) -> Iterator[list[PreparedPrompt]]:
        """Cut by padded size; similar lengths together, so that little is padding."""
        chunk: list[PreparedPrompt] = []
        for prompt in sorted(prompts, key=lambda prompt: prompt.num_tokens):
            if chunk and prompt.num_tokens * (len(chunk) + 1) > self._max_prefill_tokens:
                yield chunk
                chunk = []
            chunk.append(prompt)
        if chunk:
            yield chunk


def _prompt(request: GenerationRequest) -> PreparedPrompt:
    assert isinstance(request.prompt, PreparedPrompt), "a waiting request keeps its prompt"
    return request.prompt
