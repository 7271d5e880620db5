"""Supervised warm-up: the tiny policy learns the action syntax and some of the synthetic pages.

Invariants: deterministic in the seed (one thread); only action tokens carry loss; the ids that are
masked when sampling are masked here too, so warm-up and sampling see one distribution.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch

from webrl.policy.config import InitPolicyConfig, WarmupConfig
from webrl.policy.processor import PolicyProcessor
from webrl.policy.warmup.batches import SupervisedBatch, supervised_batch
from webrl.policy.warmup.pages import PageFactory

if TYPE_CHECKING:
    from transformers import Qwen3VLForConditionalGeneration

logger = logging.getLogger(__name__)

# B pages, T tokens, V vocabulary.

_RAMP_UPDATES = 10
"""Updates over which the learning rate rises; without it the first steps of AdamW overshoot."""


@dataclass(frozen=True, slots=True)
class WarmupReport:
    """What the warm-up did."""

    num_pages: int
    """Synthetic pages seen."""
    loss: float
    """Mean loss per action token over the last ten updates, nats; nan without updates."""


def warm_up(
    model: Qwen3VLForConditionalGeneration, processor: PolicyProcessor, config: InitPolicyConfig
) -> WarmupReport:
    """Train `model` in place on synthetic pages.

    Args:
        model: The policy; float32.
        config: Seed, action grid and warm-up.

    Returns:
        Pages seen and final loss.
    """
    settings = config.warmup
    rng = np.random.default_rng([config.seed, 1])
    pages = PageFactory(config.grid, settings.page_kinds, rng)
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=settings.learning_rate, betas=(0.9, 0.95), weight_decay=0.0
    )
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: _rate(step, settings))
    losses: list[float] = []
    model.train()
    for _ in range(settings.num_updates):
        drawn = [pages.draw() for _ in range(settings.batch_size)]
        actions = [page.solutions[0] for page in drawn]
        batch = supervised_batch(processor, drawn, actions).on(model.device)
        loss = action_loss(model, batch, processor)
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        losses.append(float(loss.detach()))
    model.eval()
    final = float(np.mean(losses[-10:])) if losses else float("nan")
    num_pages = settings.num_updates * settings.batch_size
    logger.info("warm-up: %d pages, loss %.3f nats per action token", num_pages, final)
    return WarmupReport(num_pages=num_pages, loss=final)


def action_loss(
    model: Qwen3VLForConditionalGeneration, batch: SupervisedBatch, processor: PolicyProcessor
) -> torch.Tensor:
    """Return the mean cross-entropy of the action tokens, a scalar."""
    logits = model(
        input_ids=batch.input_ids,
        attention_mask=batch.attention_mask,
        position_ids=batch.position_ids,
        pixel_values=batch.pixel_values,
        image_grid_thw=batch.image_grid_thw,
        mm_token_type_ids=batch.mm_token_type_ids,
        use_cache=False,
    ).logits
    predicted, wanted = logits[:, :-1], batch.action_mask[:, 1:]
    labels = batch.input_ids[:, 1:][wanted]
    rows = predicted[wanted].float()
    masked = torch.tensor(processor.masked_token_ids, device=rows.device)
    rows = rows.index_fill(1, masked, float("-inf"))
    return torch.nn.functional.cross_entropy(rows, labels)


def _rate(step: int, settings: WarmupConfig) -> float:
    ramp = min(1.0, (step + 1) / _RAMP_UPDATES)
    return ramp * (1.0 - 0.9 * step / max(1, settings.num_updates))
