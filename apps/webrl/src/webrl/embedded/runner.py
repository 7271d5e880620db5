"""Forwards of the policy for the server: prefill of prompts, one decode step of a batch.

Invariants:

* The model is HF's Qwen3-VL and its own modules do the work; ours are the cache, the batching, and
  the order in which they are called.
* Positions are always passed explicitly (three rotary axes), so HF's remembered `rope_deltas` are
  never used.
* Prefill pads on the right: with causal attention a real token never sees padding.
* Runs in one thread; nothing here is shared with another one while a forward runs.

Legend: `B` rows, `T` tokens, `V` vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol, cast

import torch
from PIL import Image
from transformers.cache_utils import DynamicCache

from webrl.embedded.config import EmbeddedServerConfig
from webrl.embedded.kv_cache import DecodeView, PromptKV
from webrl.embedded.request import PreparedPrompt, PromptState, prepared_key
from webrl.embedded.scheduler import PromptReader
from webrl.embedded.vision import VisionEncoder
from webrl.errors import BadRequestError
from webrl.policy import PolicyProcessor, load_policy


class Runner(PromptReader, Protocol):
    """What the running batch needs of a model."""

    def prepare(self, token_ids: Sequence[int], images: Sequence[bytes]) -> PreparedPrompt:
        """Return a prompt ready for a prefill; raises `BadRequestError` when it can't be."""
        ...

    def prefill(self, prompts: Sequence[PreparedPrompt]) -> list[PromptState]:
        """Return the state after each prompt."""
        ...

    def decode(
        self, token_ids: Sequence[int], positions: Sequence[int], cache: DecodeView
    ) -> torch.Tensor:
        """Return [B, V] logits after one more token per row."""
        ...

    def weights_changed(self) -> None:
        """Forget whatever was computed under older weights."""
        ...


