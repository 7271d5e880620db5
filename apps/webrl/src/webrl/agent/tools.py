"""The tools of the agent `tool_call`: Qwen's `computer_use` and a browser's, and actions as calls.

Invariant: `action_of_call(*call_of(action), mode) == action` for every valid action of `mode`.
"""

from __future__ import annotations

from typing import Any

from webrl.actions import (
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

_COMPUTER = "computer_use"
_BROWSER = "browser_use"

_WHERE = {
    "coordinates": {
        "coordinate": {
            "description": "(x, y): pixels from the left edge and from the top edge. Required by "
            "left_click, double_click, mouse_move, and left_click_drag, where it is the end.",
            "type": "array",
        },
        "start_coordinate": {
            "description": "(x, y) where the button goes down. Required by left_click_drag.",
            "type": "array",
        },
    },
    "set_of_marks": {
        "mark": {
            "description": "Number of an element. Required by left_click, double_click, mouse_move, "
            "and left_click_drag, where it is the start.",
            "type": "integer",
        },
        "to_mark": {
            "description": "Number of the element where left_click_drag ends.",
            "type": "integer",
        },
    },
}
_ACTIONS = """\
The action to perform. The available actions are:
* `left_click`: Click the left mouse button.
* `double_click`: Click the left mouse button twice.
* `mouse_move`: Move the pointer, no button down.
* `left_click_drag`: Press the left mouse button at one place and release it at another.
* `type`: Type text into whatever has the focus; a line break presses enter.
* `key`: Press keys together, and release them.
* `scroll`: Turn the wheel.
* `hscroll`: Turn the wheel sideways.
* `wait`: Let the page work.
* `answer`: Finish, with an answer if one is asked for.
* `terminate`: Finish without an answer."""
_DESCRIPTIONS = {
    "coordinates": "Use a mouse and a keyboard in a web browser. The screen's resolution is "
    "1000x1000.\nClick buttons, links and icons in their middle, not on their edges.",
    "set_of_marks": "Use a mouse and a keyboard in a web browser, whose elements are numbered.",
}


def tool_schemas(mode: ActionMode) -> list[dict[str, Any]]:
    """Return the tools as chat templates take them."""
    computer = {
        "action": {
            "description": _ACTIONS,
            "enum": [line.split("`")[1] for line in _ACTIONS.splitlines()[1:]],
            "type": "string",
        },
        "keys": {"description": "Required by key.", "type": "array"},
        "text": {"description": "Required by type and answer.", "type": "string"},
        **_WHERE[mode],
        "pixels": {
            "description": "How far to scroll: up is positive, down is negative; for hscroll right "
            "is positive. Required by scroll and hscroll.",
            "type": "number",
        },
        "time": {"description": "Seconds to wait. Used by wait.", "type": "number"},
        "status": {
            "description": "Whether the goal is reached. Required by terminate.",
            "type": "string",
            "enum": ["success", "failure"],
        },
    }
    browser = {
        "action": {
            "description": "`navigate` opens an address, `go_back` goes back one page.",
            "enum": ["navigate", "go_back"],
            "type": "string",
        },
        "url": {"description": "Required by navigate.", "type": "string"},
    }
    return [
        _schema(_COMPUTER, _DESCRIPTIONS[mode], computer),
        _schema(_BROWSER, "Use the address bar and the history of the browser.", browser),
    ]


def _schema(name: str, description: str, properties: dict[str, Any]) -> dict[str, Any]:
    parameters = {"properties": properties, "required": ["action"], "type": "object"}
    function = {"name": name, "description": description, "parameters": parameters}
    return {"type": "function", "function": function}


def call_of(action: Action) -> tuple[str, dict[str, Any]]:
    """Return tool and arguments of the call that does `action`."""
    if isinstance(action, Navigate):
        return _BROWSER, {"action": "navigate", "url": action.url}
    if isinstance(action, GoBack):
        return _BROWSER, {"action": "go_back"}
    return _COMPUTER, _computer_arguments(action)


def _computer_arguments(action: Action) -> dict[str, Any]:
    match action:
        case LeftClick(x, y) | DoubleClick(x, y) | Hover(x, y):
            return {"action": _POINTED[type(action)], "coordinate": [x, y]}
        case ClickMark(mark) | DoubleClickMark(mark) | HoverMark(mark):
            return {"action": _POINTED[type(action)], "mark": mark}
        case Drag(x, y, to_x, to_y):
            ends = {"start_coordinate": [x, y], "coordinate": [to_x, to_y]}
            return {"action": "left_click_drag", **ends}
        case DragMark(mark, to_mark):
            return {"action": "left_click_drag", "mark": mark, "to_mark": to_mark}
        case Scroll(x, y, dx, dy):
            return {**_scroll(dx, dy), "coordinate": [x, y]}
        case ScrollMark(mark, dx, dy):
            return {**_scroll(dx, dy), "mark": mark}
        case TypeText(text):
            return {"action": "type", "text": text}
        case Press(key):
            return {"action": "key", "keys": [key]}
        case Answer(text):
            return {"action": "answer", "text": text}
        case _:
            assert isinstance(action, Wait)
            return {"action": "wait", "time": 1}


_POINTED = {
    LeftClick: "left_click",
    ClickMark: "left_click",
    DoubleClick: "double_click",
    DoubleClickMark: "double_click",
    Hover: "mouse_move",
    HoverMark: "mouse_move",
}


def _scroll(dx: int, dy: int) -> dict[str, Any]:
    if dx and dy:
        return {"action": "scroll", "dx": dx, "dy": dy}
    return {"action": "hscroll", "pixels": dx} if dx else {"action": "scroll", "pixels": -dy}
