"""Pieces of prompts in plain text: an action and what came of it, the list of elements.

Invariant: no text that comes from a page or from the policy can spell a special token, and none
takes more lines than it is given.
"""

from __future__ import annotations

from collections.abc import Sequence

from webrl.actions import InvalidAction, show_action
from webrl.agent.history import Scene, Turn
from webrl.plain_text import plain, plain_line

MAX_EVENTS = 5
"""Events of one action that a prompt tells; a page can bring about any number."""
_LINE_LENGTH = 240
"""Characters of one line: an action has at most 200, an event its kind besides."""
_THOUGHT_LENGTH = 1000
"""Characters of one thought that a later prompt repeats."""
_URL_LENGTH = 300
"""Characters of an address that a prompt tells."""


def user_text(
    goal: str, previous_actions: Sequence[str], elements: Sequence[str] | None = None
) -> str:
    """Return the text of the user's turn: goal, actions so far, numbered elements, one a line.

    Args:
        previous_actions: As `action_lines` gives them; what is longer, such as a whole reply, is cut.
    """
    lines = [f"Goal: {plain(goal)}"]
    if previous_actions:
        lines += ["Previous actions:", *map(_entry, previous_actions)]
    return "\n".join([*lines, *element_lines(elements)]) + "\n"


def _entry(text: str) -> str:
    lines = text.splitlines()[: 1 + MAX_EVENTS]
    return plain("\n".join(line[:_LINE_LENGTH] for line in lines))


def element_lines(elements: Sequence[str] | None) -> list[str]:
    """Return the list of numbered elements, nothing where none are numbered."""
    if elements is None:
        return []
    return ["Elements:", *(map(plain_line, elements) if elements else ["none"])]


def action_lines(action: str, events: Sequence[str]) -> str:
    """Return one entry of the actions so far: what was done, and below it what came of it.

    Args:
        action: As `show_action` gives it.
        events: What happened besides the pixels; of many, the first ones are told.
    """
    return "\n".join([action, *(f"  {plain_line(event)}" for event in events[:MAX_EVENTS])])


def page_lines(url: str, steps_left: int | None) -> list[str]:
    """Return where the browser is, and how many actions are left."""
    lines = [f"Page: {plain_line(url)[:_URL_LENGTH]}"]
    return lines if steps_left is None else [*lines, f"Actions left: {steps_left}"]


def memory_text(memory: str, memory_chars: int) -> str:
    """Return what is kept of a memory."""
    return plain(memory[:memory_chars])


def thought_text(thought: str) -> str:
    """Return a thought as later prompts repeat it, on one line."""
    return plain_line(thought[:_THOUGHT_LENGTH])


def outcome_lines(turn: Turn) -> list[str]:
    """Return what came of an action, one event a line; why it was none stands among them."""
    lines = [plain_line(event)[:_LINE_LENGTH] for event in turn.events[:MAX_EVENTS]]
    if turn.is_unchanged and not isinstance(turn.decision.action, InvalidAction):
        lines.append("no_change: page and address are as before")
    return lines


def earlier_lines(scene: Scene, num_turns: int, num_thoughts: int) -> list[str]:
    """Return the steps so far, below a line that says so; nothing where there are none.

    Args:
        num_turns: Oldest turns of the scene that are told.
        num_thoughts: Newest turns whose thoughts are told.
    """
    entries = [
        turn_lines(turn, with_thought=len(scene.turns) - index <= num_thoughts)
        for index, turn in enumerate(scene.turns[:num_turns])
    ]
    if scene.start_events:
        events = (f"  {plain_line(event)}" for event in scene.start_events)
        entries.insert(0, "\n".join(["the page opened", *events]))
    return ["Previous actions:", *entries] if entries else []


def turn_lines(turn: Turn, *, with_thought: bool) -> str:
    """Return one entry of the steps so far: action, thought, what came of it."""
    lines = [plain_line(show_action(turn.decision.action))]
    if with_thought and turn.decision.thought:
        lines.append(f"  thought: {thought_text(turn.decision.thought)}")
    return "\n".join([*lines, *(f"  {line}" for line in outcome_lines(turn))])
