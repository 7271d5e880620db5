"""Log-probs and entropy of sampled tokens from hidden states, without the logits of all.

Invariants:
* logits exist for one chunk of tokens at a time, in the head's dtype, and in float32 for one block
  of rows of it; no `[N, V]` tensor ever exists, neither forward nor backward;
* nothing of size `V` is kept for the backward pass, which computes the logits of each chunk again;
* gradients of the head's parameters are summed over chunks in float32 at least, and rounded once;
* temperature divides the *logits* before the softmax, and ids that the sampler never emits have
  probability 0 here too.

Legend: `N` tokens, `D` hidden size, `V` vocabulary, `n` rows of a block; `z` logits after
temperature.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from awrl_ppo_loss.arguments import INTEGER_DTYPES, require_number
from awrl_ppo_loss.errors import PPOLossError

BLOCK_ELEMENTS = 2**26
"""Elements of a float32 block: 256 MiB, 441 rows of a vocabulary of 151,936. Large enough that
kernel launches do not count, small beside the output head itself."""


SUM_DTYPE = torch.float32
"""Least dtype in which the gradients of the head's parameters are summed: over 256 chunks in
bfloat16 they would be 1.8 % off, and are 0.3 % off so."""


class TokenStatistics(NamedTuple):
    """What a policy says about tokens, in nats; float32, or float64 for float64 logits."""

    logprobs: Tensor
    """Log-prob of the token."""
    entropy: Tensor
    """Entropy of the distribution that it was drawn from."""


def logprobs_from_hidden(
    hidden: Tensor,
    head: nn.Module,
    labels: Tensor,
    *,
    temperature: float = 1.0,
    masked_token_ids: Sequence[int] = (),
    chunk_tokens: int = 4096,
) -> TokenStatistics:
    """Return log-prob and entropy of every label under `softmax(head(hidden) / temperature)`.

    Args:
        hidden: Floating `[..., D]`: `hidden[t]` predicts `labels[t]`.
        head: Maps `[n, D]` to logits `[n, V]`, row by row: the output layer of a language model,
            or `torch.nn.Identity()` where `hidden` are logits. It is called again in the backward
            pass.
        labels: Integers `[...]` in `[0, V)`.
        temperature: The sampler's; > 0.
        masked_token_ids: Ids that the sampler never emits. A label among them has log-prob -inf.
        chunk_tokens: Tokens whose logits exist at once: 1.2 GiB for 4,096 tokens in bfloat16 and a
            vocabulary of 151,936.

    Returns:
        Both in the labels' shape.

    Raises:
        PPOLossError: A shape, dtype or option is wrong, or on a CPU a label lies outside the
            vocabulary.
    """
    require_number("temperature", temperature, above=0)
    require_number("chunk_tokens", chunk_tokens, at_least=1)
    if not hidden.is_floating_point() or hidden.shape[:-1] != labels.shape or not hidden.dim():
        raise PPOLossError(
            f"hidden must be floating {[*labels.shape, 'D']} beside labels {list(labels.shape)}, "
            f"got {hidden.dtype} {list(hidden.shape)}. Shift and slice both alike."
        )
    if labels.dtype not in INTEGER_DTYPES:
        raise PPOLossError(f"labels must be of an integer dtype, got {labels.dtype}. Pass ids.")
    excluded = torch.tensor(sorted(set(masked_token_ids)), dtype=torch.int64)
    options = _Options(
        head=head,
        temperature=float(temperature),
        excluded=excluded.to(hidden.device),
        chunk_tokens=chunk_tokens,
    )
    logprobs, entropy = _ChunkedHead.apply(
        hidden.reshape(-1, hidden.shape[-1]), labels.reshape(-1).long(), options, *head.parameters()
    )
    return TokenStatistics(logprobs.reshape(labels.shape), entropy.reshape(labels.shape))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Options:
    head: nn.Module
    temperature: float
    excluded: Tensor
    chunk_tokens: int


class _ChunkedHead(torch.autograd.Function):
    """Scores rows of hidden states `[N, D]`; the head's parameters are there for their gradient."""

    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, labels: Tensor, options: _Options, *_: Tensor
    ) -> tuple[Tensor, Tensor]:
        dtype = torch.float64 if hidden.dtype == torch.float64 else torch.float32
        logprobs, entropy = torch.empty(2, len(labels), dtype=dtype, device=hidden.device)
        for chunk in _slices(len(labels), options.chunk_tokens):
            logits = options.head(hidden[chunk])
            targets = labels[chunk]
            _check_vocabulary(targets, options.excluded, logits.shape[1])
            for rows in _blocks(*logits.shape):
                log_probs = _scaled(logits[rows], options, dtype).log_softmax(dim=1)
                logprobs[chunk][rows] = log_probs.gather(1, targets[rows, None])[:, 0]
                entropy[chunk][rows] = torch.special.entr(log_probs.exp()).sum(dim=1)
        ctx.save_for_backward(hidden, labels, logprobs, entropy)
        ctx.options = options
        ctx.autocast = (
            hidden.device.type,
            torch.get_autocast_dtype(hidden.device.type),
            torch.is_autocast_enabled(hidden.device.type),
        )
        ctx.set_materialize_grads(False)
        return logprobs, entropy

    @staticmethod
    @once_differentiable
    def backward(  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx: Any, *upstream: Tensor | None
    ) -> tuple[Tensor | None, ...]:
        hidden, labels, logprobs, entropy = ctx.saved_tensors
        options: _Options = ctx.options
        # Those of now: a sharded head may have been gathered anew since the forward pass.
        parameters = list(options.head.parameters())
        wanted = [p for p, needs in zip(parameters, ctx.needs_input_grad[3:], strict=True) if needs]
        sums = [torch.zeros_like(p, dtype=torch.promote_types(p.dtype, SUM_DTYPE)) for p in wanted]
        grad_hidden = torch.empty_like(hidden)
        for chunk in _slices(len(labels), options.chunk_tokens):
            states = hidden[chunk].detach().requires_grad_()
            with torch.enable_grad(), torch.autocast(*ctx.autocast):
                logits = options.head(states)
            grad_logits = _gradient(
                logits.detach(),
                labels[chunk],
                TokenStatistics(logprobs[chunk], entropy[chunk]),
                [None if grad is None else grad[chunk] / options.temperature for grad in upstream],
                options,
            )
            grads = torch.autograd.grad(logits, [states, *wanted], grad_logits)
            grad_hidden[chunk] = grads[0]
            for total, grad in zip(sums, grads[1:], strict=True):
                total += grad
        rounded = iter([total.to(p.dtype) for total, p in zip(sums, wanted, strict=True)])
        grad_parameters = [next(rounded) if needs else None for needs in ctx.needs_input_grad[3:]]
        return (grad_hidden, None, None, *grad_parameters)


