"""The agent `reasoning`: thought, memory and one action a reply, in sections.

Invariants:

* a prompt is one user turn, so that no part of an earlier reply is repeated but what was read in it;
* the memory is the policy's own: what it wrote last is told before each step until it writes anew.
"""

from __future__ import annotations

from webrl.actions import ActionMode, format_action
from webrl.agent.budget import prompt_within
from webrl.agent.history import PolicyPrompt, Scene
from webrl.agent.instructions import reasoning_instructions
from webrl.agent.protocol import ChatTokens
from webrl.agent.readers import read_reasoning
from webrl.agent.reply import Decision, cut_short, without_tags, written
from webrl.agent.texts import element_lines, memory_text, page_lines, turn_lines
from webrl.config import AgentSection
from webrl.plain_text import plain, plain_line


class ReasoningAgent:
    """Shows goal, page, memory and steps so far; reads thought, memory and one action.

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
        self._system = reasoning_instructions(mode, section.history.memory_chars)

    def prompt(self, scene: Scene) -> PolicyPrompt:
        """Return the prompt of the next step, within the budget.

        Raises:
            PolicyError: Goal, newest screenshot and memory alone are too much.
        """
        return prompt_within(scene, self._section, self._tokens, self._max_tokens, self._ids)

    def _ids(self, scene: Scene, num_images: int) -> list[int]:
        history = self._section.history
        lines = [f"Goal: {plain(scene.goal)}", *page_lines(scene.url, scene.steps_left)]
        if memory := memory_text(scene.memory, history.memory_chars):
            lines += ["Memory:", memory]
        entries = [
            turn_lines(turn, with_thought=index < history.num_thoughts)
            for index, turn in enumerate(reversed(scene.turns))
        ][::-1]
        if scene.start_events:
            events = (f"  {plain_line(event)}" for event in scene.start_events)
            entries.insert(0, "\n".join(["the page opened", *events]))
        if entries:
            lines += ["Previous actions:", *entries]
        text = "\n".join([*lines, *element_lines(scene.elements)]) + "\n"
        messages = [
            {"role": "system", "content": [{"type": "text", "text": self._system}]},
            {
                "role": "user",
                "content": [{"type": "text", "text": text}, *[{"type": "image"}] * num_images],
            },
        ]
        return self._tokens.chat_ids(messages, thinking=self._section.thinking)

    def read(self, reply: str, *, is_cut: bool = False) -> Decision:
        """Return thought, memory and the one action of a reply."""
        decision = read_reasoning(reply, self._mode, is_thinking=self._is_thinking)
        return cut_short(decision, reply) if is_cut else decision

    def write(self, decision: Decision) -> str:
        """Return the reply that reads as `decision`."""
        action = f"<action>{without_tags(format_action(written(decision)))}</action>"
        memory = "" if decision.memory is None else f"<memory>{decision.memory}</memory>\n"
        return f"<thought>{decision.thought}</thought>\n{memory}{action}"
