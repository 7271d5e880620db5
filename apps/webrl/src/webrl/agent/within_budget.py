"""What agents share whose prompts are cut by turns: their settings, and the budget."""

from __future__ import annotations

from abc import ABC, abstractmethod

from webrl.actions import ActionMode
from webrl.agent.budget import prompt_within
from webrl.agent.history import PolicyPrompt, Scene
from webrl.agent.protocol import ChatTokens
from webrl.config import AgentSection


class AgentWithinBudget(ABC):
    """Tells as much of a scene as fits.

    Args:
        section: How much it tells.
        mode: How an action says where.
        max_tokens: Most tokens of a prompt, images included; None for no bound.
        is_thinking: Whether the chat template opens a `<think>` block.
    """

    def __init__(
        self,
        section: AgentSection,
        tokens: ChatTokens,
        *,
        mode: ActionMode = "coordinates",
        max_tokens: int | None = None,
        is_thinking: bool = False,
    ) -> None:
        self._section = section
        self._tokens = tokens
        self._mode: ActionMode = mode
        self._max_tokens = max_tokens
        self._is_thinking = is_thinking

    def prompt(self, scene: Scene) -> PolicyPrompt:
        """Return the prompt of the next step, within the budget.

        Raises:
            PolicyError: Goal, newest screenshot and memory alone are too much.
        """
        return prompt_within(scene, self._section, self._tokens, self._max_tokens, self._ids)

    @abstractmethod
    def _ids(self, scene: Scene, num_images: int) -> list[int]:
        """Return the ids of all of a scene, with its newest images."""
