"""Log-probs and entropy of rows of logits, and their gradient, in blocks of bounded size.

Invariants:
* float32 copies of logits exist for one block of rows at a time, of at most `BLOCK_ELEMENTS`; a
  compiled scorer makes none, so its block is whatever it is given;
* the gradient is the one derived here by hand, held to `gradcheck` in float64. With
  `p = softmax(z)`, label `y`, `lp = log p_y` and `H = -sum p log p`:
  `d lp / d z_i = [i = y] - p_i` and `d H / d z_i = -p_i (log p_i + H)`.

Legend: `n` rows, `V` vocabulary; `z` logits after temperature.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor

BLOCK_ELEMENTS = 2**26
"""Elements of a block: 256 MiB in float32, 441 rows of a vocabulary of 151,936. Large enough that
kernel launches do not count, small beside the output head itself."""


@dataclass(frozen=True, slots=True)
class Scorer:
    """Scores rows of logits, eagerly or through kernels that `torch.compile` fuses."""

    is_compiled: bool

    def blocks(self, num_rows: int, vocabulary_size: int) -> list[slice]:
        """Return slices that cover the rows in blocks of bounded size."""
        step = num_rows if self.is_compiled else BLOCK_ELEMENTS // vocabulary_size
        return slices(num_rows, max(1, step))

    def score(
        self, logits: Tensor, targets: Tensor, dtype: torch.dtype, *, with_entropy: bool
    ) -> tuple[Tensor, Tensor]:
        """Return log-prob and entropy of every row.

        Args:
            logits: `[n, V]`, any floating dtype.
            targets: Int64 `[n]`.
            dtype: Of the arithmetic and of the results.
            with_entropy: Whether to compute the entropy; else it is 0.
        """
        if self.is_compiled:
            return _compiled_score()(logits, targets, dtype, with_entropy)
        logprobs, entropy = torch.empty(2, len(targets), dtype=dtype, device=logits.device)
        for block in self.blocks(*logits.shape):
            logprobs[block], entropy[block] = _score(
                logits[block], targets[block], dtype, with_entropy
            )
        return logprobs, entropy

    def gradient(
        self,
        logits: Tensor,
        targets: Tensor,
        scores: tuple[Tensor, Tensor],
        upstream: tuple[Tensor, Tensor | None],
        *,
        out: Tensor,
    ) -> Tensor:
        """Return the gradient by the logits, in `out` unless the scorer is compiled.

        Args:
            logits: `[n, V]`; may be `out` itself.
            targets: Int64 `[n]`.
            scores: Log-prob and entropy `[n]` of the forward pass.
            upstream: Their gradients `[n]`; `None` for an entropy that was not asked for.
            out: `[n, V]`, in the logits' dtype.
        """
        grad_logprobs, grad_entropy = upstream
        logprobs, entropy = scores
        if self.is_compiled:
            out = _compiled_gradient()(logits, grad_logprobs, grad_entropy, entropy)
        else:
            for block in self.blocks(*logits.shape):
                _write_gradient(
                    logits[block],
                    grad_logprobs[block],
                    None if grad_entropy is None else grad_entropy[block],
                    entropy[block],
                    out[block],
                )
        probs = logprobs.exp()
        at_label = grad_logprobs * (1 - probs)
        if grad_entropy is not None:
            at_label += grad_entropy * (torch.special.entr(probs) - entropy * probs)
        # In full precision, not as a difference of rounded terms: near certainty it is tiny.
        return out.scatter_(1, targets[:, None], at_label[:, None].to(out.dtype))


def slices(num_rows: int, step: int) -> list[slice]:
    """Return slices of at most `step` that cover `num_rows`."""
    return [slice(start, min(start + step, num_rows)) for start in range(0, num_rows, step)]


def _score(
    logits: Tensor, targets: Tensor, dtype: torch.dtype, with_entropy: bool
) -> tuple[Tensor, Tensor]:
    log_probs = logits.log_softmax(dim=-1, dtype=dtype)
    chosen = log_probs.gather(1, targets[:, None])[:, 0]
    if not with_entropy:
        return chosen, torch.zeros_like(chosen)
    return chosen, torch.special.entr(log_probs.exp()).sum(dim=-1)


def _write_gradient(
    logits: Tensor,
    grad_logprobs: Tensor,
    grad_entropy: Tensor | None,
    entropy: Tensor,
    out: Tensor,
) -> None:
    """Write all of the gradient but the label's own entry."""
    probs = logits.softmax(dim=-1, dtype=grad_logprobs.dtype)
    if grad_entropy is None:
        out.copy_(probs.mul_(-grad_logprobs[:, None]))
        return
    # entr(p) = -p log p, and 0 for p = 0, where log p alone is not finite.
    grad = torch.special.entr(probs).mul_(grad_entropy[:, None])
    out.copy_(grad.sub_(probs.mul_((grad_logprobs + grad_entropy * entropy)[:, None])))


def _gradient(
    logits: Tensor, grad_logprobs: Tensor, grad_entropy: Tensor | None, entropy: Tensor
) -> Tensor:
    out = torch.empty_like(logits)
    _write_gradient(logits, grad_logprobs, grad_entropy, entropy, out)
    return out


@cache
def _compiled_score() -> Callable[[Tensor, Tensor, torch.dtype, bool], tuple[Tensor, Tensor]]:
    return torch.compile(_score)


@cache
def _compiled_gradient() -> Callable[[Tensor, Tensor, Tensor | None, Tensor], Tensor]:
    return torch.compile(_gradient)
