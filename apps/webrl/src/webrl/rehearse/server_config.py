"""What a server without a model is told at its start."""

from __future__ import annotations

from dataclasses import dataclass

from webrl.embedded.config import EmbeddedServerConfig


@dataclass(frozen=True, kw_only=True, slots=True)
class RehearsedServerConfig(EmbeddedServerConfig):
    """Settings of a server without a model.

    Raises:
        ValueError: A field breaks its rule; the message names it.
    """

    token_s: float = 0.01
    """Seconds of one decode step, in which every running request gets a token."""
    prefill_s: float = 0.05
    """Seconds that the prefill of one prompt holds all others up."""
    saturation: int = 16
    """Running requests up to which a step takes `token_s`; with twice as many it takes twice as long."""
    thought_tokens: int = 48
    """Mean number of tokens before the action of an answer."""
    answer_share: float = 0.25
    """Share of the actions that end their episode with an answer."""

    def __post_init__(self) -> None:
        # The base's own, by name: a dataclass with slots is made anew, and `super` finds the old one.
        EmbeddedServerConfig.__post_init__(self)
        for name in ("token_s", "prefill_s", "thought_tokens"):
            if not getattr(self, name) >= 0:
                raise ValueError(f"{name} must be >= 0, got {getattr(self, name)}. Raise it.")
        if self.saturation < 1:
            raise ValueError(f"saturation must be >= 1, got {self.saturation}. Raise it.")
        if not 0 <= self.answer_share <= 1:
            raise ValueError(f"answer_share must be in [0, 1], got {self.answer_share}. Use 0.25.")
