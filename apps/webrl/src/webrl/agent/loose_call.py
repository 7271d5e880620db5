"""The one call in a piece of text, as loosely as models write it.

Invariants:

* strict first: what the grammar takes as a whole is read by the grammar;
* of looser text there is one reading or none: with two calls that are not the same it is none, so
  that a policy can not hedge;
* nothing is completed: a call that has no closing bracket is none.
"""

from __future__ import annotations

import ast
import re
import warnings
from collections.abc import Sequence
from typing import Any

from webrl.actions import (
    ACTION_NAMES,
    Action,
    ActionMode,
    RejectedReply,
    action_of_call,
    build_action,
    parse_tool_call,
    read_call,
)

_WIDE = str.maketrans("\uff08\uff09\uff0c\uff1a\uff3b\uff3d\u3002\uff1b", "(),:[].;")
_STRING = re.compile(r'("(?:[^"\\]|\\.)*")', re.DOTALL)
_VERB = re.compile(rf"(?<![\w.])({'|'.join(ACTION_NAMES)}|click)[ \t]*\(")
_FENCE = re.compile(r"```[ \t]*(?:[A-Za-z_]+[ \t]*\n)?(.*?)(?:```|\Z)", re.DOTALL)
_TOOL_CALL = re.compile(
    r"<tool_calls?>|</tool_calls?>|<\|tool_calls?_(?:begin|end)\|>", re.IGNORECASE
)
_EDGE = " \t\r\n`*_.;\u3002\uff1b"


def read_loosely(text: str, mode: ActionMode) -> tuple[Action, bool]:
    """Return the one action of a text, and whether it was written as the grammar says.

    Raises:
        RejectedReply: There is none, or more than one.
    """
    body = text.strip()
    try:
        return read_call(body, mode), True
    except RejectedReply as error:
        first = error
    if _TOOL_CALL.search(body) or "<function=" in body:
        return read_tool_calls(body, mode), False
    blocks = [block.strip() for block in _FENCE.findall(body)]
    if blocks:
        body = "\n".join(blocks)
    body = body.strip(_EDGE)
    if body.startswith("{"):
        return parse_tool_call(body, mode), False
    narrow = _narrowed(body)
    calls = _calls(narrow)
    if not calls:
        raise first
    actions = [_read_one(call, mode) for call in calls]
    if any(action != actions[0] for action in actions):
        raise RejectedReply("reply must hold one action, got several")
    return actions[0], False


def read_tool_calls(text: str, mode: ActionMode) -> Action:
    """Return the one action of a text with tool calls between tags.

    Raises:
        RejectedReply: There is none, or more than one, or it has no end.
    """
    bodies = [
        body.strip().removeprefix("```json").strip("`").strip()
        for body in _TOOL_CALL.split(text)
        if "{" in body or "<function=" in body
    ]
    calls = [body for body in bodies if body.startswith(("{", "[", "<function="))]
    if not calls:
        raise RejectedReply("tool call must be a JSON object")
    actions = [parse_tool_call(call, mode) for call in calls]
    if len(actions) > 1:
        raise RejectedReply("reply must hold one tool call, got several")
    return actions[0]


def _narrowed(text: str) -> str:
    """Return `text` with full-width punctuation and curled quotes as the grammar has them."""
    parts = _STRING.split(text)
    parts[::2] = [re.sub("[\u201c\u201d\u201f\uff02]", '"', part) for part in parts[::2]]
    parts = _STRING.split("".join(parts))
    parts[::2] = [part.translate(_WIDE) for part in parts[::2]]
    return "".join(parts)


def _calls(text: str) -> Sequence[str]:
    """Return every whole call of a known verb, from its name to its closing bracket."""
    found: list[str] = []
    position = 0
    while (match := _VERB.search(text, position)) is not None:
        end = _end_of_call(text, match.end())
        if end is None:
            raise RejectedReply(f"{match.group(1)} must end with a closing bracket")
        found.append(text[match.start() : end])
        position = end
    return found


def _end_of_call(text: str, start: int) -> int | None:
    """Return the place behind the bracket that closes the one before `start`."""
    depth, quote, place = 1, "", start
    while place < len(text):
        character = text[place]
        if quote:
            if character == "\\":
                place += 1
            elif character == quote:
                quote = ""
        elif character in "\"'":
            quote = character
        elif character in "([":
            depth += 1
        elif character in ")]":
            depth -= 1
            if depth == 0:
                return place + 1
        place += 1
    return None


def _read_one(call: str, mode: ActionMode) -> Action:
    """Return the action of one call, by the grammar or else as Python has it."""
    call = re.sub(r"\Aclick\b", "left_click", call)
    try:
        return read_call(call, mode)
    except RejectedReply as error:
        first = error
    try:
        with warnings.catch_warnings():  # an escape that Python does not know is none of ours
            warnings.simplefilter("ignore")
            node = ast.parse(call.replace("\n", "\\n"), mode="eval").body
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Name):
            raise first
        values = [_literal(argument) for argument in node.args]
        named = {str(word.arg): _literal(word.value) for word in node.keywords}
    except (ValueError, SyntaxError, RecursionError, MemoryError, TypeError) as error:
        raise first from error
    if not named:
        return build_action(node.func.id, _flat(values, first), mode)
    if values:
        raise first
    return action_of_call(node.func.id, named, mode)


def _literal(node: ast.expr) -> Any:
    return ast.literal_eval(node)


def _flat(values: Sequence[Any], error: RejectedReply) -> list[int | str]:
    flat: list[int | str] = []
    for value in values:
        for item in value if isinstance(value, list | tuple) else (value,):  # pyright: ignore[reportUnknownVariableType]
            if not isinstance(item, int | str) or isinstance(item, bool):
                raise error
            flat.append(item)
    return flat
