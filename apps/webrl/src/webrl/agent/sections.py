"""Thought, memory and action of a reply, told apart by tags or by headings.

Invariants:

* a section ends where it is closed, where the next one begins, or at the end;
* what stands in no section is neither thought nor memory: there the action is looked for when no
  section holds one;
* tags count before headings, so that a heading within a section is text of it.
"""

from __future__ import annotations

import re
from typing import Literal, TypeAlias

import msgspec

SectionName: TypeAlias = Literal["thought", "memory", "action"]

_NAMES: dict[str, SectionName] = {
    **dict.fromkeys(
        ("thought", "thoughts", "thinking", "reasoning", "reason", "intention", "plan"),
        "thought",
    ),
    **dict.fromkeys(("memory", "memories", "notes", "note", "progress"), "memory"),
    **dict.fromkeys(("action", "answer_action", "next_action", "act"), "action"),
    **dict.fromkeys(("思考", "想法", "分析", "意图", "思路"), "thought"),
    **dict.fromkeys(("记忆", "笔记", "进度", "備忘", "记录"), "memory"),
    **dict.fromkeys(("动作", "行动", "操作", "動作"), "action"),
}
_WORDS = "|".join(sorted(_NAMES, key=len, reverse=True))
_TAG = re.compile(rf"<\s{{0,2}}(/?)\s{{0,2}}({_WORDS})\s{{0,2}}>", re.IGNORECASE)
_HEADING = re.compile(
    rf"^[ \t]{{0,8}}(?:[-*#>]{{1,6}}[ \t]{{0,3}})?(?:\*\*|__)?[ \t]?({_WORDS})[ \t]?(?:\*\*|__)?[ \t]?[:\uff1a]"
    r"[ \t]*(?:\*\*|__)?",
    re.IGNORECASE | re.MULTILINE,
)


class Sections(msgspec.Struct, frozen=True, kw_only=True):
    """The parts of one reply."""

    thoughts: tuple[str, ...] = ()
    """In order."""
    memories: tuple[str, ...] = ()
    """In order."""
    actions: tuple[str, ...] = ()
    """In order; empty where nothing says that it is the action."""
    rest: str = ""
    """What stands in no section."""


def split_sections(text: str) -> Sections:
    """Return the sections of a reply, without a thinking model's `<think>` block."""
    if _TAG.search(text):
        return _tagged(text)
    return _headed(text)


def _tagged(text: str) -> Sections:
    found: dict[SectionName, list[str]] = {"thought": [], "memory": [], "action": []}
    rest: list[str] = []
    current: SectionName | None = None
    position = 0

    def keep(end: int) -> None:
        piece = text[position:end].strip()
        if current is not None:
            found[current].append(piece)
        elif piece:
            rest.append(piece)

    for tag in _TAG.finditer(text):
        is_end, name = bool(tag.group(1)), _NAMES[tag.group(2).lower()]
        if is_end and name != current:
            continue  # closes nothing that is open: text
        keep(tag.start())
        current, position = (None if is_end else name), tag.end()
    keep(len(text))
    return _sections(found, rest)


def _headed(text: str) -> Sections:
    found: dict[SectionName, list[str]] = {"thought": [], "memory": [], "action": []}
    headings = list(_HEADING.finditer(text))
    first = headings[0].start() if headings else len(text)
    rest = [text[:first].strip()] if text[:first].strip() else []
    ends = [heading.start() for heading in headings[1:]] + [len(text)]
    for heading, end in zip(headings, ends, strict=True) if headings else ():
        found[_NAMES[heading.group(1).lower()]].append(text[heading.end() : end].strip())
    return _sections(found, rest)


def _sections(found: dict[SectionName, list[str]], rest: list[str]) -> Sections:
    return Sections(
        thoughts=tuple(filter(None, found["thought"])),
        memories=tuple(found["memory"]),
        actions=tuple(filter(None, found["action"])),
        rest="\n".join(rest),
    )
