"""What a policy can do to a page: one text grammar on a 0-1000 grid, its parser and formatter."""

from webrl.actions.action import (
    ACTION_NAMES,
    GRID_SIZE,
    Action,
    Answer,
    ClickMark,
    DoubleClick,
    Drag,
    GoBack,
    Hover,
    InvalidAction,
    LeftClick,
    Navigate,
    Press,
    Scroll,
    TypeText,
    Wait,
)
from webrl.actions.format import format_action
from webrl.actions.grid import to_grid, to_pixels
from webrl.actions.parse import parse_action

__all__ = [
    "ACTION_NAMES",
    "Action",
    "Answer",
    "ClickMark",
    "DoubleClick",
    "Drag",
    "GRID_SIZE",
    "GoBack",
    "Hover",
    "InvalidAction",
    "LeftClick",
    "Navigate",
    "Press",
    "Scroll",
    "TypeText",
    "Wait",
    "format_action",
    "parse_action",
    "to_grid",
    "to_pixels",
]
