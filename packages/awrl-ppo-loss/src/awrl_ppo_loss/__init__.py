"""Decoupled PPO and its relatives as functions of tensors."""

from __future__ import annotations

from awrl_ppo_loss.advantages import group_normalized_advantages
from awrl_ppo_loss.aggregation import count_denominator
from awrl_ppo_loss.batch import PolicyBatch
from awrl_ppo_loss.config import PolicyLossConfig
from awrl_ppo_loss.errors import PPOLossError
from awrl_ppo_loss.logprobs import TokenStatistics, logprobs_from_hidden
from awrl_ppo_loss.loss import LossOutput, policy_loss
from awrl_ppo_loss.metrics import merge_metrics
from awrl_ppo_loss.proximal import proximal_logprobs

__all__ = [
    "LossOutput",
    "PPOLossError",
    "PolicyBatch",
    "PolicyLossConfig",
    "TokenStatistics",
    "count_denominator",
    "group_normalized_advantages",
    "logprobs_from_hidden",
    "merge_metrics",
    "policy_loss",
    "proximal_logprobs",
]
