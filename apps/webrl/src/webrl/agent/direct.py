"""The agent `direct`: one action a reply and nothing else, for policies that were taught no more.

Invariant: the text is the same for every checkpoint; how roles and images are marked is the chat
template's affair. The tiny policy's template leaves out the system turn, which explains the action
grammar to models that were not warmed up on it.
"""

from __future__ import annotations

from collections.abc import Sequence

from webrl.actions import ActionMode, format_action, show_action
from webrl.agent.history import PolicyPrompt, Scene
from webrl.agent.instructions import MARKS_SYSTEM_PROMPT, SYSTEM_PROMPT
from webrl.agent.protocol import ChatTokens, ThinkingMode
from webrl.agent.readers import read_direct
from webrl.agent.reply import Decision, written
from webrl.agent.texts import action_lines, user_text
from webrl.config import AgentSection
from webrl.errors import PolicyError


class DirectAgent:
    """Shows goal, previous actions and screenshots; reads one action.

    Args:
        section: How much it tells.
        mode: How an action says where.
        max_tokens: Most tokens of a prompt, images included; None for no bound.
    """

    def __init__(
        self,
        section: AgentSection,
        tokens: ChatTokens,
        *,
        mode: ActionMode = "coordinates",
        max_tokens: int | None = None,
    ) -> None:
        self._section = section
        self._tokens = tokens
        self._mode: ActionMode = mode
        self._max_tokens = max_tokens

    def prompt(self, scene: Scene) -> PolicyPrompt:
        """Return the prompt of the next step, within the budget.

        Where it is too long, the older half of the actions is left out, or the latter half of the
        elements if these are longer, again and again; at last the older screenshots.

        Raises:
            PolicyError: Goal and newest screenshot alone are too much.
        """
        previous = [
            action_lines(show_action(turn.decision.action), turn.events) for turn in scene.turns
        ]
        if scene.start_events:
            previous.insert(0, action_lines("the page opened", scene.start_events))
        num_actions = self._section.history.num_actions
        if num_actions is not None:
            previous = previous[max(0, len(previous) - num_actions) :]
        numbered = None if scene.elements is None else list(scene.elements)
        num_images = min(self._section.images, len(scene.sizes))
        while True:
            ids = self._ids(scene.goal, previous, num_images, numbered)
            sizes = scene.sizes[-num_images:]
            num_tokens = len(ids) + sum(self._tokens.num_image_tokens(*s) - 1 for s in sizes)
            if self._max_tokens is None or num_tokens <= self._max_tokens:
                return PolicyPrompt(ids=ids, num_images=num_images)
            length = len("".join(previous))
            if numbered and len("".join(numbered)) >= length:
                numbered = numbered[: len(numbered) // 2]
            elif previous:
                previous = previous[len(previous) // 2 + len(previous) % 2 :]
            elif num_images > 1:
                num_images -= 1
            else:
                raise PolicyError(
                    f"goal and images must fit into {self._max_tokens} tokens beside the answer, got "
                    f"{num_tokens}. Raise inference.context_length, or shorten the goal."
                )

    def _ids(
        self,
        goal: str,
        previous: Sequence[str],
        num_images: int,
        elements: Sequence[str] | None,
    ) -> list[int]:
        messages = direct_chat(goal, previous, num_images, elements)
        thinking: ThinkingMode = self._section.thinking
        return self._tokens.chat_ids(messages, thinking=thinking)

    def read(self, reply: str, *, is_cut: bool = False) -> Decision:
        """Return the one action of a reply; a cut one says so itself."""
        return read_direct(reply, self._mode)

    def write(self, decision: Decision) -> str:
        """Return the reply that reads as `decision`."""
        return format_action(written(decision))


def direct_chat(
    goal: str,
    previous_actions: Sequence[str],
    num_images: int,
    elements: Sequence[str] | None = None,
) -> list[dict[str, object]]:
    """Return chat messages: system turn, then goal, previous actions and images, in this order.

    The text comes before the images so that a causal model reads the page knowing the goal.
    """
    text = user_text(goal, previous_actions, elements)
    content: list[dict[str, str]] = [{"type": "text", "text": text}]
    content += [{"type": "image"}] * num_images
    system = SYSTEM_PROMPT if elements is None else MARKS_SYSTEM_PROMPT
    return [
        {"role": "system", "content": [{"type": "text", "text": system}]},
        {"role": "user", "content": content},
    ]
