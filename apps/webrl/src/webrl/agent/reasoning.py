"""The agent `reasoning`: thought, memory and one action a reply, in sections.

Invariants:

* a prompt is one user turn, so that no part of an earlier reply is repeated but what was read in it;
* the memory is the policy's own: what it wrote last is told before each step until it writes anew.
"""

from __future__ import annotations

from functools import cached_property

from webrl.actions import format_action
from webrl.agent.history import Scene
from webrl.agent.instructions import reasoning_instructions
from webrl.agent.readers import read_reasoning
from webrl.agent.reply import Decision, cut_short, without_tags, written
from webrl.agent.texts import earlier_lines, element_lines, memory_text, page_lines
from webrl.agent.within_budget import AgentWithinBudget
from webrl.plain_text import plain


class ReasoningAgent(AgentWithinBudget):
    """Shows goal, page, memory and steps so far; reads thought, memory and one action."""

    @cached_property
    def _system(self) -> str:
        return reasoning_instructions(self._mode, self._section.history.memory_chars)

    def _ids(self, scene: Scene, num_images: int) -> list[int]:
        history = self._section.history
        lines = [f"Goal: {plain(scene.goal)}", *page_lines(scene.url, scene.steps_left)]
        if memory := memory_text(scene.memory, history.memory_chars):
            lines += ["Memory:", memory]
        lines += earlier_lines(scene, len(scene.turns), history.num_thoughts)
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
