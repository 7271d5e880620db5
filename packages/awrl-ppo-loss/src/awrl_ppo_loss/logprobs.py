"""Log-probs and entropy of sampled tokens from logits, as the sampler computed them.

Invariants:
* temperature divides the *logits* before the softmax, never the log-prob after it;
* ids that the sampler never emits (`masked_token_ids`) have probability 0 here too;
* arithmetic is float32 at least, whatever the logits' dtype, and no float32 copy of all logits
  ever exists, neither forward nor backward;
* a position whose label is `IGNORED_LABEL` is never looked at: log-prob and entropy 0, no gradient.

Legend: `B` sequences, `T` tokens, `V` vocabulary, `n` scored tokens. `labels[t]` is the token that
`logits[t]` predicts: shift by one before the call.
"""

from collections.abc import Sequence
from typing import Any, Literal, overload

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from awrl_ppo_loss.arguments import require_number
from awrl_ppo_loss.errors import ArgumentError, ArgumentTypeError
from awrl_ppo_loss.labels import excluded_ids, scored_tokens
from awrl_ppo_loss.scoring import Scorer


@overload
def logprobs_from_logits(
    logits: Tensor,
    labels: Tensor,
    *,
    temperature: float = 1.0,
    masked_token_ids: Sequence[int] | Tensor | None = None,
    with_entropy: Literal[False] = False,
) -> Tensor: ...


@overload
def logprobs_from_logits(
    logits: Tensor,
    labels: Tensor,
    *,
    temperature: float = 1.0,
    masked_token_ids: Sequence[int] | Tensor | None = None,
    with_entropy: Literal[True],
) -> tuple[Tensor, Tensor]: ...


def logprobs_from_logits(
    logits: Tensor,
    labels: Tensor,
    *,
    temperature: float = 1.0,
    masked_token_ids: Sequence[int] | Tensor | None = None,
    with_entropy: bool = False,
) -> Tensor | tuple[Tensor, Tensor]:
    """Return the log-prob of every label under `softmax(logits / temperature)`.

    Args:
        logits: Floating `[B, T, V]` or packed `[T, V]`.
        labels: Integers `[B, T]` or `[T]`, in `[0, V)` or `IGNORED_LABEL`.
        temperature: The sampler's; > 0.
        masked_token_ids: Ids that the sampler never emits; they leave the softmax.
        with_entropy: Also return the entropy of every position, in nats.

    Returns:
        Log-probs `[B, T]` or `[T]` in float32 (float64 for float64 logits), and the entropy in the
        same form if asked for. A label that is masked out has log-prob -inf.

    Raises:
        ArgumentError: Shapes do not fit, or a label or id lies outside the vocabulary.
        ArgumentTypeError: A dtype is wrong.
        OptionError: The temperature is not a finite number > 0.
    """
    require_number("temperature", temperature, above=0)
    require_states("logits", logits)
    tokens = scored_tokens(labels, logits.shape[:-1], logits.shape[-1])
    excluded = excluded_ids(masked_token_ids, logits.shape[-1], logits.device)
    rows = tokens.select(logits.reshape(-1, logits.shape[-1]))
    logprobs, entropy = _ScoreLogits.apply(
        rows, tokens.targets, excluded, float(temperature), with_entropy
    )
    if not with_entropy:
        return tokens.spread(logprobs)
    return tokens.spread(logprobs), tokens.spread(entropy)


def require_states(name: str, states: object) -> None:
    """Refuse what is not a floating tensor with a token and a feature dimension.

    Raises:
        ArgumentError: The shape is neither `[B, T, *]` nor `[T, *]`.
        ArgumentTypeError: It is not a floating tensor.
    """
    if not isinstance(states, Tensor) or not states.is_floating_point():
        got = states.dtype if isinstance(states, Tensor) else type(states).__name__
        raise ArgumentTypeError(
            f"{name} must be a tensor of a floating dtype, got {got}. Check the order of arguments."
        )
    if states.dim() not in (2, 3) or states.shape[-1] == 0:
        raise ArgumentError(
            f"{name} must be of shape [B, T, *] or packed [T, *], got {list(states.shape)}. "
            "Reshape it."
        )


def arithmetic_dtype(dtype: torch.dtype) -> torch.dtype:
    """Return float64 for float64, else float32."""
    return torch.float64 if dtype == torch.float64 else torch.float32


class _ScoreLogits(torch.autograd.Function):
    """Scores rows of logits `[n, V]` block by block; keeps only the logits themselves."""

    @staticmethod
    def forward(
        ctx: Any,
        logits: Tensor,
        targets: Tensor,
        excluded: Tensor | None,
        temperature: float,
        with_entropy: bool,
    ) -> tuple[Tensor, Tensor]:
        dtype = arithmetic_dtype(logits.dtype)
        logprobs, entropy = torch.empty(2, len(targets), dtype=dtype, device=logits.device)
        scorer = Scorer(is_compiled=False)
        for block in scorer.blocks(*logits.shape):
            logprobs[block], entropy[block] = scorer.score(
                _scaled(logits[block], excluded, temperature, dtype),
                targets[block],
                dtype,
                with_entropy=with_entropy,
            )
        ctx.save_for_backward(logits, targets, excluded, logprobs, entropy)
        ctx.temperature, ctx.with_entropy = temperature, with_entropy
        return logprobs, entropy

    @staticmethod
    @once_differentiable
    def backward(  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx: Any, *grad_outputs: Tensor
    ) -> tuple[Tensor | None, ...]:
        logits, targets, excluded, logprobs, entropy = ctx.saved_tensors
        grad_logprobs = grad_outputs[0] / ctx.temperature
        grad_entropy = grad_outputs[1] / ctx.temperature if ctx.with_entropy else None
        grad = torch.empty_like(logits)
        scorer = Scorer(is_compiled=False)
        for block in scorer.blocks(*logits.shape):
            scorer.gradient(
                _scaled(logits[block], excluded, ctx.temperature, logprobs.dtype),
                targets[block],
                (logprobs[block], entropy[block]),
                (grad_logprobs[block], None if grad_entropy is None else grad_entropy[block]),
                out=grad[block],
            )
        if excluded is not None:
            grad.index_fill_(1, excluded, 0.0)
        return grad, None, None, None, None


def _scaled(
    logits: Tensor, excluded: Tensor | None, temperature: float, dtype: torch.dtype
) -> Tensor:
    """Return logits after temperature, in their own dtype where nothing has to be computed."""
    scaled = logits if temperature == 1.0 else logits.to(dtype) / temperature
    return scaled if excluded is None else scaled.index_fill(1, excluded, float("-inf"))
