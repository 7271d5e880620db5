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
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias, cast

from webrl.actions.action import (
    ACTION_NAMES,
    GRID_SIZE,
    Action,
    ActionMode,
    Answer,
    ClickMark,
    DoubleClick,
    DoubleClickMark,
    Drag,
    DragMark,
    GoBack,
    Hover,
    HoverMark,
    InvalidAction,
    LeftClick,
    Navigate,
    Press,
    Scroll,
    ScrollMark,
    TypeText,
    Wait,
)
from webrl.actions.keys import canonical_key

MAX_TEXT_LENGTH = 4000
"""Characters of one string argument: a page's form field, not a document."""
_SHOWN_LENGTH = 200
"""Characters of a reply that an `InvalidAction` keeps."""

_CALL = re.compile(r"([a-z_]{1,32})\s*\((.*)\)", re.DOTALL)
_ARGUMENT = re.compile(r'\s*(?:(-?[0-9]{1,6})|("(?:[^"\\]|\\.)*"))\s*(,|\Z)', re.DOTALL)
_PREFIX = re.compile(r"^[ \t]*Action[ \t]*:", re.MULTILINE)
_BRACKETS = re.compile(r"[(\[]\s*(-?[0-9]{1,6}(?:\s*,\s*-?[0-9]{1,6})*)\s*[)\]]")
_FENCE = "```"
_TOOL_CALL = "<tool_call>"
_TOOL_VERBS = {
    "click": "left_click",
    "mouse_move": "hover",
    "left_click_drag": "drag",
    "key": "press",
    "terminate": "answer",
}
"""Verbs of Qwen's tool `computer_use` that have another name here."""
_TOOL_FIELDS = (
    "mark",
    "start_coordinate",
    "coordinate",
    "x",
    "y",
    "to_mark",
    "to_coordinate",
    "to_x",
    "to_y",
    "dx",
    "dy",
    "text",
    "key",
    "keys",
    "url",
)
"""Arguments of a tool call, in the order in which a call by position takes them."""

_Argument: TypeAlias = int | str
_Builder: TypeAlias = Callable[[str, Sequence[_Argument]], Action]


class _Rejected(ValueError):
    """Internal: why the reply is no action."""


def parse_action(text: str, mode: ActionMode = "coordinates") -> Action | InvalidAction:
    """Return the action that `text` spells, or an `InvalidAction` that says why it spells none.

    Args:
        text: A policy's reply, decoded, without its end token.

    Returns:
        The action, or `InvalidAction(text, reason)`.
    """
    builders, example = _BUILDERS[mode], _EXAMPLES[mode]
    try:
        return _parse_call(text.strip(), builders, example)
    except _Rejected:
        pass  # not an action as it stands: look at what the reply puts forward as one
    try:
        body = _decision(text)
        if body.startswith("{"):
            return _parse_tool_call(body, builders)
        return _parse_call(body, builders, example)
    except _Rejected as error:
        return InvalidAction(text=text[:_SHOWN_LENGTH], reason=str(error))


def _decision(text: str) -> str:
    """Return the part of a reply that is meant as its action."""
    body = text.rpartition("</think>")[2]
    _, call, rest = body.partition(_TOOL_CALL)
    if call:
        if _TOOL_CALL in rest:
            raise _Rejected("reply must hold one tool call, got several")
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


