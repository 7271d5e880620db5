r"""The one parser of policy replies.

Invariants:

* total: every string gives an `Action` or an `InvalidAction`, and nothing raises;
* exact: the action is the whole reply, or all that follows the last line start `Action:`; a reply
  with a second action or with words after the call is invalid, so that a policy can not hedge;
* integers are decimal digits (leading zeros allowed), strings are JSON strings.

Grammar: `name(argument, ...)` where blanks around every part do not matter.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

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

MAX_TEXT_LENGTH = 4000
"""Characters of one string argument: a page's form field, not a document."""
_SHOWN_LENGTH = 200
"""Characters of a reply that an `InvalidAction` keeps."""

_CALL = re.compile(r"([a-z_]{1,32})\s*\((.*)\)", re.DOTALL)
_ARGUMENT = re.compile(r'\s*(?:(-?[0-9]{1,6})|("(?:[^"\\]|\\.)*"))\s*(,|\Z)', re.DOTALL)
_PREFIX = re.compile(r"^[ \t]*Action[ \t]*:", re.MULTILINE)
_KEY = re.compile(r"[A-Za-z0-9]{1,20}(\+[A-Za-z0-9]{1,20}){0,3}|[A-Za-z]{1,20}\+[!-~]|[!-~]")

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
    prefixes = list(_PREFIX.finditer(text))
    body = text[prefixes[-1].end() :] if prefixes else text
    try:
        return _parse_call(body.strip(), _BUILDERS[mode], _EXAMPLES[mode])
    except _Rejected as error:
        return InvalidAction(text=text[:_SHOWN_LENGTH], reason=str(error))


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
        if kind is Press and not _KEY.fullmatch(arguments[0]):
            raise _Rejected('key must be a key or a chord such as "Enter" or "Control+a"')
        return kind(arguments[0])

    return build


_ANYWHERE: Mapping[str, _Builder] = {
    "type": _string(TypeText),
    "press": _string(Press),
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
