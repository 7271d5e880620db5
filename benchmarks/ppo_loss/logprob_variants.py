"""The ways to log-probs that the benchmark compares: ours, plain torch, and other libraries."""

import importlib
from collections.abc import Callable
from dataclasses import dataclass

import torch
from awrl_ppo_loss import logprobs_from_hidden, logprobs_from_logits
from torch import Tensor


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """What is measured, and how often."""

    device: str
    tokens: int
    hidden: int
    vocabulary: int
    dtype: torch.dtype
    repeats: int
    use_compile: bool


@dataclass(frozen=True)
class Variant:
    """One way to log-probs: hidden states, head, labels -> a value per token, or their mean."""

    name: str
    call: Callable[[Tensor, Tensor, Tensor], Tensor]


def naive(hidden: Tensor, head: Tensor, labels: Tensor) -> Tensor:
    """The bar: all logits, in float32."""
    logits = hidden @ head.t()
    return logits.float().log_softmax(dim=-1).gather(1, labels[:, None])[:, 0]


def from_logits(hidden: Tensor, head: Tensor, labels: Tensor) -> Tensor:
    return logprobs_from_logits(hidden @ head.t(), labels)


def fused(hidden: Tensor, head: Tensor, labels: Tensor) -> Tensor:
    return logprobs_from_hidden(hidden, head, labels)


def fused_compiled(hidden: Tensor, head: Tensor, labels: Tensor) -> Tensor:
    return logprobs_from_hidden(hidden, head, labels, use_compile=True)


def fused_float32_sum(hidden: Tensor, head: Tensor, labels: Tensor) -> Tensor:
    return logprobs_from_hidden(hidden, head, labels, accumulation_dtype=torch.float32)


def others() -> tuple[list[Variant], dict[str, str]]:
    """Return the functions of other libraries that import here, and why the rest does not."""
    variants: list[Variant] = []
    missing: dict[str, str] = {}
    try:
        cce = importlib.import_module("cut_cross_entropy").linear_cross_entropy
        variants.append(
            Variant("cut_cross_entropy", lambda h, w, y: -cce(h, w, y, reduction="none"))
        )
    except ImportError as error:
        missing["cut_cross_entropy"] = str(error)
    try:
        transformers = importlib.import_module("liger_kernel.transformers")
        liger = transformers.LigerFusedLinearCrossEntropyLoss(reduction="mean")
        variants.append(Variant("liger_mean_only", lambda h, w, y: -liger(w, h, y)))
    except ImportError as error:
        missing["liger_mean_only"] = str(error)
    return variants, missing


def all_variants(sizes: Sizes) -> tuple[list[Variant], dict[str, str]]:
    """Return ours, those of other libraries, and why the others are missing."""
    variants = [Variant("naive", naive), Variant("from_logits", from_logits)]
    variants.append(Variant("fused", fused))
    if sizes.dtype == torch.bfloat16:
        variants.append(Variant("fused_float32_sum", fused_float32_sum))
    if sizes.use_compile:
        variants.append(Variant("fused_compiled", fused_compiled))
    found, missing = others()
    return variants + found, missing
