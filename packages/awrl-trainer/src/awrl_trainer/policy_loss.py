"""The loss of one micro-batch of the update.

Invariant: it is this micro-batch's share over the global denominator of the mini-batch.

Legend: N trainable tokens of the micro-batch.
"""

from __future__ import annotations

from awrl_ppo_loss import PolicyBatch, TokenStatistics, policy_loss, proximal_logprobs
from torch import Tensor

from awrl_trainer.config import LossConfig
from awrl_trainer.micro_step import MicroTensors


def micro_batch_loss(
    current: TokenStatistics,
    micro: MicroTensors,
    *,
    snapshot: Tensor | None,
    reference_logprobs: Tensor | None,
    version: int,
    denominator: float,
    config: LossConfig,
) -> tuple[Tensor, dict[str, Tensor | float]]:
    """Return the loss share of a micro-batch and its detached metrics.

    Args:
        current: Log-probs and entropy under the policy being updated, float32 `[N]`.
        micro: Behavior log-probs, advantages, versions and mask `[N]`.
        snapshot: Log-probs at the start of the update, float32 `[N]`; None while nothing has
            changed since, or where the configuration needs none.
        reference_logprobs: Log-probs of the frozen reference, float32 `[N]`; None switches it off.
        version: Version at the start of the update.
        denominator: Trainable tokens (or rows) of the mini-batch over all ranks.
    """
    proximal, metrics = micro.behavior_logprobs, {}
    if config.proximal_method != "behavior":
        detached = current.logprobs.detach()
        proximal, metrics = proximal_logprobs(
            config.proximal_method,
            current_logprobs=detached,
            behavior_logprobs=micro.behavior_logprobs,
            mask=micro.mask,
            recomputed_logprobs=detached if snapshot is None else snapshot,
            behavior_versions=micro.versions,
            proximal_version=version,
        )
    output = policy_loss(
        PolicyBatch(
            current_logprobs=current.logprobs,
            proximal_logprobs=proximal,
            behavior_logprobs=micro.behavior_logprobs if config.use_decoupled_loss else proximal,
            reference_logprobs=reference_logprobs,
            entropy=current.entropy,
            advantages=micro.advantages,
            mask=micro.mask,
            sequence_ids=micro.row_ids,
        ),
        config,
        denominator=denominator,
    )
    return output.loss, {**metrics, **output.metrics}
