"""Training rows and the batches that a model eats.

Invariants:

* A `TrainRow` holds NumPy arrays and image *keys*, never pixels: it is cheap to send to every rank.
* Position `t` of `loss_mask`, `behavior_logprobs`, `advantages` and `versions` speaks of
  the token at index `t` of `input_ids`, which the model predicts from index `t - 1`. The first
  token of a row has no predecessor and can't be trainable.
* A `Batch` names, for each trainable token of its rows in order, where this token lies in the
  model's own `input_ids`; images may have widened the text in between.

Legend: B rows, T tokens of a row, N trainable tokens of a batch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from awrl_trainer.errors import BatchError

_KIND_NAMES: Mapping[type, str] = {
    np.integer: "whole numbers",
    np.number: "numbers",
    object: "bool",
}
"""What the arrays of a row hold, by NumPy's name of the kind; a mask has a check of its own."""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class TrainRow:
    """One sequence to train on: a prompt, and the tokens that a policy sampled after it.

    Raises:
        BatchError: A field that is no NumPy array of its kind, arrays of unequal length, a mask that is not bool, a trainable first token, or a
            value at a trainable position that is not finite.
    """

    input_ids: npt.NDArray[np.int64]
    """Token ids `[T]`."""
    loss_mask: npt.NDArray[np.bool_]
    """True where the token was sampled by the policy and is trained on `[T]`."""
    behavior_logprobs: npt.NDArray[np.float32]
    """Log-prob of each token under the policy that sampled it, nats `[T]`; read at trainable
    positions only."""
    advantages: npt.NDArray[np.float32] | float
    """Advantage of each token `[T]`, or one for the whole row."""
    versions: npt.NDArray[np.int64] | None = None
    """Weight version that sampled each token `[T]`; None when it is not known."""
    image_keys: tuple[str, ...] = ()
    """Opaque keys of the row's images, in the order of their placeholders."""
    row_id: str = ""
    """Name of the row in errors."""
    group_id: str = ""
    """Name of the row's group of siblings."""
    prefix_id: str = ""
    """Rows of one non-empty prefix id are equal, images included, before their first trainable
    token: they may be computed together, the prefix once. Needs a `collate` that does so."""
    num_model_tokens: int | None = None
    """Tokens of the row in the model, images included; None when they are those of `input_ids`."""
    extras: Mapping[str, str] = field(default_factory=dict[str, str])
    """Anything that `collate` wants to know beside the tokens."""

    def __post_init__(self) -> None:
        name = self.row_id or "unnamed"
        self._check_types(name)
        length = len(self.input_ids)
        if self.loss_mask.dtype != np.bool_:
            raise BatchError(
                f"loss_mask of row {name!r} must be bool, got {self.loss_mask.dtype}."
                " Build it with a comparison; advantages belong in `advantages`."
            )
        sized: dict[str, npt.NDArray[Any]] = {
            "input_ids": self.input_ids,
            "loss_mask": self.loss_mask,
            "behavior_logprobs": self.behavior_logprobs,
        }
        if isinstance(self.advantages, np.ndarray):
            sized["advantages"] = self.advantages
        if self.versions is not None:
            sized["versions"] = self.versions
        for what, values in sized.items():
            if values.shape != (length,):
                raise BatchError(
                    f"{what} of row {name!r} must have shape [{length}] like input_ids, got"
                    f" {list(values.shape)}. Give one value for each token."
                )
        if length and self.loss_mask[0]:
            raise BatchError(
                f"loss_mask of row {name!r} must be False for the first token, got True."
                " Nothing precedes it, so no model predicts it."
            )
        for what in ("behavior_logprobs", "advantages"):
            self._check_finite(what, np.asarray(getattr(self, what)), name)

    def _check_types(self, name: str) -> None:
        kinds: dict[str, type] = {
            "input_ids": np.integer,
            "loss_mask": object,
            "behavior_logprobs": np.number,
        }
        if self.versions is not None:
            kinds["versions"] = np.integer
        if not isinstance(self.advantages, (int, float, np.number)):
            kinds["advantages"] = np.number
        for what, kind in kinds.items():
            value = getattr(self, what)
            if isinstance(value, np.ndarray) and (
                kind is object or not value.size or np.issubdtype(value.dtype, kind)
            ):
                continue
            got = value.dtype if isinstance(value, np.ndarray) else type(value).__name__
            raise BatchError(
                f"{what} of row {name!r} must be a NumPy array of {_KIND_NAMES[kind]}, got {got}."
                " Make it with np.asarray(values, dtype=...)."
            )

    def _check_finite(self, what: str, values: npt.NDArray[np.float32], name: str) -> None:
        chosen = values[self.loss_mask] if values.ndim else values
        if not np.isfinite(chosen).all():
            raise BatchError(
                f"{what} of row {name!r} must be finite at trainable tokens, got"
                f" {chosen[~np.isfinite(chosen)] if values.ndim else chosen}. Drop the row."
            )

    @property
    def num_trainable_tokens(self) -> int:
        """Tokens that carry loss."""
        return int(np.count_nonzero(self.loss_mask))

    @property
    def num_suffix_tokens(self) -> int:
        """Tokens from the first trainable one to the end; 0 without trainable tokens."""
        return len(self.input_ids) - int(self.loss_mask.argmax()) if self.loss_mask.any() else 0

    @property
    def cost_tokens(self) -> int:
        """Tokens that the model computes for this row."""
        return self.num_model_tokens or len(self.input_ids)

    @property
    def has_images(self) -> bool:
        """Whether the vision tower runs for this row."""
        return bool(self.image_keys)

    def oldest_version(self) -> int | None:
        """Return the oldest version among the trainable tokens, None when unknown."""
        if self.versions is None or not self.loss_mask.any():
            return None
        return int(self.versions[self.loss_mask].min())


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Batch:
    """What `collate` makes of a few rows.

    Tensors may lie on the CPU: the actor moves them to its device.
    """

    kwargs: Mapping[str, Tensor]
    """Keyword arguments of the model's forward. `input_ids` `[B, T]` must be among them (`[1, sum T]`
    when packed)."""
    token_positions: Tensor
    """Flat index into `input_ids` of each trainable token, int64 `[N]`: rows in the order given to
    `collate`, tokens in rising order."""
    source_positions: Tensor | None = None
    """Flat index of the hidden state that predicts each trainable token, int64 `[N]`; None means one
    to the left of the token. Differs where several suffixes follow one shared prefix."""

    @property
    def sources(self) -> Tensor:
        """Flat index of the predicting hidden state of each trainable token, int64 `[N]`."""
        if self.source_positions is None:
            return self.token_positions - 1
        return self.source_positions


