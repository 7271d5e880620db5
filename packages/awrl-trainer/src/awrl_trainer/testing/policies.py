"""Tiny causal policies with tied embeddings, whose tokens see their whole past.

What a row computes does not depend on the rows beside it.

Legend: B rows, T tokens, H hidden size, V vocabulary, P image patches.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn


class _Block(nn.Module):
    """Mixes each token with the mean of its past, then applies a small MLP."""

    def __init__(self, hidden_size: int) -> None:
        super().__init__()
        self.mix = nn.Linear(hidden_size, hidden_size)
        self.out = nn.Linear(hidden_size, hidden_size)

    def forward(self, hidden: Tensor) -> Tensor:
        counts = torch.arange(1, hidden.shape[1] + 1, device=hidden.device, dtype=hidden.dtype)
        past = hidden.cumsum(1) / counts[:, None]
        return hidden + self.out(torch.tanh(self.mix(past)))


class TinyPolicy(nn.Module):
    """A causal policy of a few thousand parameters; the head is tied to the embedding."""

    def __init__(
        self,
        *,
        vocabulary_size: int = 32,
        hidden_size: int = 16,
        num_blocks: int = 2,
        seed: int = 0,
    ) -> None:
        super().__init__()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self.embed = nn.Embedding(vocabulary_size, hidden_size)
            self.blocks = nn.ModuleList([_Block(hidden_size) for _ in range(num_blocks)])
            self.lm_head = nn.Linear(hidden_size, vocabulary_size, bias=False)
        self.lm_head.weight = self.embed.weight

    def backbone(self, *, input_ids: Tensor, **_: Tensor) -> Tensor:
        """Return hidden states `[B, T, H]`."""
        return self._run(self.embed(input_ids))

    @property
    def head(self) -> nn.Module:
        """Return the output layer."""
        return self.lm_head

    def _run(self, hidden: Tensor) -> Tensor:
        for block in self.blocks:
            hidden = block(hidden)
        return hidden


class TinyImagePolicy(TinyPolicy):
    """A `TinyPolicy` whose image tokens are replaced by features of a vision tower.

    Args:
        image_token_id: Id of image tokens; each takes the next patch.
    """

    def __init__(self, *, image_token_id: int = 31, patch_size: int = 6, seed: int = 0) -> None:
        super().__init__(seed=seed)
        self._image_token_id = image_token_id
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed + 1)
            self.patch_embed = nn.Linear(patch_size, self.embed.embedding_dim)
            self.vision = nn.ModuleList([_Block(self.embed.embedding_dim)])

    def backbone(
        self, *, input_ids: Tensor, pixel_values: Tensor | None = None, **_: Tensor
    ) -> Tensor:
        """Return hidden states `[B, T, H]`; `pixel_values` `[P, patch]` in the order of the text."""
        hidden = self.embed(input_ids)
        if pixel_values is not None:
            # Each patch is a sequence of its own: no row sees the images of another.
            features = self.patch_embed(pixel_values)[:, None]
            for block in self.vision:
                features = block(features)
            is_image = (input_ids == self._image_token_id)[..., None].expand_as(hidden)
            hidden = hidden.masked_scatter(is_image, features.to(hidden.dtype))
        return self._run(hidden)
