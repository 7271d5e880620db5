"""From a verb and its arguments to the action: what each verb takes, by position or by mark.

Invariants:

* an action that is built obeys the grammar: points on the grid, marks from 1, texts within bounds;
* what is refused says why in words that a policy can be told.
"""

from __future__ import annotations

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

Argument: TypeAlias = int | str
"""What a verb can take."""
_Builder: TypeAlias = Callable[[str, Sequence[Argument]], Action]


class RejectedReply(ValueError):
    """Why a reply is no action; it never leaves the readers of replies."""


def build_action(name: str, arguments: Sequence[Argument], mode: ActionMode) -> Action:
    """Return the action `name(arguments)`.

    Raises:
        RejectedReply: There is no such verb, or it takes other arguments.
    """
    return checked_verb(name, mode)(name, arguments)


def checked_verb(name: str, mode: ActionMode) -> _Builder:
    """Return what builds the actions of a verb.

    Raises:
        RejectedReply: There is no such verb.
    """
    build = _BUILDERS[mode].get(name)
    if build is None:
        raise RejectedReply(f"action must be one of {', '.join(ACTION_NAMES)}, got {name[:32]}")
    return build


def checked_text(name: str, value: str) -> str:
    """Return a string argument of `name`.

    Raises:
        RejectedReply: It is too long, or no Unicode.
    """
    try:
        value.encode("utf-8")
    except ValueError as error:
        raise RejectedReply(f"string of {name} must be a JSON string") from error
    if len(value) > MAX_TEXT_LENGTH:
        raise RejectedReply(f"string of {name} must have at most {MAX_TEXT_LENGTH} characters")
    return value


def _integers(name: str, arguments: Sequence[Argument], count: int) -> list[int]:
    numbers = [value for value in arguments if isinstance(value, int)]
    if len(arguments) != count or len(numbers) != count:
        raise RejectedReply(f"{name} takes {count} whole numbers, got {len(arguments)} arguments")
    return numbers


def _coordinates(name: str, numbers: Sequence[int]) -> None:
    for value in numbers:
        if not 0 <= value <= GRID_SIZE:
            raise RejectedReply(f"coordinates of {name} must be 0 to {GRID_SIZE}, got {value}")


def _point(kind: Callable[[int, int], Action]) -> _Builder:
    def build(name: str, arguments: Sequence[Argument]) -> Action:
        x, y = _integers(name, arguments, 2)
        _coordinates(name, (x, y))
        return kind(x, y)

    return build


def _drag(name: str, arguments: Sequence[Argument]) -> Action:
    numbers = _integers(name, arguments, 4)
    _coordinates(name, numbers)
    return Drag(*numbers)


def _mark(kind: Callable[[int], Action]) -> _Builder:
    def build(name: str, arguments: Sequence[Argument]) -> Action:
        (mark,) = _integers(name, arguments, 1)
        _at_least(1, mark)
        return kind(mark)

    return build


def _drag_mark(name: str, arguments: Sequence[Argument]) -> Action:
    marks = _integers(name, arguments, 2)
    _at_least(1, *marks)
    return DragMark(*marks)


def _scroll_mark(name: str, arguments: Sequence[Argument]) -> Action:
    mark, dx, dy = _integers(name, arguments, 3)
    _at_least(0, mark)
    _distances(dx, dy)
    return ScrollMark(mark, dx, dy)


def _at_least(bound: int, *marks: int) -> None:
    for mark in marks:
        if mark < bound:
            raise RejectedReply(f"mark must be >= {bound}, got {mark}")


def _distances(dx: int, dy: int) -> None:
    if max(abs(dx), abs(dy)) > GRID_SIZE:
        raise RejectedReply(f"distances of scroll must be -{GRID_SIZE} to {GRID_SIZE}")


def _scroll(name: str, arguments: Sequence[Argument]) -> Action:
    x, y, dx, dy = _integers(name, arguments, 4)
    _coordinates(name, (x, y))
    _distances(dx, dy)
    return Scroll(x, y, dx, dy)


def _bare(kind: Callable[[], Action]) -> _Builder:
    def build(name: str, arguments: Sequence[Argument]) -> Action:
        if arguments:
            raise RejectedReply(f"{name} takes no arguments, got {len(arguments)}")
        return kind()

    return build


def _string(kind: Callable[[str], Action]) -> _Builder:
    def build(name: str, arguments: Sequence[Argument]) -> Action:
        if len(arguments) != 1 or not isinstance(arguments[0], str):
            raise RejectedReply(f"{name} takes one quoted string")
        if not arguments[0] and kind is not Answer:
            raise RejectedReply(f"string of {name} must not be empty")
        return kind(arguments[0])

    return build


def _press(key: str) -> Press:
    canonical = canonical_key(key)
    if canonical is None:
        raise RejectedReply(
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

EXAMPLES: Mapping[ActionMode, str] = {
    "coordinates": "left_click(500, 250)",
    "set_of_marks": "left_click(7)",
}
"""What a reply could look like."""
