"""The right spelling of a mistyped key."""

from __future__ import annotations

import difflib
import re
import typing
from collections.abc import Sequence

from webrl.config.rules import Section, section_type
from webrl.config.run import WebRLConfig
from webrl.errors import Problem

_CLOSE = 0.7
"""Least similarity of a suggestion; below it a guess misleads more often than it helps."""
_MOST = 3
"""Places that are named when a key exists in several sections."""


def all_keys(section: type[Section] = WebRLConfig, prefix: str = "") -> list[str]:
    """Return every dotted key below `section`; keys of listed tables read `tasks[].name`."""
    keys: list[str] = []
    for name, hint in typing.get_type_hints(section).items():
        below = section_type(hint)
        dots = "[]." if typing.get_origin(hint) is tuple else "."
        keys += [prefix + name] if below is None else all_keys(below, prefix + name + dots)
    return keys


def unknown_key(key: str, siblings: Sequence[str] = ()) -> Problem:
    """Return the problem of an unknown key, with the nearest right spelling.

    Args:
        siblings: Keys of its section; needed where that is no section of a configuration.
    """
    keys = all_keys()
    listed, *near = (re.sub(r"\[\d+\]", "[]", name) for name in (key, *siblings))
    if near and not any(name in keys for name in near):
        close = _nearest_leaf(_leaf(listed), near)
        text = _did_you_mean(close) or f"Its section has {', '.join(map(_leaf, near))}."
        return Problem(key=key, message=f"is not a key. {text}")
    tables = sorted({name.split(".")[0].removesuffix("[]") for name in keys if "." in name})
    return Problem(key=key, message=f"is not a key. {suggestion(listed, keys + tables)}")


def suggestion(key: str, known: list[str]) -> str:
    """Return `Did you mean ...?`, or where all keys are listed.

    A key whose last part exists in exactly that spelling elsewhere is taken to be misplaced;
    else the most similar one of the same section wins, then of all.
    """
    leaf = _leaf(key)
    misplaced = sorted((name for name in known if _leaf(name) == leaf), key=_depth)
    section = key[: len(key) - len(leaf)]
    below = [name for name in known if name.startswith(section)]
    close = (
        misplaced[:_MOST]
        or _nearest_leaf(leaf, below)
        or _nearest_leaf(leaf, known)
        or difflib.get_close_matches(key, known, n=1, cutoff=_CLOSE)
    )
    return _did_you_mean(close) or "All keys are listed in docs/configuration.md."


def _did_you_mean(close: list[str]) -> str:
    return f"Did you mean {' or '.join(repr(name) for name in close)}?" if close else ""


def _leaf(key: str) -> str:
    return key.rsplit(".", 1)[-1]


def _depth(key: str) -> int:
    return key.count(".")


def _nearest_leaf(leaf: str, known: list[str]) -> list[str]:
    # The key nearest to the top wins where several sections have one of that name.
    leaves = {_leaf(name): name for name in sorted(known, key=_depth, reverse=True)}
    found = difflib.get_close_matches(leaf, list(leaves), n=1, cutoff=_CLOSE)
    return [leaves[name] for name in found]
