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
from webrl.actions.build import RejectedReply, build_action, checked_verb
from webrl.actions.format import format_action, show_action
from webrl.actions.grid import to_grid, to_pixels
from webrl.actions.parse import invalid_action, parse_action, read_call
from webrl.actions.tool_call import action_of_call, parse_tool_call

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
    "RejectedReply",
    "Scroll",
    "ScrollMark",
    "TypeText",
    "Wait",
    "action_of_call",
    "build_action",
    "checked_verb",
    "format_action",
    "invalid_action",
    "parse_action",
    "parse_tool_call",
    "read_call",
    "show_action",
    "to_grid",
    "to_pixels",
]
