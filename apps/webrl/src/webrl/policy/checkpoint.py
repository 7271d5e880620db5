"""Writes the tiny policy as a normal checkpoint directory, and loads any policy.

Invariants:

* `init_policy` leaves a directory that `AutoModelForImageTextToText`, `AutoTokenizer`,
  `AutoProcessor` and a Qwen3-VL server load without knowing where it came from;
* the same config gives the same weights, bit for bit, on one machine with one thread.
"""

from __future__ import annotations

import json
import logging
from dataclasses import asdict
from pathlib import Path
from typing import Any, cast

import torch
from transformers import (
    AutoModelForImageTextToText,
    GenerationConfig,
    PreTrainedTokenizerFast,
    Qwen3VLConfig,
    Qwen3VLForConditionalGeneration,
)
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil
from transformers.utils import logging as transformers_logging

from webrl.errors import PolicyError
from webrl.policy import tokenizer as vocabulary
from webrl.policy.config import InitPolicyConfig
from webrl.policy.files import reading_policy, writing_policy
from webrl.policy.processor import PolicyProcessor
from webrl.policy.prompt import TINY_CHAT_TEMPLATE
from webrl.policy.warmup.training import WarmupReport, warm_up

logger = logging.getLogger(__name__)

_VOCAB_MULTIPLE = 64
"""Embedding rows come in this multiple, as servers pad them; there is at least one unused row."""

_POSITION_SCALE = 5.0
"""Vision position embeddings are drawn this much wider, so that patches differ from the start."""


def load_policy(
    path: str | Path, dtype: torch.dtype = torch.float32
) -> Qwen3VLForConditionalGeneration:
    """Load a policy's weights.

    Args:
        path: A checkpoint directory.

    Returns:
        The model, in evaluation mode, on the CPU.

    Raises:
        PolicyError: `path` is not a checkpoint directory, is damaged, or lacks a weight.
    """
    path = Path(path)
    with reading_policy(path):
        loaded: Any = AutoModelForImageTextToText.from_pretrained(
            path, dtype=dtype, attn_implementation="sdpa", output_loading_info=True
        )
    model, info = cast("tuple[Qwen3VLForConditionalGeneration, dict[str, set[str]]]", loaded)
    if missing := info["missing_keys"]:
        # Transformers draws them at random and goes on.
        raise PolicyError(
            f"policy {str(path)!r} must hold every weight of its model, got no {min(missing)!r} "
            f"({len(missing)} absent). Copy it again."
        )
    return model.eval()


def init_policy(
    out_dir: str | Path, config: InitPolicyConfig | None = None, *, device: str = "cpu"
) -> WarmupReport:
    """Write the tiny policy: random weights, warmed up on synthetic pages.

    Args:
        out_dir: Directory to fill; made when missing. Files of the same names are replaced.
        config: Sizes, seed and warm-up; the laptop's by default.
        device: Where the warm-up runs.

    Returns:
        What the warm-up did.

    Raises:
        PolicyError: The disk refused a file.
    """
    config = config or InitPolicyConfig()
    out = Path(out_dir)
    tokenizer = vocabulary.build_tokenizer(config.grid)
    model_config = build_model_config(config, tokenizer)
    generation = write_policy_files(out, config, tokenizer, model_config)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(config.seed)
        model = _random_model(model_config)
        model.generation_config = generation
        # The model's own `to` is untyped.
        torch.nn.Module.to(model, device)
        report = warm_up(model, PolicyProcessor.from_pretrained(out), config)
    facts = json.dumps({"config": asdict(config), "report": asdict(report)}, indent=2) + "\n"
    with writing_policy(out):
        save_weights(model, out)
        (out / "warmup.json").write_text(facts)
    return report


def write_policy_files(
    out: Path,
    config: InitPolicyConfig,
    tokenizer: PreTrainedTokenizerFast,
    model_config: Qwen3VLConfig,
) -> GenerationConfig:
    """Write everything of a checkpoint directory but its weights; return what generation follows.

    Raises:
        PolicyError: The disk refused a file.
    """
    tokenizer.chat_template = TINY_CHAT_TEMPLATE
    generation = _generation(config, tokenizer, model_config.get_text_config().vocab_size)
    with writing_policy(out):
        out.mkdir(parents=True, exist_ok=True)
        tokenizer.save_pretrained(out)
        _save_image_processor(out, config)
        model_config.save_pretrained(out)
        generation.save_pretrained(out)
    return generation


def save_weights(
    model: Qwen3VLForConditionalGeneration, out: Path, *, max_file_bytes: int = 5 * 10**9
) -> None:
    """Write the weights without a progress bar, which would run through a terminal view."""
    has_bar = transformers_logging.is_progress_bar_enabled()
    transformers_logging.disable_progress_bar()
    try:
        model.save_pretrained(out, max_shard_size=max_file_bytes)
    finally:
        if has_bar:
            transformers_logging.enable_progress_bar()


