"""A policy that stands in for Qwen3-VL-8B: all of its weights by name, each one narrow.

Invariant: names, their number and their order are those of the true checkpoint (36 text layers, 27
vision blocks, three deepstack mergers, an untied head), in bfloat16 and over several files; a
screenshot takes the true number of image tokens. Widths and the vocabulary are small, so what the
policy says means nothing.
"""

from __future__ import annotations

from pathlib import Path

import torch
from transformers import AutoModelForImageTextToText, PreTrainedTokenizerFast, Qwen3VLConfig

from webrl.policy import (
    ActionGrid,
    InitPolicyConfig,
    build_tokenizer,
    save_weights,
    write_policy_files,
)
from webrl.policy.files import writing_policy
from webrl.rehearse.manifest import TEXT, VISION

_NUM_FILES = 4
"""The true checkpoint comes in as many."""

_MAX_PIXELS = 16384 * 32 * 32
"""The true processor's bound of a picture."""

_GRID = ActionGrid(viewport_width=1280, viewport_height=720, bin_px=40)


def write_policy(path: Path, *, width: int = 64, seed: int = 0) -> None:
    """Write the checkpoint directory.

    Args:
        width: Hidden size of the text model, a multiple of 64; the true one has 4096. The bytes grow
            with its square.
        seed: Seed of the weights.

    Raises:
        PolicyError: The disk refused a file.
        ValueError: A width of another kind.
    """
    if width < 64 or width % 64:
        raise ValueError(f"width must be a multiple of 64, got {width}. Use 64.")
    sizes = InitPolicyConfig(merge=2, max_pixels=_MAX_PIXELS, grid=_GRID, has_text_actions=True)
    tokenizer = build_tokenizer(_GRID)
    config = _config(tokenizer, width)
    generation = write_policy_files(path, sizes, tokenizer, config)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = AutoModelForImageTextToText.from_config(config, dtype=torch.bfloat16)
    model.generation_config = generation
    num_bytes = sum(weight.numel() * weight.element_size() for weight in model.parameters())
    with writing_policy(path):
        save_weights(model, path, max_file_bytes=num_bytes // (_NUM_FILES - 1))


def _config(tokenizer: PreTrainedTokenizerFast, width: int) -> Qwen3VLConfig:
    ids = tokenizer.get_vocab()
    head_dim = width // 4
    side = head_dim // 8
    text = {
        **TEXT,
        "vocab_size": (len(tokenizer) // 64 + 1) * 64,
        "hidden_size": width,
        "intermediate_size": 3 * width,
        "num_attention_heads": 4,
        "num_key_value_heads": 1,
        "head_dim": head_dim,
        "rope_parameters": {
            **TEXT["rope_parameters"],
            "mrope_section": [head_dim // 2 - 2 * side, side, side],
        },
        "bos_token_id": None,
        "eos_token_id": tokenizer.eos_token_id,
        "pad_token_id": tokenizer.pad_token_id,
    }
    vision = {
        **VISION,
        "hidden_size": width // 2,
        "intermediate_size": 2 * width,
        "num_heads": 2,
        "out_hidden_size": width,
    }
    return Qwen3VLConfig(
        text_config=text,
        vision_config=vision,
        image_token_id=ids["<|image_pad|>"],
        video_token_id=ids["<|video_pad|>"],
        vision_start_token_id=ids["<|vision_start|>"],
        vision_end_token_id=ids["<|vision_end|>"],
        tie_word_embeddings=False,
        architectures=["Qwen3VLForConditionalGeneration"],
        dtype="bfloat16",
    )
