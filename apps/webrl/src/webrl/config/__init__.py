"""The configuration of a run: sections, rules, loading, and what a run will do."""

from __future__ import annotations

from webrl.config.agent_section import AgentSection, HistorySection
from webrl.config.load import (
    LoadedConfig,
    OverrideText,
    build_section,
    load_config,
    packaged_configs,
    resolve_run_dir,
    to_toml,
)
from webrl.config.published import (
    PROXIMAL_CHOICES,
    PUBLISHED_KEYS,
    PUBLISHED_VALUES,
    PublishedKey,
    PublishedValue,
)
from webrl.config.reference import field_docs, reference_page
from webrl.config.rules import Count, NonNegative, Positive, Section
from webrl.config.run import WebRLConfig, check_dataset_size
from webrl.config.spelling import all_keys
from webrl.config.summary import config_warnings, describe_plan
from webrl.config.web_sections import PLACEHOLDER, JudgeSection, StepLimitsSection, TaskSection

__all__ = [
    "PLACEHOLDER",
    "PROXIMAL_CHOICES",
    "PUBLISHED_KEYS",
    "PUBLISHED_VALUES",
    "AgentSection",
    "Count",
    "HistorySection",
    "JudgeSection",
    "LoadedConfig",
    "NonNegative",
    "OverrideText",
    "Positive",
    "PublishedKey",
    "PublishedValue",
    "Section",
    "StepLimitsSection",
    "TaskSection",
    "WebRLConfig",
    "all_keys",
    "build_section",
    "check_dataset_size",
    "config_warnings",
    "describe_plan",
    "field_docs",
    "load_config",
    "packaged_configs",
    "reference_page",
    "resolve_run_dir",
    "to_toml",
]
