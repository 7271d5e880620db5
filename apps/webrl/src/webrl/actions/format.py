"""From an action to its one canonical text.

Invariant: `parse_action(format_action(action)) == action` for every valid action.
"""

from __future__ import annotations

import json

import msgspec

from webrl.actions.action import Action


def format_action(action: Action) -> str:
    """Return the text that a policy would write for `action`, such as `left_click(500, 250)`."""
    name = action.__struct_config__.tag
    values = [
        json.dumps(v) if isinstance(v, str) else str(v) for v in msgspec.structs.astuple(action)
    ]
    return f"{name}({', '.join(values)})"
