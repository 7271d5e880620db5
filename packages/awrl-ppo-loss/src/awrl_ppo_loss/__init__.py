"""Decoupled PPO and its relatives as functions of tensors."""

from awrl_ppo_loss.advantages import (
    GroupStatistics,
    group_normalized_advantages,
    leave_one_out_advantages,
)
from awrl_ppo_loss.aggregation import Aggregation, aggregate, count_denominator
from awrl_ppo_loss.cispo import cispo_loss
from awrl_ppo_loss.config import Objective, PolicyLossConfig, policy_loss
from awrl_ppo_loss.decoupled import decoupled_ppo_loss, ppo_loss
from awrl_ppo_loss.errors import (
    ArgumentError,
    ArgumentTypeError,
    OptionError,
    PPOLossError,
)
from awrl_ppo_loss.fused import logprobs_from_hidden
from awrl_ppo_loss.gae import spread_to_tokens, turn_gae
from awrl_ppo_loss.gspo import gspo_loss
from awrl_ppo_loss.importance_sampling import masked_is_loss, truncated_is_loss
from awrl_ppo_loss.kl import KLKind, kl_estimate, kl_loss
from awrl_ppo_loss.labels import IGNORED_LABEL
from awrl_ppo_loss.logprobs import logprobs_from_logits
from awrl_ppo_loss.metrics import merge_metrics
from awrl_ppo_loss.output import LossOutput, Metrics
from awrl_ppo_loss.proximal import (
    ProximalMethod,
    ProximalOutput,
    loglinear_proximal_logprobs,
    proximal_logprobs,
)
from awrl_ppo_loss.ratios import MAX_RATIO, WeightAction

__all__ = [
    "Aggregation",
    "ArgumentError",
    "ArgumentTypeError",
    "GroupStatistics",
    "IGNORED_LABEL",
    "KLKind",
    "LossOutput",
    "MAX_RATIO",
    "Metrics",
    "Objective",
    "OptionError",
    "PPOLossError",
    "PolicyLossConfig",
    "ProximalMethod",
    "ProximalOutput",
    "WeightAction",
    "aggregate",
    "cispo_loss",
    "count_denominator",
    "decoupled_ppo_loss",
    "group_normalized_advantages",
    "gspo_loss",
    "kl_estimate",
    "kl_loss",
    "leave_one_out_advantages",
    "loglinear_proximal_logprobs",
    "logprobs_from_hidden",
    "logprobs_from_logits",
    "masked_is_loss",
    "merge_metrics",
    "policy_loss",
    "ppo_loss",
    "proximal_logprobs",
    "spread_to_tokens",
    "truncated_is_loss",
    "turn_gae",
]
