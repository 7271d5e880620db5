r"""The one parser of policy replies.

Invariants:

* total: every string gives an `Action` or an `InvalidAction`, and nothing raises;
* exact: the action is the whole reply, or all of what a model puts its decision into: the text after
  `</think>` or after the last line start `Action:`, the one code fence, the one `<tool_call>`. With
  a second action there, or with words after the call, it is invalid, so that a policy can not hedge;
* integers are decimal digits (leading zeros allowed), strings are JSON strings.

Grammar: `name(argument, ...)` where blanks around every part and brackets around numbers do not
matter, or the JSON of a tool call, as Qwen's models are taught: `{"name": ..., "arguments": {...}}`.
"""

from __future__ import annotations

import json
import re

from webrl.actions.action import Action, ActionMode, InvalidAction
from webrl.actions.build import (
    EXAMPLES,
    Argument,
    RejectedReply,
    build_action,
    checked_text,
    checked_verb,
)
from webrl.actions.tool_call import parse_tool_call

_SHOWN_LENGTH = 200
"""Characters of a reply that an `InvalidAction` keeps."""

_CALL = re.compile(r"([a-z_]{1,32})\s*\((.*)\)", re.DOTALL)
_ARGUMENT = re.compile(r'\s*(?:(-?[0-9]{1,6})|("(?:[^"\\]|\\.)*"))\s*(,|\Z)', re.DOTALL)
_PREFIX = re.compile(r"^[ \t]*Action[ \t]*:", re.MULTILINE)
_BRACKETS = re.compile(r"[(\[]\s*(-?[0-9]{1,6}(?:\s*,\s*-?[0-9]{1,6})*)\s*[)\]]")
_FENCE = "```"
_TOOL_CALL = "<tool_call>"


def parse_action(text: str, mode: ActionMode = "coordinates") -> Action | InvalidAction:
    """Return the action that `text` spells, or an `InvalidAction` that says why it spells none.

    Args:
        text: A policy's reply, decoded, without its end token.

    Returns:
        The action, or `InvalidAction(text, reason)`.
    """
    try:
        return read_call(text.strip(), mode)
    except RejectedReply:
        pass  # not an action as it stands: look at what the reply puts forward as one
    try:
        body = _decision(text)
        if body.startswith(("{", "<function=")):
            return parse_tool_call(body, mode)
        return read_call(body, mode)
    except RejectedReply as error:
        return invalid_action(text, str(error))


def invalid_action(reply: str, reason: str) -> InvalidAction:
    """Return the record of a reply that is no action, cut to what is kept of it."""
    return InvalidAction(text=reply[:_SHOWN_LENGTH], reason=reason)


def _decision(text: str) -> str:
    """Return the part of a reply that is meant as its action."""
    body = text.rpartition("</think>")[2]
    _, call, rest = body.partition(_TOOL_CALL)
    if call:
        if _TOOL_CALL in rest:
            raise RejectedReply("reply must hold one tool call, got several")
        return rest.partition("</tool_call>")[0].strip()
    prefixes = list(_PREFIX.finditer(body))
    if prefixes:
        body = body[prefixes[-1].end() :]
    parts = body.split(_FENCE)
    if len(parts) == 3:  # before, inside, after
        first, line_end, rest = parts[1].partition("\n")
        is_language = bool(line_end) and first.strip().isalnum()
        body = rest if is_language else parts[1]
    return body.strip().strip("`").strip()


def read_call(body: str, mode: ActionMode) -> Action:
    """Return the action that a text is in full: `name(argument, ...)`.

    Raises:
        RejectedReply: It is none.
    """
    call = _CALL.fullmatch(body)
    if call is None:
        raise RejectedReply(f"reply must be one action such as {EXAMPLES[mode]}")
    name = call.group(1)
    checked_verb(name, mode)
    return build_action(name, _parse_arguments(name, call.group(2)), mode)


def _parse_arguments(name: str, text: str) -> list[Argument]:
    if '"' not in text:
        text = _BRACKETS.sub(r"\1", text)
    arguments: list[Argument] = []
    position, is_last = 0, not text.strip()
    while not is_last:
        match = _ARGUMENT.match(text, position)
        if match is None:
            raise RejectedReply(f"arguments of {name} must be whole numbers or quoted strings")
        number, string, separator = match.groups()
        arguments.append(int(number) if number is not None else _parse_string(name, string))
        position, is_last = match.end(), separator != ","
    return arguments


def _parse_string(name: str, literal: str) -> str:
    try:
        value = json.loads(literal, strict=False)
    except ValueError as error:
        raise RejectedReply(f"string of {name} must be a JSON string") from error
    return checked_text(name, value)
