"""The checkpoint that a run starts from: a given folder, or a tiny policy made once per run."""

from __future__ import annotations

import os
from pathlib import Path

import torch

from webrl.config import WebRLConfig
from webrl.policy import InitPolicyConfig, WarmupConfig, init_policy

POLICY_FOLDER = "policy"
"""Folder of the made policy within the run's."""


def ensure_policy(config: WebRLConfig, run_dir: Path) -> Path:
    """Return the folder of the starting policy, made when the configuration names none.

    A made policy appears by rename: a run that was killed in mid-warm-up makes it again.

    Args:
        config: The run's.
        run_dir: Folder of the run.
    """
    if config.policy.path is not None:
        return Path(config.policy.path).resolve()
    folder = (run_dir / POLICY_FOLDER).resolve()
    if folder.is_dir():
        return folder
    section = config.policy.init
    # A tiny model gains nothing from threads, and loses much when they wait for each other.
    torch.set_num_threads(1)
    partial = folder.with_name(f".{POLICY_FOLDER}-{os.getpid()}")
    init_policy(
        partial,
        InitPolicyConfig(
            seed=config.seed if section.seed is None else section.seed,
            warmup=WarmupConfig(
                num_updates=section.num_updates,
                batch_size=section.batch_size,
                learning_rate=section.lr,
            ),
        ),
    )
    partial.rename(folder)
    return folder
