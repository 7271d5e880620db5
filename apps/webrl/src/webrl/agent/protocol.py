"""What the workflow asks of an agent, and what an agent asks of the checkpoint's tokenizer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, Protocol, TypeAlias

from webrl.agent.history import PolicyPrompt, Scene
from webrl.agent.reply import Decision

ThinkingMode: TypeAlias = Literal["on", "off", "model"]
"""What a chat template is told of `enable_thinking`: true, false, or nothing."""

Message: TypeAlias = Mapping[str, Any]
"""One message of a chat, as chat templates take it."""


class ChatTokens(Protocol):
    """Chats as tokens of one checkpoint, such as a `PolicyProcessor`."""

    def chat_ids(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[Message] | None = None,
        thinking: ThinkingMode = "model",
    ) -> list[int]:
        """Return ids that end where the reply begins, one placeholder for each image."""
        ...

    def chat_text(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[Message] | None = None,
        thinking: ThinkingMode = "model",
    ) -> str:
        """Return the same as text."""
        ...

    def num_image_tokens(self, height: int, width: int) -> int:
        """Return how many tokens an image of this size in pixels becomes."""
        ...


class Agent(Protocol):
    """Turns an episode so far into a prompt, and a reply into a decision; keeps nothing."""

    def prompt(self, scene: Scene) -> PolicyPrompt:
        """Return the prompt of the next step, within the budget.

        Raises:
            PolicyError: Goal, newest screenshot and memory alone are too much.
        """
        ...

    def read(self, reply: str, *, is_cut: bool = False) -> Decision:
        """Return what a reply decides.

        Args:
            is_cut: Whether the reply has as many tokens as it may have, and no end.
        """
        ...

    def write(self, decision: Decision) -> str:
        """Return the reply that reads as `decision`: what a demonstration shows."""
        ...
