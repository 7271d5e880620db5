"""The policy that a run starts from."""

from __future__ import annotations

from pathlib import Path

import torch
from awrl_trainer import new_folder

from webrl.config import WebRLConfig
from webrl.policy import InitPolicyConfig, WarmupConfig, init_policy

POLICY_FOLDER = "policy"
"""Folder of a made policy within the run's."""


def ensure_policy(config: WebRLConfig, run_dir: Path) -> Path:
    """Return the folder of the starting policy, made when the configuration names none.

    A made policy appears as a whole: a run that was killed in mid-warm-up makes it again.

    Raises:
        WebRLError: The disk refused a file.
    """
    if config.policy.path is not None:
        return Path(config.policy.path).resolve()
    folder = (run_dir / POLICY_FOLDER).resolve()
    if folder.is_dir():
        return folder
    section = config.policy.init
    # A tiny model gains nothing from threads, and loses much when they wait for each other.
    torch.set_num_threads(1)
    initial = InitPolicyConfig(
        seed=config.seed if section.seed is None else section.seed,
        warmup=WarmupConfig(
            num_updates=section.num_updates,
            batch_size=section.batch_size,
            learning_rate=section.lr,
        ),
    )
    with new_folder(folder, is_marked=False) as partial:
        init_policy(partial, initial)
    return folder
