"""`PolicyProcessor`: the one place where chats and screenshots become model inputs.

Invariants:

* one processor serves the tiny policy and any Qwen3-VL checkpoint: all that differs is read from
  the checkpoint directory (tokenizer, chat template, image processor, generation config);
* a prompt holds exactly one placeholder id per image, the form that `/generate` takes together
  with `image_data`; `model_inputs` expands it to the image's tokens;
* the same bytes give bit-identical patches in every process;
* `masked_token_ids` are to be masked in the sampler and in the trainer's log-softmax alike.

An instance holds caches and no other state; it is meant for one thread.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, cast

import msgspec
import numpy as np
import torch
from PIL import Image
from transformers import AutoConfig, AutoTokenizer, GenerationConfig
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

from webrl.agent import Message, ThinkingMode, direct_chat
from webrl.errors import PolicyError
from webrl.plain_text import plain
from webrl.policy.files import reading_policy
from webrl.policy.images import PatchExtractor, PatchGrid
from webrl.policy.positions import position_ids

# T tokens, P patches, D values per patch, N images.

_NUM_CACHED_PROMPTS = 4096
"""Prompts kept tokenised: siblings of a group and repeated goals meet; a prompt is < 1 kB."""

_NUM_CACHED_IMAGES = 64
"""Screenshots kept as patches: siblings of a group share the first page; about 0.2 MB each."""


@dataclass(frozen=True, slots=True)
class ModelInputs:
    """Inputs of one row for a Qwen3-VL forward, without a batch dimension."""

    input_ids: torch.Tensor
    """`[T]` int64, placeholders expanded."""
    mm_token_type_ids: torch.Tensor
    """`[T]` int64: 1 for image tokens, 0 for text."""
    position_ids: torch.Tensor
    """`[3, T]` int64: time, height, width."""
    pixel_values: torch.Tensor | None
    """`[P, D]` float32 patches of all images; None without images."""
    image_grid_thw: torch.Tensor | None
    """`[N, 3]` int64: frames, patch rows, patch columns; None without images."""


class PolicyProcessor:
    """Prompts, model inputs and decoding for one checkpoint directory."""

    def __init__(self, path: Path) -> None:
        config = AutoConfig.from_pretrained(path)
        self._image_token_id = int(config.image_token_id)
        self._tokenizer = AutoTokenizer.from_pretrained(path)
        if self._tokenizer.chat_template is None:
            msg = f"path must hold a chat template, got none in {str(path)!r}."
            raise PolicyError(msg)
        added = self._tokenizer.added_tokens_decoder.values()
        self._own_control_tokens = sorted(
            str(token) for token in added if token.special and plain(str(token)) == str(token)
        )
        self._images = PatchExtractor(Qwen2VLImageProcessorPil.from_pretrained(path))
        generation = _generation_config(path)
        self.eos_token_id = int(self._tokenizer.eos_token_id)
        """Id that ends an action."""
        self.masked_token_ids = _masked_token_ids(config, len(self._tokenizer), generation)
        """Ids that are never sampled, ascending."""
        self._cached_prompt = lru_cache(_NUM_CACHED_PROMPTS)(self._tokenise_prompt)
        self._cached_patches = lru_cache(_NUM_CACHED_IMAGES)(self._extract)
        self._cached_layout = lru_cache(_NUM_CACHED_PROMPTS)(position_ids)

    @classmethod
    def from_pretrained(cls, path: str | Path) -> PolicyProcessor:
        """Read the processor of a checkpoint directory.

        Args:
            path: A local directory in Hugging Face's layout.

        Returns:
            The processor.

        Raises:
            PolicyError: If the directory holds no config or no chat template, or is damaged.
        """
        with reading_policy(Path(path)):
            return cls(Path(path))

    def chat_ids(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[Message] | None = None,
        thinking: ThinkingMode = "model",
    ) -> list[int]:
        """Return prompt ids that end where the reply begins, one placeholder for each image.

        Args:
            messages: As chat templates take them. No text in them spells a control token that the
                checkpoint has of its own; those that all have are the agent's affair.
            tools: What the template is given as tools.
            thinking: What it is told of `enable_thinking`.
        """
        key = msgspec.msgpack.encode((messages, tools, thinking))
        return list(self._cached_prompt(key))

    def chat_text(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[Message] | None = None,
        thinking: ThinkingMode = "model",
    ) -> str:
        """Return the prompt of `chat_ids` as text."""
        told = {} if thinking == "model" else {"enable_thinking": thinking == "on"}
        text = self._tokenizer.apply_chat_template(
            self._taken_apart(messages),
            tools=tools,
            tokenize=False,
            add_generation_prompt=True,
            **told,
        )
        return str(text)

    def build_prompt(
        self,
        goal: str,
        previous_actions: Sequence[str],
        num_images: int,
        elements: Sequence[str] | None = None,
    ) -> list[int]:
        """Return the prompt of the agent `direct` in one call, without a budget.

        Args:
            previous_actions: Action texts so far, oldest first.
            num_images: Screenshots that will be given, the current page last.
            elements: Where the elements of the page are numbered: each with its number, such as
                `7 button: Submit`. `None` where actions name positions.
        """
        return self.chat_ids(direct_chat(goal, previous_actions, num_images, elements))

    def expand(self, token_ids: Sequence[int], sizes: Sequence[tuple[int, int]]) -> list[int]:
        """Return `token_ids` with each placeholder repeated once per image token.

        Args:
            token_ids: Ids with one placeholder per image.
            sizes: `(height, width)` of each encoded image, pixels.

        Returns:
            The ids that the model reads.

        Raises:
            PolicyError: If placeholders and sizes differ in number.
        """
        return self._expand(token_ids, [self._images.grid(*size) for size in sizes])

    def model_inputs(
        self, token_ids: Sequence[int], images: Sequence[bytes | np.ndarray]
    ) -> ModelInputs:
        """Return the inputs of one forward.

        Args:
            token_ids: Prompt, or prompt and action, with one placeholder per image.
            images: Encoded images, or uint8 arrays `[H, W, 3]`, in the order of their placeholders.

        Returns:
            Tensors on the CPU, without a batch dimension. They may be shared with later calls:
            read only.

        Raises:
            PolicyError: If placeholders and images differ in number.
            PIL.UnidentifiedImageError: If one of `images` is no image.
        """
        patches, grids = [], []
        for data in images:
            values, grid = self._patches(data)
            patches.append(values)
            grids.append(grid)
        expanded = torch.tensor(self._expand(token_ids, grids), dtype=torch.int64)
        is_image = expanded == self._image_token_id
        positions = self._cached_layout(tuple(is_image.tolist()), tuple(grids))
        pixel_values = None
        if patches:
            pixel_values = patches[0] if len(patches) == 1 else torch.cat(patches)
        thw = [[1, grid.height, grid.width] for grid in grids]
        return ModelInputs(
            input_ids=expanded,
            mm_token_type_ids=is_image.to(torch.int64),
            position_ids=positions,
            pixel_values=pixel_values,
            image_grid_thw=torch.tensor(thw, dtype=torch.int64) if thw else None,
        )

    def num_image_tokens(self, height: int, width: int) -> int:
        """Return how many tokens an image of `height` x `width` pixels becomes."""
        return self._images.grid(height, width).num_tokens

    def encode(self, text: str) -> list[int]:
        """Return the ids of a text, without added special tokens."""
        return list(self._tokenizer.encode(text, add_special_tokens=False))

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of sampled ids, without special tokens."""
        return str(self._tokenizer.decode(list(ids), skip_special_tokens=True))

    def _tokenise_prompt(self, key: bytes) -> tuple[int, ...]:
        messages, tools, thinking = msgspec.msgpack.decode(key)
        return tuple(self.encode(self.chat_text(messages, tools=tools, thinking=thinking)))

    def _taken_apart(self, value: Any) -> Any:
        """Return messages without those control tokens that `plain` does not know."""
        if isinstance(value, str):
            for token in self._own_control_tokens:
                value = value.replace(token, f"{token[0]} {token[1:]}")
            return value
        if isinstance(value, Mapping):
            items = cast("Mapping[str, Any]", value).items()
            return {name: self._taken_apart(item) for name, item in items}
        if isinstance(value, list | tuple):
            return [self._taken_apart(item) for item in cast("list[Any]", value)]
        return value

    def _patches(self, data: bytes | np.ndarray) -> tuple[torch.Tensor, PatchGrid]:
        if isinstance(data, np.ndarray):
            return self._images.patches(Image.fromarray(data))
        return self._cached_patches(data)

    def _extract(self, data: bytes) -> tuple[torch.Tensor, PatchGrid]:
        return self._images.patches(self._images.decode(data))

    def _expand(self, token_ids: Sequence[int], grids: Sequence[PatchGrid]) -> list[int]:
        num_placeholders = sum(1 for token in token_ids if token == self._image_token_id)
        if num_placeholders != len(grids):
            msg = (
                f"token_ids must hold one placeholder per image ({len(grids)}), "
                f"got {num_placeholders}. Build the prompt for this number of images."
            )
            raise PolicyError(msg)
        counts = iter(grids)
        expanded: list[int] = []
        for token in token_ids:
            repeats = next(counts).num_tokens if token == self._image_token_id else 1
            expanded += [token] * repeats
        return expanded


def _generation_config(path: Path) -> GenerationConfig:
    if (path / "generation_config.json").is_file():
        return GenerationConfig.from_pretrained(path)
    return GenerationConfig()


def _masked_token_ids(
    config: object, num_tokens: int, generation: GenerationConfig
) -> tuple[int, ...]:
    names = ("image_token_id", "video_token_id", "vision_start_token_id", "vision_end_token_id")
    masked = {int(getattr(config, name)) for name in names}
    vocab_size = int(config.get_text_config().vocab_size)  # pyright: ignore[reportAttributeAccessIssue]
    masked |= set(range(num_tokens, vocab_size))
    masked |= {int(token) for token in (generation.suppress_tokens or [])}
    return tuple(sorted(masked))
