"""From an action to its one canonical text.

Invariants:

* `parse_action(format_action(action), mode) == action` for every valid action of `mode`;
* `show_action` says what was done, never how the policy put it: what else stood in its reply reaches
  neither its later prompts nor a judge. It has at most `MAX_SHOWN_LENGTH` characters.
"""

from __future__ import annotations

import json

import msgspec

from webrl.actions.action import Action, InvalidAction

MAX_SHOWN_LENGTH = 200
"""Characters of an action in prompts, questions to a judge, and records."""

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


def show_action(action: Action | InvalidAction) -> str:
    """Return the text of `action` with a long string cut, or words for a reply that was none."""
    if isinstance(action, InvalidAction):
        return "no action"
    text = format_action(action)
    if len(text) <= MAX_SHOWN_LENGTH:
        return text
    head, _, tail = text.partition('"')
    string = tail.rpartition('"')[0]
    kept = string[: MAX_SHOWN_LENGTH - len(head) - 4].rstrip("\\")
    return f'{head}"{kept}…")'
