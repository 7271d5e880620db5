"""Names of keys: however a policy spells one, the name that browsers know.

Invariants:

* what comes out is a key that the browser has, or nothing: an unknown name never reaches a page;
* a chord is modifiers and then one key, and a letter in it is small unless Shift is held.
"""

from __future__ import annotations

import re

_MODIFIERS = {
    "Control": "control ctrl ctl cmd command controlormeta",
    "Alt": "alt option opt",
    "Shift": "shift",
    "Meta": "meta win windows super os",
}
"""Pages live in a Linux browser: what a Mac's command key does there, the control key does."""

_NAMED = {
    "Escape": "esc",
    "Enter": "return ret linefeed",
    "Tab": "",
    "Backspace": "bksp bs",
    "Delete": "del",
    "Insert": "ins",
    "Space": "spacebar",
    "Home": "",
    "End": "",
    "PageUp": "pgup prior",
    "PageDown": "pgdn pgdown next",
    "ArrowUp": "up uparrow",
    "ArrowDown": "down downarrow",
    "ArrowLeft": "left leftarrow",
    "ArrowRight": "right rightarrow",
    "CapsLock": "caps",
    "NumLock": "",
    "ScrollLock": "",
    "Pause": "break",
    "PrintScreen": "prtsc prtscr",
    "ContextMenu": "menu apps",
    **{f"F{number}": "" for number in range(1, 13)},
}

_CHARACTERS = {
    "plus": "+",
    "minus": "-",
    "hyphen": "-",
    "comma": ",",
    "period": ".",
    "dot": ".",
    "slash": "/",
    "backslash": "\\",
    "equal": "=",
    "equals": "=",
}

_MODIFIER_NAMES = {
    word: name for name, words in _MODIFIERS.items() for word in (name.lower(), *words.split())
}
_KEY_NAMES = {
    **{word: name for name, words in _NAMED.items() for word in (name.lower(), *words.split())},
    **_CHARACTERS,
    **_MODIFIER_NAMES,
}
_PREFIX = re.compile(r"\s*([A-Za-z_ ]{2,20}?)\s*[+-](?=.)", re.DOTALL)
_FILLERS = re.compile(r"[\s_-]")


def canonical_key(text: str) -> str | None:
    """Return the browser's name of a key or chord such as `Ctrl+a`, or `None` where there is none."""
    rest, modifiers = text, list[str]()
    while (found := _PREFIX.match(rest)) is not None:
        name = _MODIFIER_NAMES.get(_FILLERS.sub("", found.group(1)).lower())
        if name is None:
            break
        modifiers.append(name)
        rest = rest[found.end() :]
    key = _single(rest.strip() or rest)
    if key is None or len(set(modifiers)) != len(modifiers) or key in modifiers:
        return None
    if modifiers and len(key) == 1 and "Shift" not in modifiers:
        key = key.lower()
    return "+".join([*modifiers, key])


def _single(text: str) -> str | None:
    """Return the browser's name of one key."""
    if len(text) == 1:
        is_printed = " " < text <= "~"
        return text if is_printed else {" ": "Space", "\n": "Enter", "\t": "Tab"}.get(text)
    plain = _FILLERS.sub("", text).lower()
    if len(plain) == 4 and plain.startswith("key") and plain[3].isascii() and plain[3].isalpha():
        return plain[3]
    if len(plain) == 6 and plain.startswith("digit") and plain[5] in "0123456789":
        return plain[5]
    return _KEY_NAMES.get(plain)
