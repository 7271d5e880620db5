"""The loss of one micro-batch: policy loss, entropy bonus, KL to a frozen reference.

Invariant: every term is this micro-batch's share over the same global denominator.

Legend: N trainable tokens of the micro-batch.
"""

from __future__ import annotations

from dataclasses import dataclass

from awrl_ppo_loss import LossOutput, aggregate, decoupled_ppo_loss, kl_loss, ppo_loss
from torch import Tensor

from awrl_trainer.config import LossConfig
from awrl_trainer.micro_step import MicroTensors
from awrl_trainer.policy_module import TokenStatistics

__all__ = ["MicroLoss", "micro_batch_loss"]


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class MicroLoss:
    """Loss share and metrics of one micro-batch."""

    loss: Tensor
    """Scalar with gradient."""

    metrics: dict[str, Tensor | float]
    """Detached, `loss/num_tokens` among them."""


def micro_batch_loss(
    current: TokenStatistics,
    micro: MicroTensors,
    *,
    proximal_logprobs: Tensor,
    reference_logprobs: Tensor | None,
    denominator: float,
    config: LossConfig,
) -> MicroLoss:
    """Return the loss share of a micro-batch.

    Args:
        current: Log-probs and entropy under the policy being updated, float32 `[N]`.
        micro: Behavior log-probs, advantages and mask `[N]`.
        proximal_logprobs: Log-probs at the start of the update, float32 `[N]`, without gradient.
        reference_logprobs: Log-probs of the frozen reference, float32 `[N]`; None switches it off.
        denominator: Trainable tokens (or rows) of the mini-batch over all ranks.
        config: Coefficients and clips.
    """
    policy = _policy_loss(current.logprobs, micro, proximal_logprobs, config, denominator)
    loss, metrics = policy.loss, dict(policy.metrics)
    num_tokens = metrics["loss/num_tokens"]
    if config.entropy_coefficient:
        entropy = aggregate(
            current.entropy,
            micro.mask,
            aggregation=config.aggregation,
            denominator=denominator,
            sequence_ids=micro.row_ids,
        )
        loss = loss - config.entropy_coefficient * entropy
    # The merge weighs by tokens, whatever the aggregation of the loss is.
    counted = current.entropy.detach()[micro.mask].double()
    metrics["policy/entropy"] = counted.sum() / max(counted.numel(), 1)
    if reference_logprobs is not None:
        penalty = kl_loss(
            current.logprobs,
            reference_logprobs,
            micro.mask,
            kind="k3",
            aggregation=config.aggregation,
            denominator=denominator,
            sequence_ids=micro.row_ids,
        )
        loss = loss + config.kl_coefficient * penalty.loss
        metrics |= penalty.metrics
    metrics["loss/num_tokens"] = num_tokens
    return MicroLoss(loss=loss, metrics=metrics)


def _policy_loss(
    logprobs: Tensor,
    micro: MicroTensors,
    proximal_logprobs: Tensor,
    config: LossConfig,
    denominator: float,
) -> LossOutput:
    if not config.use_decoupled_loss:
        return ppo_loss(
            logprobs,
            micro.behavior_logprobs,
            micro.advantages,
            micro.mask,
            clip_low=config.clip_low,
            clip_high=config.clip_high,
            dual_clip=config.dual_clip,
            aggregation=config.aggregation,
            denominator=denominator,
            sequence_ids=micro.row_ids,
        )
    return decoupled_ppo_loss(
        logprobs,
        proximal_logprobs,
        micro.behavior_logprobs,
        micro.advantages,
        micro.mask,
        clip_low=config.clip_low,
        clip_high=config.clip_high,
        dual_clip=config.dual_clip,
        behav_imp_weight_cap=config.behav_imp_weight_cap,
        behav_imp_weight_action=config.behav_imp_weight_action,
        aggregation=config.aggregation,
        denominator=denominator,
        sequence_ids=micro.row_ids,
    )