def _gradient(
    logits: Tensor,
    labels: Tensor,
    scores: TokenStatistics,
    upstream: Sequence[Tensor | None],
    options: _Options,
) -> Tensor:
    """Return the gradient by logits `[n, V]`, in their dtype.

    With `p = softmax(z)`, label `y`, `lp = log p_y` and `H = -sum p log p`:
    `d lp / d z_i = [i = y] - p_i` and `d H / d z_i = -p_i (log p_i + H)`. `upstream` holds the
    gradients of log-probs and entropy over the temperature, `None` for 0.
    """
    out = torch.empty_like(logits)
    by_logprob, by_entropy = upstream
    if by_logprob is None:
        by_logprob = torch.zeros_like(scores.logprobs)
    label_probs = scores.logprobs.exp()
    at_label = by_logprob * (1 - label_probs)
    if by_entropy is not None:
        at_label += by_entropy * (torch.special.entr(label_probs) - scores.entropy * label_probs)
    for rows in _blocks(*logits.shape):
        probs = _scaled(logits[rows], options, label_probs.dtype).softmax(dim=1)
        share = by_logprob[rows]
        grad = 0.0
        if by_entropy is not None:
            # entr(p) = -p log p, and 0 for p = 0, where log p alone is not finite.
            grad = torch.special.entr(probs).mul_(by_entropy[rows, None])
            share = share + by_entropy[rows] * scores.entropy[rows]
        out[rows] = grad - probs.mul_(share[:, None])
    # In full precision, not as a difference of rounded terms: near certainty it is tiny.
    return out.scatter_(1, labels[:, None], at_label[:, None].to(out.dtype))


def _scaled(logits: Tensor, options: _Options, dtype: torch.dtype) -> Tensor:
    """Return a copy of a block of logits after temperature, -inf at ids that are never sampled."""
    scaled = logits.to(dtype, copy=True)
    if options.temperature != 1.0:
        scaled /= options.temperature
    return scaled.index_fill_(1, options.excluded, float("-inf"))


def _check_vocabulary(labels: Tensor, excluded: Tensor, vocabulary_size: int) -> None:
    if len(excluded) == vocabulary_size:
        raise PPOLossError(
            f"masked_token_ids must leave a token to sample, got all {vocabulary_size} ids. Pass "
            "only the ids that the sampler never emits."
        )
    if labels.device.type != "cpu":
        return  # reading them would wait for the device, which refuses them by itself
    for name, ids in {"labels": labels, "masked_token_ids": excluded}.items():
        is_wrong = (ids < 0) | (ids >= vocabulary_size)
        if bool(is_wrong.any()):
            raise PPOLossError(
                f"{name} must be in [0, {vocabulary_size}), got {int(ids[is_wrong][0])}. Check the "
                "tokenizer against the model's vocabulary size."
            )


def _blocks(num_rows: int, vocabulary_size: int) -> Iterator[slice]:
    return _slices(num_rows, max(1, BLOCK_ELEMENTS // vocabulary_size))


def _slices(num_rows: int, step: int) -> Iterator[slice]:
    return (slice(start, min(start + step, num_rows)) for start in range(0, num_rows, step))
