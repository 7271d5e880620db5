"""System turns: what a policy is told of its actions, and of the form of its replies."""

from __future__ import annotations

from webrl.actions import ActionMode

_START = """\
You operate a web browser. You see screenshots of it; the last one is the current page.
"""
_ONLY_ACTION = """\
Answer with exactly one action and nothing else. Below each previous action stands what came of it
besides the picture: the text of a dialog, which is accepted by itself, or why nothing happened."""
_SECTIONS = """\
Answer with these sections and nothing else, one action at a time:
<thought>what the page shows, what came of the last action, what to do next</thought>
<memory>what later steps must know: what you found, what is done and what is left</memory>
<action>the action</action>
You are told your newest memory before each step, of which {memory_chars} characters are kept. Leave the section
out to keep it as it is. Below each previous action stands what came of it: the text of a dialog,
which is accepted by itself, or why nothing happened."""
_GRID = """\
 Positions are on a grid from 0 to 1000, x from
left to right and y from top to bottom.
left_click(x, y): click at a position
double_click(x, y): click twice
hover(x, y): move the pointer
drag(x, y, to_x, to_y): press at one position, release at another
scroll(x, y, dx, dy): scroll by dx, dy with the pointer at x, y
"""
_MARKS = """\
 Elements of the page are framed and numbered, and listed
by number; n and m stand for such numbers.
left_click(n): click an element
double_click(n): click it twice
hover(n): move the pointer onto it
drag(n, m): press at one element, release at another
scroll(n, dx, dy): scroll by dx, dy over an element, or over the page with n = 0; 1000 is its size
"""
_END = """\
type("text"): type into the focused element; \\n presses Enter
press("key"): press a key or chord, such as Enter or Control+a
wait(): wait for the page
go_back(): go to the previous page
navigate("url"): open a page
answer("text"): finish with an answer"""
_TOOLS = """\
You operate a web browser with the given tools. You see screenshots of it; the last one is the
current page. Say in one sentence what you do and why, then call exactly one tool once. What comes back tells
what came of it besides the picture: the text of a dialog, which is accepted by itself, or why
nothing happened. When the goal is reached, call the action answer, with the answer if one is asked for."""

SYSTEM_PROMPT = f"{_START}{_ONLY_ACTION}{_GRID}{_END}"
"""System turn of an agent that only acts, by position."""

MARKS_SYSTEM_PROMPT = f"{_START}{_ONLY_ACTION}{_MARKS}{_END}"
"""The same where the elements of the page are numbered."""


def reasoning_instructions(mode: ActionMode, memory_chars: int) -> str:
    """Return the system turn of an agent that thinks, notes and acts.

    Args:
        memory_chars: Characters of its memory that are kept.
    """
    sections = _SECTIONS.format(memory_chars=memory_chars)
    return f"{_START}{sections}{_GRID if mode == 'coordinates' else _MARKS}{_END}"


def tool_instructions(mode: ActionMode) -> str:
    """Return the system turn of an agent that calls tools."""
    if mode == "coordinates":
        return _TOOLS
    return f"{_TOOLS} Elements of the page are framed and numbered, and listed by number."
