"""WebRL: the asynchronous reinforcement-learning system for multimodal web agents.

What stands here is for programs and notebooks; see `webrl.api`.
"""

from __future__ import annotations

from webrl.api import evaluate, train
from webrl.config import LoadedConfig, WebRLConfig, load_config, packaged_configs
from webrl.errors import ConfigError, PreflightError, RunFailedError, WebRLError

__all__ = [
    "ConfigError",
    "LoadedConfig",
    "PreflightError",
    "RunFailedError",
    "WebRLConfig",
    "WebRLError",
    "evaluate",
    "load_config",
    "packaged_configs",
    "train",
]
