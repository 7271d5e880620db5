"""The configuration of a run: sections, checks, loading, and what a run will do."""

from __future__ import annotations

from webrl.config.actor import ActorConfig, OptimizerConfig
from webrl.config.combinations import (
    check_dataset_size,
    config_warnings,
    estimate_screenshot_bytes,
)
from webrl.config.dump import to_toml
from webrl.config.environment import EnvConfig, PolicyConfig, PolicyInitSection, TaskEntry
from webrl.config.judge import JudgeSection
from webrl.config.load import LoadedConfig, load_config, packaged_configs, resolve_run_dir
from webrl.config.published import (
    PROXIMAL_CHOICES,
    PUBLISHED_KEYS,
    SERVER_CHOICES,
    ProximalChoice,
    PublishedKey,
    ServerChoice,
)
from webrl.config.reference import field_docs, reference_page
from webrl.config.rollout import GenerationConfig, RolloutConfig, TestRolloutConfig
from webrl.config.run import WebRLConfig
from webrl.config.services import (
    CheckpointConfig,
    ClusterConfig,
    InferenceConfig,
    LoggingConfig,
    PixelStoreSection,
    RecoverConfig,
    SchedulerConfig,
)
from webrl.config.spelling import all_keys
from webrl.config.summary import describe_plan

__all__ = [
    "PROXIMAL_CHOICES",
    "PUBLISHED_KEYS",
    "SERVER_CHOICES",
    "ActorConfig",
    "CheckpointConfig",
    "ClusterConfig",
    "EnvConfig",
    "GenerationConfig",
    "InferenceConfig",
    "JudgeSection",
    "LoadedConfig",
    "LoggingConfig",
    "OptimizerConfig",
    "PixelStoreSection",
    "PolicyConfig",
    "PolicyInitSection",
    "ProximalChoice",
    "PublishedKey",
    "RecoverConfig",
    "RolloutConfig",
    "SchedulerConfig",
    "ServerChoice",
    "TaskEntry",
    "TestRolloutConfig",
    "WebRLConfig",
    "all_keys",
    "check_dataset_size",
    "config_warnings",
    "describe_plan",
    "estimate_screenshot_bytes",
    "field_docs",
    "load_config",
    "packaged_configs",
    "reference_page",
    "resolve_run_dir",
    "to_toml",
]
