"""The agent `tool_call`: one call of Qwen's tools a reply, in the checkpoint's own chat template.

Invariants:

* tools go to the template as tools, and calls of earlier turns as calls, so that the model reads
  what it was trained on;
* turns whose screenshots are in the window are turns of the chat; older ones are lines of its first.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cached_property
from typing import Any

from webrl.actions import InvalidAction
from webrl.agent.history import Scene, Turn
from webrl.agent.instructions import tool_instructions
from webrl.agent.readers import read_tool_call
from webrl.agent.reply import Decision, cut_short, without_tags, written
from webrl.agent.texts import (
    earlier_lines,
    element_lines,
    outcome_lines,
    page_lines,
    thought_text,
)
from webrl.agent.tools import call_of, tool_schemas
from webrl.agent.within_budget import AgentWithinBudget
from webrl.plain_text import plain


class ToolCallAgent(AgentWithinBudget):
    """Shows a chat of screenshots and calls; reads one call of a tool."""

    @cached_property
    def _tools(self) -> list[dict[str, Any]]:
        return tool_schemas(self._mode)

    def _ids(self, scene: Scene, num_images: int) -> list[int]:
        num_told = min(num_images - 1, len(scene.turns))
        first = len(scene.turns) - num_told
        num_thoughts = self._section.history.num_thoughts
        lines = [f"Goal: {plain(scene.goal)}", *earlier_lines(scene, first, num_thoughts)]
        images = [{"type": "image"}] * (num_images - num_told)
        messages: list[dict[str, Any]] = [
            {"role": "system", "content": tool_instructions(self._mode)},
            _user("\n".join(lines) + "\n", images),
        ]
        for index, turn in enumerate(scene.turns[first:], first):
            is_thought = len(scene.turns) - index <= num_thoughts
            messages += self._turn(turn, with_thought=is_thought)
        page = page_lines(scene.url, scene.steps_left) + element_lines(scene.elements)
        messages[-1]["content"].append({"type": "text", "text": "\n".join(["", *page])})
        return self._tokens.chat_ids(messages, tools=self._tools, thinking=self._section.thinking)

    def _turn(self, turn: Turn, *, with_thought: bool) -> list[dict[str, Any]]:
        """Return an earlier call, what came back, and the screenshot after it."""
        decision = turn.decision
        said = thought_text(decision.thought) if with_thought else ""
        outcome = "\n".join(outcome_lines(turn)) or "done"
        picture = _user("", [{"type": "image"}])
        if isinstance(decision.action, InvalidAction):
            said = said or "(no call)"
            return [
                {"role": "assistant", "content": said},
                _user(f"{outcome}\n", [{"type": "image"}]),
            ]
        name, arguments = call_of(decision.action)
        function = {"name": name, "arguments": _plain_values(arguments)}
        call = {"type": "function", "function": function}
        return [
            {"role": "assistant", "content": said, "tool_calls": [call]},
            {"role": "tool", "content": outcome},
            picture,
        ]

    def read(self, reply: str, *, is_cut: bool = False) -> Decision:
        """Return the one call of a reply, and what it says before it."""
        decision = read_tool_call(reply, self._mode, is_thinking=self._is_thinking)
        return cut_short(decision, reply) if is_cut else decision

    def write(self, decision: Decision) -> str:
        """Return the reply that reads as `decision`."""
        name, arguments = call_of(written(decision))
        call = without_tags(json.dumps({"name": name, "arguments": arguments}, ensure_ascii=False))
        said = f"{decision.thought}\n" if decision.thought else ""
        return f"{said}<tool_call>\n{call}\n</tool_call>"


def _user(text: str, images: list[dict[str, str]]) -> dict[str, Any]:
    content = [{"type": "text", "text": text}] if text else []
    return {"role": "user", "content": [*content, *images]}


def _plain_values(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return arguments without mark-up in them: what was typed spells no special token."""
    return {
        name: plain(value)
        if isinstance(value, str)
        else [plain(item) if isinstance(item, str) else item for item in value]
        if isinstance(value, list)
        else value
        for name, value in arguments.items()
    }