class ModelRunner:
    """A Qwen3-VL model behind the `Runner` protocol."""

    def __init__(
        self,
        model: torch.nn.Module,
        processor: PolicyProcessor,
        *,
        eos_token_ids: frozenset[int],
        vocab_size: int,
        context_length: int,
        image_cache_bytes: int,
    ) -> None:
        """Wrap a model in evaluation mode; use `load_runner` for a checkpoint folder."""
        self.model = model
        self.processor = processor
        self.vocab_size = vocab_size
        self._eos_token_ids = eos_token_ids
        self._context_length = context_length
        # HF's modules are only partly typed.
        whole = cast("Any", model)
        self._text = whole.model.language_model
        self._embed = whole.model.get_input_embeddings()
        self._head = whole.lm_head
        self.model_type = str(whole.config.model_type)
        self.architectures = tuple(str(name) for name in whole.config.architectures or ())
        self._image_token_id = int(whole.config.image_token_id)
        self._device = next(model.parameters()).device
        self._vision = VisionEncoder(whole.model, cache_bytes=image_cache_bytes)

    @property
    def eos_token_ids(self) -> frozenset[int]:
        """Ids that end an answer."""
        return self._eos_token_ids

    @property
    def context_length(self) -> int:
        """Most tokens of prompt and answer together."""
        return self._context_length

    def text_of(self, token_ids: Sequence[int]) -> str:
        """Return the text of sampled ids, without special tokens."""
        return self.processor.decode(token_ids)

    def weights_changed(self) -> None:
        """Drop the image features of older weights."""
        self._vision.clear()

    def prepare(self, token_ids: Sequence[int], images: Sequence[bytes]) -> PreparedPrompt:
        """Return a prompt ready for a prefill.

        Raises:
            BadRequestError: An id outside the vocabulary, a wrong number of images, or bytes that
                are no image.
        """
        if min(token_ids) < 0 or max(token_ids) >= self.vocab_size:
            raise BadRequestError(
                f"input_ids must be in [0, {self.vocab_size - 1}], "
                f"got {min(token_ids)} to {max(token_ids)}."
            )
        try:
            inputs = self.processor.model_inputs(token_ids, images)
        except (ValueError, OSError, SyntaxError, Image.DecompressionBombError) as error:
            raise BadRequestError(f"prompt and images must fit together: {error}") from error
        return PreparedPrompt(key=prepared_key(token_ids, images), inputs=inputs)

    @torch.inference_mode()
    def prefill(self, prompts: Sequence[PreparedPrompt]) -> list[PromptState]:
        """Return keys, values, next logits and next position of each prompt, in one forward."""
        lengths = [prompt.num_tokens for prompt in prompts]
        shape = (len(prompts), max(lengths))
        input_ids = torch.zeros(shape, dtype=torch.int64)
        position_ids = torch.zeros((3, *shape), dtype=torch.int64)
        for row, prompt in enumerate(prompts):
            input_ids[row, : lengths[row]] = prompt.inputs.input_ids
            position_ids[:, row, : lengths[row]] = prompt.inputs.position_ids
        cache = DynamicCache()
        hidden = self._text(
            position_ids=position_ids.to(self._device),
            past_key_values=cache,
            use_cache=True,
            **self._embeddings(input_ids.to(self._device), prompts),
        ).last_hidden_state
        rows = torch.arange(len(prompts), device=self._device)
        last = torch.tensor(lengths, device=self._device) - 1
        logits = self._head(hidden[rows, last]).float()
        return [
            PromptState(
                kv=PromptKV.of_row(cache, row, lengths[row]),
                logits=logits[row].clone(),
                next_position=int(prompt.inputs.position_ids.max()) + 1,
            )
            for row, prompt in enumerate(prompts)
        ]

    def _embeddings(
        self, input_ids: torch.Tensor, prompts: Sequence[PreparedPrompt]
    ) -> dict[str, Any]:
        """Return the text model's inputs with image features in place of the placeholders."""
        embeddings = self._embed(input_ids)
        features = self._vision.features(prompts)
        if features is None:
            return {"inputs_embeds": embeddings}
        is_image = input_ids == self._image_token_id
        placed = features.embeddings.to(embeddings.dtype)
        return {
            "inputs_embeds": embeddings.masked_scatter(is_image[..., None], placed),
            "visual_pos_masks": is_image,
            "deepstack_visual_embeds": list(features.deepstack),
        }

    @torch.inference_mode()
    def decode(
        self, token_ids: Sequence[int], positions: Sequence[int], cache: DecodeView
    ) -> torch.Tensor:
        """Return [B, V] float32 logits after `token_ids` at `positions` (equal on all axes)."""
        position_ids = torch.tensor(positions, device=self._device)[None, :, None]
        hidden = self._text(
            inputs_embeds=self._embed(torch.tensor(token_ids, device=self._device)[:, None]),
            position_ids=position_ids.expand(3, -1, -1),
            attention_mask=cache.attention_mask(),
            past_key_values=cache,
            use_cache=True,
        ).last_hidden_state
        return self._head(hidden[:, -1]).float()


def load_runner(config: EmbeddedServerConfig) -> ModelRunner:
    """Load checkpoint and processor of `config.model_path` onto its device."""
    torch.set_num_threads(config.num_threads)
    path = Path(config.model_path)
    processor = PolicyProcessor.from_pretrained(path)
    dtype = cast("torch.dtype", getattr(torch, config.dtype))
    model = load_policy(path, dtype).eval().requires_grad_(False)
    if config.device != "cpu":
        cast("torch.nn.Module", model).to(config.device)
    text_config = model.config.get_text_config()
    eos = model.generation_config.eos_token_id if model.generation_config else None
    ids = {processor.eos_token_id, *(eos if isinstance(eos, list) else [eos])}
    longest = int(text_config.max_position_embeddings)
    return ModelRunner(
        model,
        processor,
        eos_token_ids=frozenset(int(token) for token in ids if token is not None),
        vocab_size=int(text_config.vocab_size),
        context_length=min(config.context_length or longest, longest),
        image_cache_bytes=config.image_cache_bytes,
    )
