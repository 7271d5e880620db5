"""Keys and text as DevTools input events.

Invariants:

* a chord is complete or nothing: what goes down comes up in the same list of calls, and a name
  that no key has gives no call at all;
* nothing is held between actions: each event says which modifiers are down, so one that a lost page
  never saw changes no later event;
* a character is typed with the key that has it; one that no key has is inserted, and so is a line of
  more than `LONGEST_TYPED` characters, its last one aside: a key costs a page a millisecond, which
  for a long text on several pages adds up to more than an action's deadline.
"""

from __future__ import annotations

import re

from webrl.browser.devtools import Parameters

KeyCall = tuple[str, Parameters]
KEY_EVENT = "Input.dispatchKeyEvent"
LONGEST_TYPED = 200
"""Characters of a line that is typed key by key."""

_MODIFIERS = {"Alt": (1, 18), "Control": (2, 17), "Meta": (4, 91), "Shift": (8, 16)}
"""Bit in the events, and number of the key."""
_NAMED = {
    "Backspace": 8,
    "Tab": 9,
    "Enter": 13,
    "Pause": 19,
    "CapsLock": 20,
    "Escape": 27,
    "PageUp": 33,
    "PageDown": 34,
    "End": 35,
    "Home": 36,
    "ArrowLeft": 37,
    "ArrowUp": 38,
    "ArrowRight": 39,
    "ArrowDown": 40,
    "PrintScreen": 44,
    "Insert": 45,
    "Delete": 46,
    "ContextMenu": 93,
    **{f"F{number}": 111 + number for number in range(1, 13)},
    "NumLock": 144,
    "ScrollLock": 145,
}
_PRINTED = {
    "Space": (32, "  "),
    **{f"Digit{c}": (ord(c), c + s) for c, s in zip("0123456789", ")!@#$%^&*(", strict=True)},
    **{f"Key{c}": (ord(c), c.lower() + c) for c in "ABCDEFGHIJKLMNOPQRSTUVWXYZ"},
    "Semicolon": (186, ";:"),
    "Equal": (187, "=+"),
    "Comma": (188, ",<"),
    "Minus": (189, "-_"),
    "Period": (190, ".>"),
    "Slash": (191, "/?"),
    "Backquote": (192, "`~"),
    "BracketLeft": (219, "[{"),
    "Backslash": (220, "\\|"),
    "BracketRight": (221, "]}"),
    "Quote": (222, "'\""),
}
"""Number, and what the key gives alone and with Shift, by its place on a US keyboard."""
_PARTS = re.compile(r"[\n\r\t]|[^\n\r\t]+")
_CONTROLS = {"\n": "Enter", "\r": "Enter", "\t": "Tab"}
_PLACES = {
    both[i]: (code, i) for code, (_, both) in _PRINTED.items() for i in (1, 0)
}  # a blank has two places, the one without Shift counts


def chord_calls(chord: str) -> list[KeyCall] | None:
    """Return the events of a key or chord such as `Control+a`, or `None` if a name is no key's."""
    *held, key = _split(chord)
    if any(name not in _MODIFIERS for name in held) or len(set(held) | {key}) <= len(held):
        return None
    down, up, mask = list[KeyCall](), list[KeyCall](), 0
    for name in held:
        bit, number = _MODIFIERS[name]
        up.insert(0, _event("keyUp", name, f"{name}Left", number, mask))
        mask |= bit
        down.append(_event("rawKeyDown", name, f"{name}Left", number, mask))
    middle = _key_calls(key, mask)
    return None if middle is None else [*down, *middle, *up]


def text_calls(text: str) -> list[KeyCall]:
    r"""Return the events of typing `text`; `\n` is Enter and `\t` is Tab."""
    calls: list[KeyCall] = []
    parts: list[str] = _PARTS.findall(text.replace("\r\n", "\n"))
    for part in parts:
        num_inserted = len(part) - 1 if len(part) > LONGEST_TYPED else 0
        if num_inserted:
            calls.append(("Input.insertText", {"text": part[:num_inserted]}))
        for character in part[num_inserted:]:
            pressed = _key_calls(_CONTROLS.get(character, character), 0)
            calls += [("Input.insertText", {"text": character})] if pressed is None else pressed
    return calls


def _split(chord: str) -> list[str]:
    """Return the names of a chord; a `+` where a name must stand is the key of that name."""
    names = [""]
    for character in chord:
        if character == "+" and names[-1]:
            names.append("")
        else:
            names[-1] += character
    return names


def _key_calls(key: str, mask: int) -> list[KeyCall] | None:
    if key in _MODIFIERS:
        bit, number = _MODIFIERS[key]
        code = f"{key}Left"
        return [
            _event("rawKeyDown", key, code, number, mask | bit),
            _event("keyUp", key, code, number, mask),
        ]
    if key in _NAMED:
        code, number, text = key, _NAMED[key], "\r" if key == "Enter" else ""
    else:
        code, shifted = (key, 0) if key in _PRINTED else _PLACES.get(key, ("", 0))
        if not code:
            return None
        number, both = _PRINTED[code]
        key = text = both[1 if shifted or mask & 8 else 0]
    text = text if mask in (0, 8) else ""
    return [
        _event("keyDown" if text else "rawKeyDown", key, code, number, mask, text),
        _event("keyUp", key, code, number, mask),
    ]


def _event(kind: str, key: str, code: str, number: int, mask: int, text: str = "") -> KeyCall:
    event: dict[str, object] = {
        "type": kind,
        "key": key,
        "code": code,
        "windowsVirtualKeyCode": number,
        "modifiers": mask,
    }
    if text:
        event["text"] = event["unmodifiedText"] = text
    if key in _MODIFIERS:
        event["location"] = 1
    return KEY_EVENT, event
