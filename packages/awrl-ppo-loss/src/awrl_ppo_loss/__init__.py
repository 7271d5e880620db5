"""Decoupled PPO and its relatives as functions of tensors."""

from awrl_ppo_loss.advantages import (
    GroupStatistics,
    group_normalized_advantages,
    leave_one_out_advantages,
)
from awrl_ppo_loss.aggregation import Aggregation, aggregate, count_denominator
from awrl_ppo_loss.decoupled import decoupled_ppo_loss, ppo_loss
from awrl_ppo_loss.errors import (
    ArgumentError,
    ArgumentTypeError,
    OptionError,
    PPOLossError,
)
from awrl_ppo_loss.kl import KLKind, kl_estimate, kl_loss
from awrl_ppo_loss.logprobs import IGNORED_LABEL, logprobs_from_logits
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
    "OptionError",
    "PPOLossError",
    "ProximalMethod",
    "ProximalOutput",
    "WeightAction",
    "aggregate",
    "count_denominator",
    "decoupled_ppo_loss",
    "group_normalized_advantages",
    "kl_estimate",
    "kl_loss",
    "leave_one_out_advantages",
    "loglinear_proximal_logprobs",
    "logprobs_from_logits",
    "merge_metrics",
    "ppo_loss",
    "proximal_logprobs",
]
