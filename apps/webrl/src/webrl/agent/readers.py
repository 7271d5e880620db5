"""From a reply to a `Decision`, one reader for each format.

Invariants:

* total: every string is read, and nothing raises;
* one action or none: two that differ are a reason, never a choice of ours;
* the reason is in words that the policy is told in its next prompt.
"""

from __future__ import annotations

import re

from webrl.actions import ActionMode, RejectedReply, parse_action, parse_tool_call
from webrl.agent.loose_call import read_loosely, read_tool_calls
from webrl.agent.reply import Decision, undecided, without_thinking
from webrl.agent.sections import split_sections

_FORM = re.compile(
    r"<thought>.+?</thought>\s*(?:<memory>.*?</memory>\s*)?<action>.+?</action>", re.DOTALL
)
"""How a reply with sections is written."""
_CALL = re.compile(r"<tool_call>|<function=|<\|tool_call", re.IGNORECASE)
_BARE = re.compile(r"\{\s*[\"'](?:name|action|function|arguments)[\"']\s*:")
"""Where an object begins that looks like a call without its tags."""
_PREFIX = re.compile(
    r"\A(?:\*\*)?(?:Action|Thought|动作|思考)(?:\*\*)?[ \t]*[:\uff1a][ \t]*(?:\*\*)?", re.IGNORECASE
)


def read_direct(reply: str, mode: ActionMode = "coordinates") -> Decision:
    """Return the reading of a reply that is to be one action and nothing else."""
    return Decision(action=parse_action(reply, mode))


def read_reasoning(
    reply: str, mode: ActionMode = "coordinates", *, is_thinking: bool = False
) -> Decision:
    """Return the reading of a reply with thought, memory and action in sections.

    Args:
        is_thinking: Whether the prompt ended with `<think>`.
    """
    thought, memory = "", None
    try:
        text = without_thinking(reply, is_opened=is_thinking)
        sections = split_sections(text)
        thought = "\n".join(sections.thoughts)
        memory = "\n".join(sections.memories) if sections.memories else None
        if len(set(sections.actions)) > 1:
            raise RejectedReply("reply must hold one action, got several")
        body = sections.actions[0] if sections.actions else sections.rest
        if not body:
            raise RejectedReply("reply must hold an action, got none")
        action, is_strict = read_loosely(body, mode)
    except RejectedReply as error:
        return undecided(reply, str(error), thought=thought, memory=memory)
    return Decision(
        action=action,
        thought=thought,
        memory=memory,
        is_in_form=is_strict and _FORM.fullmatch(text) is not None,
    )


def read_tool_call(
    reply: str, mode: ActionMode = "coordinates", *, is_thinking: bool = False
) -> Decision:
    """Return the reading of a reply with one call of a tool, and what it says before it.

    Args:
        is_thinking: Whether the prompt ended with `<think>`.
    """
    thought = ""
    try:
        text = without_thinking(reply, is_opened=is_thinking)
        call, bare = _CALL.search(text), _BARE.search(text)
        if call is not None:
            thought = _said(text[: call.start()])
            action = read_tool_calls(text[call.start() :], mode)
            is_closed = text.lower().endswith("</tool_call>")
            return Decision(action=action, thought=thought, is_in_form=is_closed)
        if bare is not None:
            thought = _said(text[: bare.start()])
            action = parse_tool_call(_json_of(text[bare.start() :]), mode)
        else:
            actions = split_sections(text).actions
            action, _ = read_loosely(actions[-1] if actions else text, mode)
    except RejectedReply as error:
        return undecided(reply, str(error), thought=thought)
    return Decision(action=action, thought=thought, is_in_form=False)


def _said(text: str) -> str:
    """Return what a reply says before its call."""
    return _PREFIX.sub("", text.strip().removesuffix("```json").strip("` \n")).strip()


def _json_of(text: str) -> str:
    """Return the text of the object at the start, with what closes it."""
    end = max(text.rfind("}"), text.rfind("]"), text.rfind('"'))
    return text[: end + 1]