Collate = Callable[[Sequence[TrainRow]], Batch]
"""Turns rows into a `Batch`; called once per micro-batch, so pixels are fetched lazily in here."""


def check_rows(
    rows: Sequence[TrainRow],
    *,
    version: int,
    masked_token_ids: Sequence[int],
    needs_versions: bool = False,
) -> None:
    """Check what every rank can see alone, before any collective.

    Args:
        masked_token_ids: Ids that the sampler never draws.
        needs_versions: Whether the loss asks which version sampled each trainable token.

    Raises:
        BatchError: No rows; a trainable token that can't have been sampled; a version from the
            future, or none where it is needed; two rows of one prefix id that begin differently.
    """
    if not rows:
        raise BatchError("rows must not be empty, got none. Skip the update instead.")
    masked = np.asarray(masked_token_ids, dtype=np.int64)
    for row in rows:
        chosen = row.input_ids[row.loss_mask]
        wrong = chosen[np.isin(chosen, masked)]
        if wrong.size:
            raise BatchError(
                f"trainable tokens of row {row.row_id!r} must not be masked ids, got {int(wrong[0])}."
                " Mask the same ids in the sampler and in LossConfig.masked_token_ids."
            )
        if row.versions is not None and bool((row.versions[row.loss_mask] > version).any()):
            raise BatchError(
                f"versions of row {row.row_id!r} must be <= {version}, the policy's, got"
                f" {int(row.versions[row.loss_mask].max())}. After a resume, give rollouts the"
                " trainer's version first."
            )
        oldest = row.oldest_version()
        if needs_versions and row.num_trainable_tokens and (oldest is None or oldest < 0):
            raise BatchError(
                f"versions of row {row.row_id!r} must be known and >= 0 at trainable tokens, got"
                f" {oldest}. Give each token's version, or take proximal_method 'recompute'."
            )
    _check_prefixes(rows)


