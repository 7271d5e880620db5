"""Forwards of the policy for the server: prefill of prompts, one decode step of a batch.

Invariants:

* The model is the HF one and every forward goes through it; only the cache is ours.
* Positions are always passed explicitly (three rotary axes), so HF's remembered `rope_deltas` are
  never used.
* Prefill pads on the right: with causal attention a real token never sees padding.
* Runs in one thread; nothing here is shared with another one while a forward runs.

Legend: `B` rows, `T` tokens, `V` vocabulary, `P` patches.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol, cast

import torch
from PIL import Image

from webrl.embedded.config import EmbeddedServerConfig
from webrl.embedded.errors import BadRequestError
from webrl.embedded.kv_cache import DecodeView, PrefillCapture
from webrl.embedded.prompt_cache import PromptState
from webrl.policy import ModelInputs, PolicyProcessor, load_policy

__all__ = ["ModelRunner", "Runner", "load_runner"]


class Runner(Protocol):
    """What the scheduler needs of a model."""

    eos_token_ids: frozenset[int]
    """Ids that end an answer."""
    vocab_size: int
    """Size of the logits."""
    context_length: int
    """Most tokens of prompt and answer together."""

    def inputs(self, token_ids: Sequence[int], images: Sequence[bytes]) -> ModelInputs:
        """Return the model inputs of a prompt; raises `BadRequestError` when they do not fit."""
        ...

    def prefill(self, prompts: Sequence[ModelInputs]) -> list[PromptState]:
        """Return the state after each prompt."""
        ...

    def decode(
        self, token_ids: Sequence[int], positions: Sequence[int], cache: DecodeView
    ) -> torch.Tensor:
        """Return [B, V] logits after one more token per row."""
        ...


class ModelRunner:
    """The HF model behind the `Runner` protocol."""

    def __init__(
        self,
        model: torch.nn.Module,
        processor: PolicyProcessor,
        *,
        eos_token_ids: frozenset[int],
        vocab_size: int,
        context_length: int,
    ) -> None:
        """Wrap a model in evaluation mode; use `load_runner` for a checkpoint folder."""
        self.model = model
        self.processor = processor
        self.eos_token_ids = eos_token_ids
        self.vocab_size = vocab_size
        self.context_length = context_length
        self._body = cast("torch.nn.Module", model.get_submodule("model"))
        self._head = cast("torch.nn.Module", model.get_submodule("lm_head"))
        self._device = next(model.parameters()).device

    def inputs(self, token_ids: Sequence[int], images: Sequence[bytes]) -> ModelInputs:
        """Return the model inputs of a prompt.

        Raises:
            BadRequestError: An id outside the vocabulary, a wrong number of images, or bytes that
                are no image.
        """
        wrong = next((t for t in token_ids if not 0 <= t < self.vocab_size), None)
        if wrong is not None:
            raise BadRequestError(f"input_ids must be in [0, {self.vocab_size - 1}], got {wrong}.")
        try:
            return self.processor.model_inputs(token_ids, images)
        except (ValueError, OSError, SyntaxError, Image.DecompressionBombError) as error:
            raise BadRequestError(f"prompt and images must fit together: {error}") from error

    @torch.inference_mode()
    def prefill(self, prompts: Sequence[ModelInputs]) -> list[PromptState]:
        """Return keys, values, next logits and next position of each prompt, in one forward."""
        lengths = [len(prompt.input_ids) for prompt in prompts]
        longest = max(lengths)
        input_ids = torch.zeros((len(prompts), longest), dtype=torch.int64)
        position_ids = torch.zeros((3, len(prompts), longest), dtype=torch.int64)
        for row, prompt in enumerate(prompts):
            input_ids[row, : lengths[row]] = prompt.input_ids
            position_ids[:, row, : lengths[row]] = prompt.position_ids
        capture = PrefillCapture()
        hidden = self._hidden(
            input_ids=input_ids.to(self._device),
            position_ids=position_ids.to(self._device),
            past_key_values=capture,
            **self._images(prompts),
        )
        last = torch.tensor(lengths, device=self._device) - 1
        rows = torch.arange(len(prompts), device=self._device)
        logits = self._head(hidden[rows, last]).float()
        return [
            PromptState(
                kv=capture.prompt(row, lengths[row]),
                logits=logits[row],
                next_position=int(prompt.position_ids.max()) + 1,
            )
            for row, prompt in enumerate(prompts)
        ]

    @torch.inference_mode()
    def decode(
        self, token_ids: Sequence[int], positions: Sequence[int], cache: DecodeView
    ) -> torch.Tensor:
        """Return [B, V] float32 logits after `token_ids` at `positions` (equal on all axes)."""
        position_ids = torch.tensor(positions, device=self._device)[None, :, None]
        hidden = self._hidden(
            input_ids=torch.tensor(token_ids, device=self._device)[:, None],
            position_ids=position_ids.expand(3, -1, -1),
            attention_mask=cache.attention_mask(),
            past_key_values=cache,
        )
        return self._head(hidden[:, -1]).float()

    def _hidden(self, **kwargs: object) -> torch.Tensor:
        return self._body(use_cache=True, return_dict=True, **kwargs).last_hidden_state

    def _images(self, prompts: Sequence[ModelInputs]) -> dict[str, torch.Tensor]:
        pixels = [p.pixel_values for p in prompts if p.pixel_values is not None]
        grids = [p.image_grid_thw for p in prompts if p.image_grid_thw is not None]
        if not pixels:
            return {}
        return {
            "pixel_values": torch.cat(pixels).to(self._device),
            "image_grid_thw": torch.cat(grids).to(self._device),
        }


def load_runner(config: EmbeddedServerConfig) -> ModelRunner:
    """Load checkpoint and processor of `config.model_path` onto its device."""
    torch.set_num_threads(config.num_threads)
    path = Path(config.model_path)
    processor = PolicyProcessor.from_pretrained(path)
    dtype = cast("torch.dtype", getattr(torch, config.dtype))
    model = load_policy(path, dtype).to(config.device).eval().requires_grad_(False)
    text_config = model.config.get_text_config()
    eos = model.generation_config.eos_token_id if model.generation_config else None
    ids = {processor.eos_token_id, *(eos if isinstance(eos, list) else [eos])} - {None}
    limit = config.context_length or int(text_config.max_position_embeddings)
    return ModelRunner(
        model,
        processor,
        eos_token_ids=frozenset(int(token) for token in ids if token is not None),
        vocab_size=int(text_config.vocab_size),
        context_length=limit,
    )
