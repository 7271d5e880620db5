"""A stand-in for AReaL's `ppo_actor_loss_fn`: the same operations on tensors, in words of our own.

It stands for `areal/utils/functional/functional.py` of AReaL 1.0.4 with token-level ratios and
rejection sampling by masking tokens whose ratio lies above a cap (without that option it leaves the
importance weight out). Like the original it returns statistics per token, which its caller reduces,
and reads four counts from the device.
"""

from __future__ import annotations

import torch
from awrl_ppo_loss import PolicyBatch
from torch import Tensor


def areal_like_loss(
    batch: PolicyBatch, *, cap: float, clip: float = 0.2
) -> tuple[Tensor, dict[str, Tensor | float]]:
    """Return the decoupled loss, and statistics that nobody has reduced yet."""
    assert batch.proximal_logprobs is not None
    current, proximal = batch.current_logprobs, batch.proximal_logprobs
    behavior = batch.behavior_logprobs
    mask, advantages = batch.mask, batch.advantages
    num_tokens = mask.count_nonzero() or 1

    log_weight = proximal.detach().float() - behavior.detach().float()
    log_weight = torch.where(torch.isfinite(log_weight), log_weight, 0.0)
    metric, weight = log_weight.exp(), log_weight.exp()
    is_inside = metric <= cap
    kept = (mask.bool() & is_inside).to(mask.dtype)
    num_dropped = (mask.bool() & ~is_inside).sum().item()
    dropped_share = num_dropped / max(mask.bool().sum().item(), 1)
    weight = torch.where(kept.bool(), weight, 0.0)

    ratio = torch.where(mask, torch.exp(current - proximal), 0)
    clipped = torch.clamp(ratio, 1.0 - clip, 1.0 + clip)
    plain_loss, clipped_loss = -advantages * ratio, -advantages * clipped
    is_clipped = plain_loss.detach() < clipped_loss.detach()
    loss = torch.max(plain_loss, clipped_loss)
    is_dual = torch.zeros_like(is_clipped)
    log_staleness = proximal.detach() - behavior.detach()
    is_weighted = (weight > 0).logical_and(kept.bool())
    log_staleness = torch.where(is_weighted, log_staleness, 0.0)
    loss = loss * weight

    logged = loss.detach()
    loss = torch.where(kept, loss, 0).sum() / num_tokens
    is_clipped.logical_and_(mask)
    is_dual.logical_and_(mask)
    num_kept = kept.count_nonzero().item()
    return loss, {
        "loss": logged,
        "ratio": ratio.detach(),
        "log_ratio": (current - proximal).detach(),
        "is_clipped": is_clipped,
        "is_dual": is_dual,
        "num_kept": float(num_kept),
        "num_masked": float(kept.numel() - kept.count_nonzero().item()),
        "masked_share": float(1.0 - kept.count_nonzero().item() / max(kept.numel(), 1)),
        "log_staleness": log_staleness,
        "weight": weight.detach(),
        "is_weighted": is_weighted,
        "dropped_share": dropped_share,
    }