def _vision_config(config: InitPolicyConfig) -> dict[str, object]:
    return {
        "depth": config.vision_depth,
        "hidden_size": config.vision_hidden_size,
        "intermediate_size": config.vision_intermediate_size,
        "num_heads": config.vision_heads,
        "patch_size": config.patch_px,
        "spatial_merge_size": config.merge,
        "temporal_patch_size": 2,
        "out_hidden_size": config.hidden_size,
        "num_position_embeddings": 256,
        "deepstack_visual_indexes": [0],
        "initializer_range": config.initializer_range,
    }


def build_model_config(
    config: InitPolicyConfig, tokenizer: PreTrainedTokenizerFast
) -> Qwen3VLConfig:
    """Return the Hugging Face configuration of the tiny policy."""
    head_dim = config.hidden_size // config.num_heads
    sections = _mrope_sections(head_dim)
    num_rows = (len(tokenizer) // _VOCAB_MULTIPLE + 1) * _VOCAB_MULTIPLE
    ids: dict[str, int] = tokenizer.get_vocab()
    text = {
        "vocab_size": num_rows,
        "hidden_size": config.hidden_size,
        "intermediate_size": config.intermediate_size,
        "num_hidden_layers": config.num_layers,
        "num_attention_heads": config.num_heads,
        "num_key_value_heads": config.num_heads // 2,
        "head_dim": head_dim,
        "initializer_range": config.initializer_range,
        "max_position_embeddings": 4096,
        "rope_parameters": {
            "rope_type": "default",
            "rope_theta": 10000.0,
            "mrope_section": sections,
            "mrope_interleaved": True,
        },
        "bos_token_id": None,
        "eos_token_id": ids[vocabulary.TURN_END],
        "pad_token_id": ids[vocabulary.END_OF_TEXT],
        "tie_word_embeddings": True,
    }
    return Qwen3VLConfig(
        text_config=text,
        vision_config=_vision_config(config),
        image_token_id=ids[vocabulary.IMAGE_PAD],
        video_token_id=ids[vocabulary.VIDEO_PAD],
        vision_start_token_id=ids[vocabulary.VISION_START],
        vision_end_token_id=ids[vocabulary.VISION_END],
        tie_word_embeddings=True,
        architectures=["Qwen3VLForConditionalGeneration"],
        dtype="float32",
    )


def _mrope_sections(head_dim: int) -> list[int]:
    pairs = head_dim // 2
    side = pairs // 4
    return [pairs - 2 * side, side, side]


def _random_model(model_config: Qwen3VLConfig) -> Qwen3VLForConditionalGeneration:
    model = AutoModelForImageTextToText.from_config(model_config, attn_implementation="sdpa")
    with torch.no_grad():
        model.model.visual.pos_embed.weight.mul_(_POSITION_SCALE)
    return model


def _save_image_processor(out: Path, config: InitPolicyConfig) -> None:
    # White becomes 0: the pages are white, and a large constant patch would hide the rest.
    processor = Qwen2VLImageProcessorPil(
        patch_size=config.patch_px,
        merge_size=config.merge,
        temporal_patch_size=2,
        min_pixels=(config.patch_px * config.merge) ** 2,
        max_pixels=config.max_pixels,
        image_mean=[1.0, 1.0, 1.0],
        image_std=[0.25, 0.25, 0.25],
    )
    processor.save_pretrained(out)
    image = json.loads((out / "preprocessor_config.json").read_text())
    image.update(
        image_processor_type="Qwen2VLImageProcessorFast", processor_class="Qwen3VLProcessor"
    )
    (out / "preprocessor_config.json").write_text(json.dumps(image, indent=2) + "\n")
    video = {**image, "video_processor_type": "Qwen3VLVideoProcessor"}
    del video["image_processor_type"]
    (out / "video_preprocessor_config.json").write_text(json.dumps(video, indent=2) + "\n")


def _generation(
    config: InitPolicyConfig, tokenizer: PreTrainedTokenizerFast, num_rows: int
) -> GenerationConfig:
    pieces = vocabulary.action_pieces(config.grid)
    ids: dict[str, int] = tokenizer.get_vocab()
    allowed = {ids[str(tokenizer.eos_token)], *(ids[p] for p in pieces)}
    if config.has_text_actions:
        special = {ids[t] for t in vocabulary.SPECIAL_TOKENS}
        allowed |= set(range(len(tokenizer))) - special
    return GenerationConfig(
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        do_sample=True,
        temperature=1.0,
        suppress_tokens=[i for i in range(num_rows) if i not in allowed],
    )
