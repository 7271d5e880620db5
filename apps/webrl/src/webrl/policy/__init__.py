"""The policy: a Qwen3-VL checkpoint directory, and what turns goals and screenshots into its input.

`PolicyProcessor` and `load_policy` serve any Qwen3-VL checkpoint in Hugging Face's layout. The tiny
policy is one: `init_policy` writes a `Qwen3VLForConditionalGeneration` of 0.6 M parameters (text:
2 layers of 128; vision: 2 layers of 64, patches of 16 pixels, no merging), a byte-level tokenizer
in which `left_click(`, each `X, ` and each `Y)` is one token, a chat template, an image processor
that halves a 160 x 224 screenshot to 35 image tokens with white as 0, and a generation config that
suppresses everything but the pieces of actions. A click is three tokens and the end token; bins of
8 pixels are what it can hit.

The weights start random and see synthetic pages only (`WarmupConfig`): text fields, dialogs and
sections that open, drawn without a browser. The policy then knows the syntax and some of the
looking; it does not read: pages that ask for one of two lettered buttons stay at a coin flip.
"""

from __future__ import annotations

from webrl.policy.checkpoint import (
    build_model_config,
    init_policy,
    load_policy,
    save_weights,
    write_policy_files,
)
from webrl.policy.config import PAGE_KINDS, ActionGrid, InitPolicyConfig, WarmupConfig
from webrl.policy.images import PatchExtractor, PatchGrid, image_tokens, image_within, size_within
from webrl.policy.positions import position_ids
from webrl.policy.processor import ModelInputs, PolicyProcessor
from webrl.policy.tokenizer import action_pieces, build_tokenizer, click_text
from webrl.policy.warmup import PageFactory, SyntheticPage, WarmupReport

__all__ = [
    "PAGE_KINDS",
    "ActionGrid",
    "InitPolicyConfig",
    "ModelInputs",
    "PageFactory",
    "PatchExtractor",
    "PatchGrid",
    "PolicyProcessor",
    "SyntheticPage",
    "WarmupConfig",
    "WarmupReport",
    "action_pieces",
    "build_model_config",
    "build_tokenizer",
    "click_text",
    "image_tokens",
    "image_within",
    "init_policy",
    "load_policy",
    "position_ids",
    "save_weights",
    "size_within",
    "write_policy_files",
]
