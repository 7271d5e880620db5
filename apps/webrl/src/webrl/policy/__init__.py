"""The policy: a Qwen3-VL checkpoint directory, and everything that turns screenshots into its input."""

from __future__ import annotations

from webrl.policy.checkpoint import build_model_config, init_policy, load_policy
from webrl.policy.config import PAGE_KINDS, ActionGrid, InitPolicyConfig, WarmupConfig
from webrl.policy.errors import CheckpointError, PolicyError, PromptError
from webrl.policy.images import PatchExtractor, PatchGrid
from webrl.policy.positions import position_ids
from webrl.policy.processor import ModelInputs, PolicyProcessor
from webrl.policy.prompt import SYSTEM_PROMPT, user_text
from webrl.policy.tokenizer import action_pieces, build_tokenizer, click_text
from webrl.policy.warmup import PageFactory, SyntheticPage, WarmupReport

__all__ = [
    "PAGE_KINDS",
    "SYSTEM_PROMPT",
    "ActionGrid",
    "CheckpointError",
    "InitPolicyConfig",
    "ModelInputs",
    "PageFactory",
    "PatchExtractor",
    "PatchGrid",
    "PolicyError",
    "PolicyProcessor",
    "PromptError",
    "SyntheticPage",
    "WarmupConfig",
    "WarmupReport",
    "action_pieces",
    "build_model_config",
    "build_tokenizer",
    "click_text",
    "init_policy",
    "load_policy",
    "position_ids",
    "user_text",
]
