"""Draw one token per row, with its log-prob, from a batch of logits.

Invariants:

* The log-prob is `log_softmax((logits + bias) / temperature)` at the drawn id, over the full
  vocabulary: `top_p` and `top_k` restrict the draw and not the log-prob, as in SGLang. The trainer
  computes the same with masked ids at minus infinity.
* A draw is a function of the row's seed and token position alone: batch-mates, cuts and
  resubmissions do not change it.
* An id of probability 0 is never drawn.

Legend: `B` rows, `V` vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

_MASK64 = (1 << 64) - 1


@dataclass(frozen=True, kw_only=True, slots=True)
class SamplingRow:
    """How to draw for one row of the batch."""

    temperature: float
    """Divides the logits; 1 for a greedy row."""
    is_greedy: bool
    """Take the best id."""
    top_p: float
    """Nucleus bound in (0, 1]."""
    top_k: int
    """Number of best ids to draw from; -1 for all."""
    bias: torch.Tensor | None
    """[V] float32 added to the logits, or `None`."""
    seed: int
    """Seed of the row's draws."""
    position: int
    """Index of the token to draw in its sequence, prompt included."""


def uniform(seed: int, position: int) -> float:
    """Return a number in [0, 1) that depends on `seed` and `position` only.

    The mixing function is splitmix64 (Steele, Lea and Flood 2014), applied twice.
    """
    value = (seed * 0x9E3779B97F4A7C15 + position) & _MASK64
    for _ in range(2):
        value = (value + 0x9E3779B97F4A7C15) & _MASK64
        value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK64
        value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK64
        value ^= value >> 31
    return (value >> 11) * 2.0**-53


def draw_tokens(logits: torch.Tensor, rows: Sequence[SamplingRow]) -> tuple[list[int], list[float]]:
    """Return one token id and its log-prob per row.

    Args:
        logits: [B, V], any float dtype; not changed.
    """
    logits = _biased(logits.float(), rows)
    temperatures = [row.temperature for row in rows]
    if any(temperature != 1.0 for temperature in temperatures):
        logits = logits / torch.tensor(temperatures, device=logits.device)[:, None]
    logprobs = torch.log_softmax(logits, dim=-1)
    token_ids = torch.argmax(logprobs, dim=-1)
    sampled = [index for index, row in enumerate(rows) if not row.is_greedy]
    if sampled:
        picked = logprobs if len(sampled) == len(rows) else logprobs[sampled]
        drawn = _inverse_cdf(picked, [rows[index] for index in sampled])
        token_ids[sampled] = drawn
    chosen = logprobs.gather(1, token_ids[:, None])[:, 0]
    return token_ids.tolist(), chosen.tolist()


def _biased(logits: torch.Tensor, rows: Sequence[SamplingRow]) -> torch.Tensor:
    first = rows[0].bias
    if all(row.bias is first for row in rows):
        return logits if first is None else logits + first
    zero = torch.zeros(logits.shape[1], device=logits.device)
    return logits + torch.stack([zero if row.bias is None else row.bias for row in rows])


def _inverse_cdf(logprobs: torch.Tensor, rows: Sequence[SamplingRow]) -> torch.Tensor:
    probs = logprobs.double().exp()
    if any(row.top_p < 1.0 or row.top_k > 0 for row in rows):
        probs = _restricted(probs, rows)
    cumulative = probs.cumsum(dim=-1)
    totals = cumulative[:, -1:].contiguous()
    draws = torch.tensor(
        [[uniform(row.seed, row.position)] for row in rows],
        dtype=torch.float64,
        device=probs.device,
    )
    index = torch.searchsorted(cumulative, draws * totals, right=True)
    # Rounding can make draw * total equal the total; the last id with probability is then right.
    last = torch.searchsorted(cumulative, totals, right=False)
    return torch.minimum(index, last)[:, 0]


def _restricted(probs: torch.Tensor, rows: Sequence[SamplingRow]) -> torch.Tensor:
    """Zero what lies outside each row's best `top_k` ids and its nucleus of mass `top_p`."""
    ordered, order = probs.sort(dim=-1, descending=True)
    mass_before = ordered.cumsum(dim=-1) - ordered
    rank = torch.arange(probs.shape[1], device=probs.device)
    top_p = torch.tensor([[row.top_p] for row in rows], dtype=probs.dtype, device=probs.device)
    top_k = torch.tensor(
        [[row.top_k if row.top_k > 0 else probs.shape[1]] for row in rows], device=probs.device
    )
    keep = (mass_before < top_p) & (rank < top_k)
    return torch.zeros_like(probs).scatter(1, order, ordered * keep)
