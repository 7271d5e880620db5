"""A clipboard for each context: a browser process has but one, which its pages never get to use.

Invariants:

* what a page copies reaches pages of its own context only, and only until the episode ends;
* what a page says it copied is data to every other page, never code;
* a page reads the clipboard when a key pastes, and by no other way: it has no permission to.

The other half is `clipboard.js`, which runs in every document. What was copied stays there until
the next action, which brings it here before anything else: afterwards the document may be gone.
"""

from __future__ import annotations

import json

from webrl.browser.devtools import Parameters

_COPIED = "window[Symbol.for('awrl.copied')]"
_TO_PASTE = "window[Symbol.for('awrl.paste')]"
_PASTING = frozenset({"v", "V", "KeyV", "Insert"})
_LONGEST = 5_000_000
_EMPTY = "{}"

TAKE: tuple[str, Parameters] = (
    "Runtime.evaluate",
    {"expression": f"(copied => {{ delete {_COPIED}; return copied; }})({_COPIED})"},
)
"""Gives what was copied in a document since the last time."""


class Clipboard:
    """What was copied last in one context: JSON text, an object with a text for each type."""

    def __init__(self) -> None:
        """Start empty."""
        self._content = _EMPTY

    def keep(self, content: object) -> None:
        """Hold what `TAKE` gave."""
        if isinstance(content, str) and len(content) <= _LONGEST:
            self._content = content

    def clear(self) -> None:
        """Forget what was copied."""
        self._content = _EMPTY

    def call_before_paste(self) -> tuple[str, Parameters]:
        """Return what gives a document the content, for the keys that paste it."""
        return "Runtime.evaluate", {"expression": f"{_TO_PASTE} = {json.dumps(self._content)}"}


def is_paste(chord: str) -> bool:
    """Return whether a chord may paste."""
    *held, key = chord.split("+")
    return bool(held) and key in _PASTING
