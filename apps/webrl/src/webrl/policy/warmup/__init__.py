"""Warm-up of the tiny policy on synthetic pages: syntax of actions, and a little reading."""

from __future__ import annotations

from webrl.policy.warmup.batches import SupervisedBatch, supervised_batch
from webrl.policy.warmup.pages import PageFactory, SyntheticPage
from webrl.policy.warmup.training import WarmupReport, action_loss, warm_up

__all__ = [
    "PageFactory",
    "SupervisedBatch",
    "SyntheticPage",
    "WarmupReport",
    "action_loss",
    "supervised_batch",
    "warm_up",
]
