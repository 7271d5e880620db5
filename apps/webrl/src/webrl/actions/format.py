"""From an action to its one canonical text.

Invariant: `parse_action(format_action(action), mode) == action` for every valid action of `mode`.
"""

from __future__ import annotations

import json

import msgspec

from webrl.actions.action import Action

_MARK_VERBS = {
    "click_mark": "left_click",
    "double_click_mark": "double_click",
    "hover_mark": "hover",
    "drag_mark": "drag",
    "scroll_mark": "scroll",
}
"""Verbs of the actions whose tag is not their verb."""


def format_action(action: Action) -> str:
    """Return the text that a policy would write for `action`, such as `left_click(500, 250)`."""
    tag = str(action.__struct_config__.tag)
    name = _MARK_VERBS.get(tag, tag)
    values = [
        json.dumps(v) if isinstance(v, str) else str(v) for v in msgspec.structs.astuple(action)
    ]
    return f"{name}({', '.join(values)})"
