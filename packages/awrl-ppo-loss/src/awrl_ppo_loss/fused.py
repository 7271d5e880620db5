"""Log-probs of sampled tokens from hidden states and the output head, without the logits of all.

Invariants:
* logits exist for one chunk of tokens at a time, in the states' dtype, and in float32 for one block
  of rows of it; no `[T, V]` tensor in float32 ever exists, neither forward nor backward;
* nothing of size `V` is kept for the backward pass, which computes the logits of each chunk again:
  four matrix products in place of three;
* a position whose label is `IGNORED_LABEL` costs nothing and is never looked at.

The gradient, by hand: with `z = (h W^T + bias) / temperature` and `g = dL/dz` (`scoring`),
`dL/dh = g W / temperature`, `dL/dW = g^T h / temperature`, `dL/dbias = sum g / temperature`. The
sums over chunks of the last two are kept in the weight's dtype, so in bfloat16 each further chunk
adds one rounding, or in a wider one on request.

Legend: `B` sequences, `T` tokens, `n` scored tokens, `D` hidden size, `V` vocabulary.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, overload

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from awrl_ppo_loss.arguments import require_number
from awrl_ppo_loss.errors import ArgumentError, ArgumentTypeError, OptionError
from awrl_ppo_loss.labels import excluded_ids, scored_tokens
from awrl_ppo_loss.logprobs import arithmetic_dtype, require_states
from awrl_ppo_loss.scoring import BLOCK_ELEMENTS, Scorer, slices

DEFAULT_CHUNK_TOKENS = 2048
"""Tokens whose logits exist at once: 0.6 GiB in bfloat16 for a vocabulary of 151,936, and enough
rows to keep a large GPU's matrix units busy."""


@overload
def logprobs_from_hidden(
    hidden: Tensor,
    weight: Tensor,
    labels: Tensor,
    *,
    bias: Tensor | None = None,
    temperature: float = 1.0,
    masked_token_ids: Sequence[int] | Tensor | None = None,
    with_entropy: Literal[False] = False,
    chunk_tokens: int = DEFAULT_CHUNK_TOKENS,
    accumulation_dtype: torch.dtype | None = None,
    use_compile: bool = False,
) -> Tensor: ...


@overload
def logprobs_from_hidden(
    hidden: Tensor,
    weight: Tensor,
    labels: Tensor,
    *,
    bias: Tensor | None = None,
    temperature: float = 1.0,
    masked_token_ids: Sequence[int] | Tensor | None = None,
    with_entropy: Literal[True],
    chunk_tokens: int = DEFAULT_CHUNK_TOKENS,
    accumulation_dtype: torch.dtype | None = None,
    use_compile: bool = False,
) -> tuple[Tensor, Tensor]: ...


def logprobs_from_hidden(
    hidden: Tensor,
    weight: Tensor,
    labels: Tensor,
    *,
    bias: Tensor | None = None,
    temperature: float = 1.0,
    masked_token_ids: Sequence[int] | Tensor | None = None,
    with_entropy: bool = False,
    chunk_tokens: int = DEFAULT_CHUNK_TOKENS,
    accumulation_dtype: torch.dtype | None = None,
    use_compile: bool = False,
) -> Tensor | tuple[Tensor, Tensor]:
    """Return the log-prob of every label under `softmax((hidden W^T + bias) / temperature)`.

    The value is that of `logprobs_from_logits(linear(hidden, weight, bias), labels, ...)`, up to
    the rounding of the logits, with a small share of its memory.

    Args:
        hidden: Floating `[B, T, D]` or packed `[T, D]`: `hidden[t]` predicts `labels[t]`.
        weight: The output head `[V, D]`, in the dtype of `hidden`.
        labels: Integers `[B, T]` or `[T]`, in `[0, V)` or `IGNORED_LABEL`. Ignoring positions that
            are not trained saves their share of time.
        bias: `[V]` in the same dtype, or `None`.
        temperature: The sampler's; > 0.
        masked_token_ids: Ids that the sampler never emits; they leave the softmax.
        with_entropy: Also return the entropy of every position, in nats.
        chunk_tokens: Tokens whose logits exist at once; >= 1.
        accumulation_dtype: In which the head's gradient is summed over chunks before its one
            rounding to the weight's dtype: float32 for a bfloat16 head, at the price of one more
            `[V, D]` tensor of it; `None` sums in the weight's own dtype.
        use_compile: Fuse the softmax passes with `torch.compile`, for speed on a GPU; needs what
            torch.compile needs (a C compiler).

    Returns:
        Log-probs `[B, T]` or `[T]` in float32 (float64 for float64 states), and the entropy in the
        same form if asked for; 0 where the label is ignored.

    Raises:
        ArgumentError: Shapes or devices do not fit, or a label or id lies outside the vocabulary.
        ArgumentTypeError: A dtype is wrong.
        OptionError: The temperature, `chunk_tokens` or `accumulation_dtype` is outside its range.
    """
    require_number("temperature", temperature, above=0)
    if isinstance(chunk_tokens, bool) or chunk_tokens < 1:
        raise OptionError(
            f"chunk_tokens must be an integer >= 1, got {chunk_tokens!r}. Take a power of two."
        )
    require_states("hidden", hidden)
    _require_head(hidden, weight, bias)
    sum_dtype = accumulation_dtype or weight.dtype
    if torch.promote_types(sum_dtype, weight.dtype) != sum_dtype:
        raise OptionError(
            f"accumulation_dtype must hold the weight's {weight.dtype}, got {sum_dtype}. Take "
            "torch.float32, or leave it out."
        )
    tokens = scored_tokens(labels, hidden.shape[:-1], weight.shape[0])
    excluded = excluded_ids(masked_token_ids, weight.shape[0], hidden.device)
    rows = tokens.select(hidden.reshape(-1, hidden.shape[-1]))
    logprobs, entropy = _ScoreHidden.apply(
        rows,
        weight,
        bias,
        tokens.targets,
        excluded,
        _Options(
            float(temperature),
            with_entropy,
            chunk_tokens,
            sum_dtype,
            Scorer(is_compiled=use_compile),
        ),
    )
    if not with_entropy:
        return tokens.spread(logprobs)
    return tokens.spread(logprobs), tokens.spread(entropy)


