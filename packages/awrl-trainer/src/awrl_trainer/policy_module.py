"""The model as the trainer calls it: log-probs of chosen tokens, never a full `[T, V]` of logits.

Invariant: the vocabulary head runs on hidden states of trainable tokens only. The module is the root
of the sharding, so that its forward is the one that gathers the root's parameters.

Legend: B rows, T tokens, N trainable tokens, H hidden size, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol, cast

from awrl_ppo_loss import TokenStatistics, logprobs_from_hidden
from torch import Tensor, nn


class SplitModel(Protocol):
    """A model that is not from transformers says so which part is its vocabulary head."""

    def backbone(self, **kwargs: Tensor) -> Tensor:
        """Return the last hidden states `[B, T, H]`."""
        ...

    @property
    def head(self) -> nn.Module:
        """Return the module that maps hidden states `[n, H]` to logits `[n, V]`."""
        ...


class PolicyModule(nn.Module):
    """Wraps a causal or image-text model of transformers, or a `SplitModel`.

    Args:
        model: A transformers model with a language head, or a module with `backbone`
            and `head`.
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
        return logprobs_from_hidden(
            hidden.reshape(-1, hidden.shape[-1])[sources],
            self._head(),
            labels,
            temperature=self._temperature,
            masked_token_ids=self._masked_token_ids,
            chunk_tokens=self._num_head_tokens,
        )

    @property
    def num_token_ids(self) -> int:
        """Token ids that the policy knows."""
        return int(cast("Tensor", self._head().weight).shape[0])

    def _hidden_states(self, kwargs: Mapping[str, Tensor]) -> Tensor:
        if self._is_split:
            return cast("SplitModel", self.model).backbone(**kwargs)
        backbone = cast("nn.Module", self.model.base_model)
        output = backbone(**kwargs, use_cache=False, return_dict=True)
        return output.last_hidden_state

    def _head(self) -> nn.Module:
        if self._is_split:
            return cast("SplitModel", self.model).head
        return cast("Callable[[], nn.Module]", self.model.get_output_embeddings)()


def _refuse_processed_logits(model: nn.Module) -> None:
    config = getattr(model, "config", None)
    text = getattr(config, "text_config", None) or config
    for name in ("final_logit_softcapping", "logit_scale", "logits_scaling"):
        value = getattr(text, name, None)
        if value not in (None, 1.0):
            raise ValueError(
                f"{name} of the model's config must be unset, got {value!r}."
                " Give the model a `backbone` method and a `head` module that apply it."
            )