def check_token_ids(rows: Sequence[TrainRow], num_token_ids: int) -> None:
    """Check that a policy of so many token ids can read every row.

    Raises:
        BatchError: A token id that the policy has no embedding for.
    """
    for row in rows:
        wrong = row.input_ids[(row.input_ids < 0) | (row.input_ids >= num_token_ids)]
        if wrong.size:
            raise BatchError(
                f"input_ids of row {row.row_id!r} must be between 0 and {num_token_ids - 1}, the"
                f" policy's, got {int(wrong[0])}. Encode it with the tokenizer of this policy."
            )


def _check_prefixes(rows: Sequence[TrainRow]) -> None:
    """Check that rows of one prefix id are equal before their first trainable token."""
    firsts: dict[str, TrainRow] = {}
    for row in rows:
        if not row.prefix_id or not row.num_suffix_tokens:
            continue
        first = firsts.setdefault(row.prefix_id, row)
        prefix, other = (each.input_ids[: -each.num_suffix_tokens] for each in (row, first))
        if not np.array_equal(prefix, other) or row.image_keys != first.image_keys:
            what = "other images" if np.array_equal(prefix, other) else "another beginning"
            raise BatchError(
                f"rows of prefix_id {row.prefix_id!r} must be equal before their first trainable"
                f" token, images included, got {what} in row {row.row_id!r} than in row"
                f" {first.row_id!r}. Their prefix is computed once: give each its own id, or none."
            )


def check_batch(batch: Batch, rows: Sequence[TrainRow]) -> Tensor:
    """Check that a batch speaks of exactly the trainable tokens of its rows.

    Args:
        batch: What `collate` returned for `rows`.

    Returns:
        The ids of the trainable tokens, int64 `[N]`.

    Raises:
        BatchError: A missing `input_ids`, a position outside of it, or other token ids than the
            rows hold: the batch would pair log-probs with the wrong tokens.
    """
    if "input_ids" not in batch.kwargs:
        raise BatchError(
            "kwargs of a batch must hold 'input_ids', got "
            f"{sorted(batch.kwargs)}. Return it from collate."
        )
    flat_ids = batch.kwargs["input_ids"].reshape(-1).cpu()
    positions = batch.token_positions.cpu()
    wanted = np.concatenate([row.input_ids[row.loss_mask] for row in rows]) if rows else np.empty(0)
    if positions.shape != (len(wanted),):
        raise BatchError(
            f"token_positions must have shape [{len(wanted)}], one for each trainable token, got"
            f" {list(positions.shape)}. Keep the order of rows and tokens in collate."
        )
    sources = batch.sources.cpu()
    if sources.shape != positions.shape or bool((sources >= positions).any() | (sources < 0).any()):
        raise BatchError(
            "source_positions must lie before their tokens, one for each, got"
            f" {sources.tolist()[:8]} for tokens at {positions.tolist()[:8]}. A token can't predict"
            " itself."
        )
    if len(wanted) and (int(positions.min()) < 1 or int(positions.max()) >= flat_ids.numel()):
        raise BatchError(
            f"token_positions must lie in 1..{flat_ids.numel() - 1}, got"
            f" {int(positions.min())}..{int(positions.max())}. Count in the flattened input_ids."
        )
    labels = flat_ids[positions]
    differs = torch.nonzero(labels != torch.from_numpy(wanted.astype(np.int64)))
    if differs.numel():
        first = int(differs[0, 0])
        raise BatchError(
            f"input_ids at token_positions must be the rows' trainable tokens, got"
            f" {int(labels[first])} for {int(wanted[first])} at trainable token {first} of rows"
            f" {[row.row_id for row in rows][:4]}. Check the expansion of image placeholders."
        )
    return labels