def _require_head(hidden: Tensor, weight: Tensor, bias: Tensor | None) -> None:
    if weight.dim() != 2 or weight.shape[1] != hidden.shape[-1]:
        raise ArgumentError(
            f"weight must be of shape [V, {hidden.shape[-1]}], got {list(weight.shape)}. Pass the "
            "output head's own weight, untransposed."
        )
    if bias is not None and bias.shape != weight.shape[:1]:
        raise ArgumentError(
            f"bias must be of shape [{weight.shape[0]}], got {list(bias.shape)}. Pass the head's."
        )
    for name, value in {"weight": weight, "bias": bias}.items():
        if value is not None and value.dtype != hidden.dtype:
            raise ArgumentTypeError(
                f"{name} must be of the dtype of hidden, {hidden.dtype}, got {value.dtype}. Cast "
                "one of them: nothing is cast here, under autocast neither."
            )
        if value is not None and value.device != hidden.device:
            raise ArgumentError(
                f"{name} must be on the device of hidden, {hidden.device}, got {value.device}. "
                "Move it."
            )


@dataclass(frozen=True, slots=True)
class _Options:
    temperature: float
    with_entropy: bool
    chunk_tokens: int
    sum_dtype: torch.dtype
    scorer: Scorer


class _ScoreHidden(torch.autograd.Function):
    """Scores rows of hidden states `[n, D]` chunk by chunk; keeps the states and the weight."""

    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        targets: Tensor,
        excluded: Tensor | None,
        options: _Options,
    ) -> tuple[Tensor, Tensor]:
        dtype = arithmetic_dtype(hidden.dtype)
        logprobs, entropy = torch.empty(2, len(targets), dtype=dtype, device=hidden.device)
        for chunk in slices(len(targets), options.chunk_tokens):
            logprobs[chunk], entropy[chunk] = options.scorer.score(
                _chunk_logits(hidden[chunk], weight, bias, excluded, options.temperature),
                targets[chunk],
                dtype,
                with_entropy=options.with_entropy,
            )
        ctx.save_for_backward(hidden, weight, bias, targets, excluded, logprobs, entropy)
        ctx.options = options
        return logprobs, entropy

    @staticmethod
    @once_differentiable
    def backward(  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx: Any, *grad_outputs: Tensor
    ) -> tuple[Tensor | None, ...]:
        hidden, weight, bias, targets, excluded, logprobs, entropy = ctx.saved_tensors
        options: _Options = ctx.options
        grad_logprobs = grad_outputs[0] / options.temperature
        grad_entropy = grad_outputs[1] / options.temperature if options.with_entropy else None
        wants_hidden, wants_weight, wants_bias = ctx.needs_input_grad[:3]
        grad_hidden = torch.empty_like(hidden) if wants_hidden else None
        sum_dtype = options.sum_dtype
        grad_weight = torch.zeros_like(weight, dtype=sum_dtype) if wants_weight else None
        grad_bias = torch.zeros_like(bias, dtype=sum_dtype) if wants_bias else None
        for chunk in slices(len(targets), options.chunk_tokens):
            logits = _chunk_logits(hidden[chunk], weight, bias, excluded, options.temperature)
            grad = options.scorer.gradient(
                logits,
                targets[chunk],
                (logprobs[chunk], entropy[chunk]),
                (grad_logprobs[chunk], None if grad_entropy is None else grad_entropy[chunk]),
                out=logits,
            )
            if excluded is not None:
                grad.index_fill_(1, excluded, 0.0)
            if grad_hidden is not None:
                torch.mm(grad, weight, out=grad_hidden[chunk])
            if grad_weight is not None:
                _add_product(grad_weight, grad, hidden[chunk])
            if grad_bias is not None:
                grad_bias += grad.sum(dim=0, dtype=sum_dtype)
        if grad_weight is not None:
            grad_weight = grad_weight.to(weight.dtype)
        if grad_bias is not None:
            grad_bias = grad_bias.to(bias.dtype)
        return grad_hidden, grad_weight, grad_bias, None, None, None


def _add_product(total: Tensor, grad: Tensor, hidden: Tensor) -> None:
    """Add `grad^T hidden` to `total` `[V, D]`, in the dtype of `total`."""
    if total.dtype == grad.dtype:
        total.addmm_(grad.t(), hidden)
        return
    # In blocks of rows, so that the product never exists as a whole beside its sum.
    for rows in slices(len(total), max(1, BLOCK_ELEMENTS // total.shape[1])):
        total[rows] += torch.mm(grad[:, rows].t(), hidden)


def _chunk_logits(
    hidden: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    excluded: Tensor | None,
    temperature: float,
) -> Tensor:
    """Return `(hidden W^T + bias) / temperature` `[n, V]`, -inf at excluded ids."""
    with torch.autocast(hidden.device.type, enabled=False):
        if bias is None and temperature == 1.0:
            logits = torch.mm(hidden, weight.t())
        else:
            # The temperature acts inside the product, before its result is rounded to bfloat16.
            inverse = 1 / temperature
            added = hidden.new_zeros(()) if bias is None else bias
            logits = torch.addmm(added, hidden, weight.t(), beta=inverse, alpha=inverse)
    return logits if excluded is None else logits.index_fill_(1, excluded, float("-inf"))