def _parse_tool_call(body: str, builders: Mapping[str, _Builder]) -> Action:
    try:
        call: object = json.loads(body, strict=False)
    except (ValueError, RecursionError) as error:
        raise _Rejected("tool call must be a JSON object") from error
    arguments = cast("dict[str, Any]", call).get("arguments") if isinstance(call, dict) else None
    if not isinstance(call, dict) or not isinstance(arguments, dict):
        raise _Rejected('tool call must have the form {"name": ..., "arguments": {...}}')
    given: dict[str, Any] = dict(cast("dict[str, Any]", arguments))
    verb = str(given.pop("action", cast("dict[str, Any]", call).get("name")))
    name = _TOOL_VERBS.get(verb, verb)
    build = builders.get(name)
    if build is None:
        raise _Rejected(f"action must be one of {', '.join(ACTION_NAMES)}, got {name[:32]}")
    if name == "wait":
        given.pop("time", None)
    if verb == "terminate":
        given = {"text": ""}
    if isinstance(pixels := given.pop("pixels", None), int | float):
        # Qwen counts upwards, and scrolls wherever the pointer is.
        distance = int(min(max(-pixels, -GRID_SIZE), GRID_SIZE))
        middle = [GRID_SIZE // 2, GRID_SIZE // 2]
        given = {"coordinate": middle, **given, "dx": 0, "dy": distance}
    unknown = sorted(given.keys() - set(_TOOL_FIELDS))
    if unknown:
        raise _Rejected(f"{name} takes no argument {unknown[0][:32]!r}")
    if isinstance(keys := given.get("keys"), list):
        given["keys"] = "+".join(map(str, cast("list[object]", keys)))
    values = [given[field] for field in _TOOL_FIELDS if field in given]
    flat = [v for value in values for v in (value if isinstance(value, list) else [value])]
    return build(name, [_tool_value(value) for value in flat])


def _tool_value(value: object) -> _Argument:
    if isinstance(value, str):
        return _checked_text("tool call", value)
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if not isinstance(value, int) or isinstance(value, bool) or abs(value) > 999_999:
        raise _Rejected("arguments of a tool call must be whole numbers or strings")
    return value


def _parse_call(body: str, builders: Mapping[str, _Builder], example: str) -> Action:
    call = _CALL.fullmatch(body)
    if call is None:
        raise _Rejected(f"reply must be one action such as {example}")
    name = call.group(1)
    build = builders.get(name)
    if build is None:
        raise _Rejected(f"action must be one of {', '.join(ACTION_NAMES)}, got {name}")
    return build(name, _parse_arguments(name, call.group(2)))


def _parse_arguments(name: str, text: str) -> list[_Argument]:
    if '"' not in text:
        text = _BRACKETS.sub(r"\1", text)
    arguments: list[_Argument] = []
    position, is_last = 0, not text.strip()
    while not is_last:
        match = _ARGUMENT.match(text, position)
        if match is None:
            raise _Rejected(f"arguments of {name} must be whole numbers or quoted strings")
        number, string, separator = match.groups()
        arguments.append(int(number) if number is not None else _parse_string(name, string))
        position, is_last = match.end(), separator != ","
    return arguments


def _parse_string(name: str, literal: str) -> str:
    try:
        value = json.loads(literal, strict=False)
    except ValueError as error:
        raise _Rejected(f"string of {name} must be a JSON string") from error
    return _checked_text(name, value)


def _checked_text(name: str, value: str) -> str:
    try:
        value.encode("utf-8")
    except ValueError as error:
        raise _Rejected(f"string of {name} must be a JSON string") from error
    if len(value) > MAX_TEXT_LENGTH:
        raise _Rejected(f"string of {name} must have at most {MAX_TEXT_LENGTH} characters")
    return value


def _integers(name: str, arguments: Sequence[_Argument], count: int) -> list[int]:
    numbers = [value for value in arguments if isinstance(value, int)]
    if len(arguments) != count or len(numbers) != count:
        raise _Rejected(f"{name} takes {count} whole numbers, got {len(arguments)} arguments")
    return numbers


def _coordinates(name: str, numbers: Sequence[int]) -> None:
    for value in numbers:
        if not 0 <= value <= GRID_SIZE:
            raise _Rejected(f"coordinates of {name} must be 0 to {GRID_SIZE}, got {value}")


def _point(kind: Callable[[int, int], Action]) -> _Builder:
    def build(name: str, arguments: Sequence[_Argument]) -> Action:
        x, y = _integers(name, arguments, 2)
        _coordinates(name, (x, y))
        return kind(x, y)

    return build


def _drag(name: str, arguments: Sequence[_Argument]) -> Action:
    numbers = _integers(name, arguments, 4)
    _coordinates(name, numbers)
    return Drag(*numbers)


def _mark(kind: Callable[[int], Action]) -> _Builder:
    def build(name: str, arguments: Sequence[_Argument]) -> Action:
        (mark,) = _integers(name, arguments, 1)
        _at_least(1, mark)
        return kind(mark)

    return build


def _drag_mark(name: str, arguments: Sequence[_Argument]) -> Action:
    marks = _integers(name, arguments, 2)
    _at_least(1, *marks)
    return DragMark(*marks)


def _scroll_mark(name: str, arguments: Sequence[_Argument]) -> Action:
    mark, dx, dy = _integers(name, arguments, 3)
    _at_least(0, mark)
    _distances(dx, dy)
    return ScrollMark(mark, dx, dy)


def _at_least(bound: int, *marks: int) -> None:
    for mark in marks:
        if mark < bound:
            raise _Rejected(f"mark must be >= {bound}, got {mark}")


def _distances(dx: int, dy: int) -> None:
    if max(abs(dx), abs(dy)) > GRID_SIZE:
        raise _Rejected(f"distances of scroll must be -{GRID_SIZE} to {GRID_SIZE}")


def _scroll(name: str, arguments: Sequence[_Argument]) -> Action:
    x, y, dx, dy = _integers(name, arguments, 4)
    _coordinates(name, (x, y))
    _distances(dx, dy)
    return Scroll(x, y, dx, dy)


def _bare(kind: Callable[[], Action]) -> _Builder:
    def build(name: str, arguments: Sequence[_Argument]) -> Action:
        if arguments:
            raise _Rejected(f"{name} takes no arguments, got {len(arguments)}")
        return kind()

    return build


def _string(kind: Callable[[str], Action]) -> _Builder:
    def build(name: str, arguments: Sequence[_Argument]) -> Action:
        if len(arguments) != 1 or not isinstance(arguments[0], str):
            raise _Rejected(f"{name} takes one quoted string")
        if not arguments[0] and kind is not Answer:
            raise _Rejected(f"string of {name} must not be empty")
        return kind(arguments[0])

    return build


def _press(key: str) -> Press:
    canonical = canonical_key(key)
    if canonical is None:
        raise _Rejected(
            f'key must be a key or a chord such as "Enter" or "Control+a", got {key[:32]!r}'
        )
    return Press(canonical)


_ANYWHERE: Mapping[str, _Builder] = {
    "type": _string(TypeText),
    "press": _string(_press),
    "wait": _bare(Wait),
    "go_back": _bare(GoBack),
    "navigate": _string(Navigate),
    "answer": _string(Answer),
}
"""What is the same in every mode."""

_BUILDERS: Mapping[ActionMode, Mapping[str, _Builder]] = {
    "coordinates": {
        "left_click": _point(LeftClick),
        "double_click": _point(DoubleClick),
        "hover": _point(Hover),
        "drag": _drag,
        "scroll": _scroll,
        **_ANYWHERE,
    },
    "set_of_marks": {
        "left_click": _mark(ClickMark),
        "double_click": _mark(DoubleClickMark),
        "hover": _mark(HoverMark),
        "drag": _drag_mark,
        "scroll": _scroll_mark,
        **_ANYWHERE,
    },
}

_EXAMPLES: Mapping[ActionMode, str] = {
    "coordinates": "left_click(500, 250)",
    "set_of_marks": "left_click(7)",
}
"""What a reply could look like."""
