"""Log-probs and entropy of sampled tokens from logits, as the sampler computed them.

Invariants:
* temperature divides the *logits* before the softmax, never the log-prob after it;
* ids that the sampler never emits (`masked_token_ids`) have probability 0 here too;
* arithmetic is float32 at least, whatever the logits' dtype;
* a label of `IGNORED_LABEL` gives log-prob 0 without gradient; any other label outside the
  vocabulary is refused.

Legend: `B` sequences, `T` tokens, `V` vocabulary. `labels[t]` is the token that `logits[t]`
predicts: shift by one before the call.
"""

from collections.abc import Sequence
from typing import Literal, overload

import torch
from torch import Tensor

from awrl_ppo_loss.arguments import require_integers, require_number
from awrl_ppo_loss.errors import ArgumentError, ArgumentTypeError
from awrl_ppo_loss.selection import upcast

IGNORED_LABEL = -100
"""Label of a position without a token to score, as in `torch.nn.functional.cross_entropy`."""


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
    targets, is_scored = prepare_labels(labels, logits.shape[:-1], logits.shape[-1])
    if not logits.is_floating_point():
        raise ArgumentTypeError(
            f"logits must be of a floating dtype, got {logits.dtype}. Check the order of arguments."
        )
    scaled = upcast(logits) / temperature
    masked = prepare_masked_ids(masked_token_ids, logits.shape[-1], logits.device)
    if masked is not None:
        scaled = scaled.index_fill(-1, masked, float("-inf"))
    log_probs = scaled.log_softmax(dim=-1)
    chosen = log_probs.gather(-1, targets[..., None])[..., 0]
    chosen = torch.where(is_scored, chosen, 0.0)
    if not with_entropy:
        return chosen
    finite = log_probs if masked is None else log_probs.index_fill(-1, masked, 0.0)
    return chosen, -(log_probs.exp() * finite).sum(dim=-1)


def prepare_labels(
    labels: Tensor, shape: torch.Size, vocabulary_size: int
) -> tuple[Tensor, Tensor]:
    """Return labels safe to gather with, and where there is one to score.

    Raises:
        ArgumentError: The shape differs, or a label lies outside the vocabulary. Values are looked
            at on a CPU only; elsewhere the gather's own assertion speaks.
        ArgumentTypeError: The labels are not integers.
    """
    require_integers("labels", labels)
    if labels.shape != shape:
        raise ArgumentError(
            f"labels must be of shape {list(shape)}, the logits' without the vocabulary, got "
            f"{list(labels.shape)}. Shift and slice both alike."
        )
    is_scored = labels != IGNORED_LABEL
    targets = torch.where(is_scored, labels, 0).long()
    if labels.device.type == "cpu":
        require_ids("labels", targets, vocabulary_size)
    return targets, is_scored


def prepare_masked_ids(
    masked_token_ids: Sequence[int] | Tensor | None, vocabulary_size: int, device: torch.device
) -> Tensor | None:
    """Return the masked ids as int64 tensor on the device, or `None` if there are none.

    Raises:
        ArgumentError: An id lies outside the vocabulary, or every id is masked.
        ArgumentTypeError: The ids are not integers.
    """
    if masked_token_ids is None:
        return None
    if isinstance(masked_token_ids, Tensor):
        ids = require_integers("masked_token_ids", masked_token_ids).long().flatten()
    else:
        ids = torch.tensor(list(masked_token_ids), dtype=torch.int64)
    if ids.numel() == 0:
        return None
    require_ids("masked_token_ids", ids, vocabulary_size)
    ids = torch.unique(ids)
    if ids.numel() == vocabulary_size:
        raise ArgumentError(
            f"masked_token_ids must leave a token to sample, got all {vocabulary_size} ids. "
            "Pass only the ids that the sampler never emits."
        )
    return ids.to(device)


def require_ids(name: str, ids: Tensor, vocabulary_size: int) -> None:
    """Refuse ids outside `[0, vocabulary_size)`.

    Raises:
        ArgumentError: An id lies outside.
    """
    if ids.numel() and bool(((ids < 0) | (ids >= vocabulary_size)).any()):
        wrong = ids[(ids < 0) | (ids >= vocabulary_size)][0].item()
        raise ArgumentError(
            f"{name} must be in [0, {vocabulary_size}), got {wrong}. Check the tokenizer against "
            "the model's vocabulary size."
        )
