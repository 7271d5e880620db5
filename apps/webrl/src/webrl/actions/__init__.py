"""What a policy can do to a page: one text grammar, by position or by mark, parser and formatter."""

from __future__ import annotations

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
    MarkAction,
    Navigate,
    Press,
    Scroll,
    ScrollMark,
    TypeText,
    Wait,
)
from webrl.actions.format import format_action, show_action
from webrl.actions.grid import to_grid, to_pixels
from webrl.actions.parse import parse_action

__all__ = [
    "ACTION_NAMES",
    "Action",
    "ActionMode",
    "Answer",
    "ClickMark",
    "DoubleClick",
    "DoubleClickMark",
    "Drag",
    "DragMark",
    "GRID_SIZE",
    "GoBack",
    "Hover",
    "HoverMark",
    "InvalidAction",
    "LeftClick",
    "MarkAction",
    "Navigate",
    "Press",
    "Scroll",
    "ScrollMark",
    "TypeText",
    "Wait",
    "format_action",
    "parse_action",
    "show_action",
    "to_grid",
    "to_pixels",
]
