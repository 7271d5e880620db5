"""The model as the trainer calls it: log-probs of chosen tokens, never a full `[T, V]` of logits.

Invariant: the vocabulary head runs on hidden states of trainable tokens only. The module is the root
of the sharding, so that its forward is the one that gathers the root's parameters.

Legend: B rows, T tokens, N trainable tokens, H hidden size, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple, Protocol, cast

import torch
from awrl_ppo_loss import logprobs_from_logits
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

__all__ = ["PolicyModule", "SplitModel", "TokenStatistics"]


class TokenStatistics(NamedTuple):
    """What the policy says about trainable tokens, float32 `[N]` each."""

    logprobs: Tensor
    """Log-prob of the token, nats."""

    entropy: Tensor
    """Entropy of the distribution that it was drawn from, nats."""


class SplitModel(Protocol):
    """A model that is not from transformers says so which part is its vocabulary head."""

    def backbone(self, **kwargs: Tensor) -> Tensor:
        """Return the last hidden states `[B, T, H]`."""
        ...

    def head(self, hidden: Tensor) -> Tensor:
        """Return logits `[..., V]` of hidden states `[..., H]`."""
        ...


class PolicyModule(nn.Module):
    """Wraps a causal or image-text model of transformers, or a `SplitModel`.

    Args:
        model: A transformers model with a language head, or a module with `backbone` and `head`.
        temperature: Divisor of the logits.
        masked_token_ids: Ids that take no part in the softmax.
        num_head_tokens: Tokens whose logits are alive at once.

    Raises:
        ValueError: A model that post-processes its logits in a way that the wrapper would skip.
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        temperature: float = 1.0,
        masked_token_ids: tuple[int, ...] = (),
        num_head_tokens: int = 4096,
    ) -> None:
        super().__init__()
        self.model = model
        self._temperature = temperature
        self._masked_token_ids = masked_token_ids
        self._num_head_tokens = num_head_tokens
        self._is_split = hasattr(model, "backbone") and hasattr(model, "head")
        if not self._is_split:
            _refuse_processed_logits(model)

    def forward(
        self, kwargs: Mapping[str, Tensor], sources: Tensor, labels: Tensor
    ) -> TokenStatistics:
        """Return log-probs and entropies of the chosen tokens.

        Args:
            kwargs: The model's keyword arguments, `input_ids` `[B, T]` among them.
            sources: Flat positions of the hidden states that predict the tokens, int64 `[N]`.
            labels: Ids of these tokens, int64 `[N]`.

        Returns:
            Statistics, float32 `[N]`.
        """
        hidden = self._hidden_states(kwargs)
        chosen = hidden.reshape(-1, hidden.shape[-1])[sources]
        parts = [
            self._head_part(part, ids)
            for part, ids in zip(
                chosen.split(self._num_head_tokens),
                labels.split(self._num_head_tokens),
                strict=True,
            )
        ]
        return TokenStatistics(*(torch.cat(column) for column in zip(*parts, strict=True)))

    def _hidden_states(self, kwargs: Mapping[str, Tensor]) -> Tensor:
        if self._is_split:
            return cast("SplitModel", self.model).backbone(**kwargs)
        backbone = cast("nn.Module", self.model.base_model)
        output = backbone(**kwargs, use_cache=False, return_dict=True)
        return output.last_hidden_state

    def _logits(self, hidden: Tensor) -> Tensor:
        if self._is_split:
            return cast("SplitModel", self.model).head(hidden)
        return cast("Callable[[], nn.Module]", self.model.get_output_embeddings)()(hidden)

    def _head_part(self, hidden: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        """Return log-probs and entropies of at most `num_head_tokens` tokens."""

        def compute(states: Tensor) -> tuple[Tensor, Tensor]:
            return logprobs_from_logits(
                self._logits(states),
                labels,
                temperature=self._temperature,
                masked_token_ids=self._masked_token_ids,
                with_entropy=True,
            )

        if torch.is_grad_enabled() and len(labels) == self._num_head_tokens:
            # A full chunk means that there are more: keep hidden states, not logits.
            return cast("tuple[Tensor, Tensor]", checkpoint(compute, hidden, use_reentrant=False))
        return compute(hidden)


def _refuse_processed_logits(model: nn.Module) -> None:
    config = getattr(model, "config", None)
    text = getattr(config, "text_config", None) or config
    for name in ("final_logit_softcapping", "logit_scale", "logits_scaling"):
        value = getattr(text, name, None)
        if value not in (None, 1.0):
            raise ValueError(
                f"{name} of the model's config must be unset, got {value!r}."
                " Give the model `backbone` and `head` methods that apply it."
            )
