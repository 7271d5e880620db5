"""The ways to log-probs that the benchmark compares: ours, plain torch, and other libraries."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass

import torch
from awrl_ppo_loss import logprobs_from_hidden
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """What is measured, and how often."""

    device: str
    tokens: int
    hidden: int
    vocabulary: int
    dtype: torch.dtype
    repeats: int


@dataclass(frozen=True)
class Variant:
    """One way to log-probs: hidden states, head, labels -> a value per token, or their mean."""

    name: str
    call: Callable[[Tensor, nn.Linear, Tensor], Tensor]


def naive(hidden: Tensor, head: nn.Linear, labels: Tensor) -> Tensor:
    """The bar: all logits, in float32."""
    return head(hidden).float().log_softmax(dim=-1).gather(1, labels[:, None])[:, 0]


def checkpointed(hidden: Tensor, head: nn.Linear, labels: Tensor) -> Tensor:
    """The naive way in chunks that torch recomputes: the head's gradient is summed in its dtype."""
    chunks = zip(hidden.split(4096), labels.split(4096), strict=True)
    parts = [checkpoint(naive, part, head, ids, use_reentrant=False) for part, ids in chunks]
    return torch.cat(parts)  # type: ignore[arg-type]


def ours(hidden: Tensor, head: nn.Linear, labels: Tensor) -> Tensor:
    return logprobs_from_hidden(hidden, head, labels).logprobs


def others() -> tuple[list[Variant], dict[str, str]]:
    """Return the functions of other libraries that import here, and why the rest does not."""
    variants: list[Variant] = []
    missing: dict[str, str] = {}
    try:
        cce = importlib.import_module("cut_cross_entropy").linear_cross_entropy
        variants.append(
            Variant("cut_cross_entropy", lambda h, w, y: -cce(h, w.weight, y, reduction="none"))
        )
    except ImportError as error:
        missing["cut_cross_entropy"] = str(error)
    try:
        transformers = importlib.import_module("liger_kernel.transformers")
        liger = transformers.LigerFusedLinearCrossEntropyLoss(reduction="mean")
        variants.append(Variant("liger_mean_only", lambda h, w, y: -liger(w.weight, h, y)))
    except ImportError as error:
        missing["liger_mean_only"] = str(error)
    return variants, missing


def all_variants() -> tuple[list[Variant], dict[str, str]]:
    """Return ours, those of other libraries, and why the others are missing."""
    variants = [Variant("naive", naive), Variant("checkpointed", checkpointed)]
    found, missing = others()
    return [*variants, Variant("ours", ours), *found], missing
