"""Goal, previous actions and screenshots as one chat, for any checkpoint with a chat template.

Invariants:

* the text is the same for every checkpoint; how roles and images are marked is the chat template's
  affair. The tiny policy's template leaves out the system turn, which explains the action grammar
  to models that were not warmed up on it;
* no text that comes from a page or from the policy can spell a special token.
"""

from __future__ import annotations

from collections.abc import Sequence

from webrl.plain_text import plain, plain_line

_START = """\
You operate a web browser. You see screenshots of it; the last one is the current page.
Answer with exactly one action and nothing else. Below each previous action stands what came of it
besides the picture: the text of a dialog, which is accepted by itself, or why nothing happened."""

_END = """\
type("text"): type into the focused element; \\n presses Enter
press("key"): press a key or chord, such as Enter or Control+a
wait(): wait for the page
go_back(): go to the previous page
navigate("url"): open a page
answer("text"): finish with an answer"""

SYSTEM_PROMPT = f"""\
{_START} Positions are on a grid from 0 to 1000, x from
left to right and y from top to bottom.
left_click(x, y): click at a position
double_click(x, y): click twice
hover(x, y): move the pointer
drag(x, y, to_x, to_y): press at one position, release at another
scroll(x, y, dx, dy): scroll by dx, dy with the pointer at x, y
{_END}"""
"""System turn: the actions of `webrl.actions`, for models that follow instructions."""

MARKS_SYSTEM_PROMPT = f"""\
{_START} Elements of the page are framed and numbered, and listed
by number; n and m stand for such numbers.
left_click(n): click an element
double_click(n): click it twice
hover(n): move the pointer onto it
drag(n, m): press at one element, release at another
scroll(n, dx, dy): scroll by dx, dy over an element, or over the page with n = 0; 1000 is its size
{_END}"""
"""System turn where the elements of the page are numbered."""

TINY_CHAT_TEMPLATE = """\
{%- for message in messages -%}
{%- if message.role != 'system' -%}
<|im_start|>{{ message.role }}
{% if message.content is string -%}
{{ message.content }}
{%- else -%}
{%- for part in message.content -%}
{%- if part.type == 'image' -%}
<|vision_start|><|image_pad|><|vision_end|>
{%- else -%}
{{ part.text }}
{%- endif -%}
{%- endfor -%}
{%- endif -%}
<|im_end|>
{% endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}
<|im_start|>assistant
{% endif -%}
"""
"""Qwen's chat mark-up without the system turn and without tools."""


MAX_EVENTS = 5
"""Events of one action that a prompt tells; a page can bring about any number."""
_LINE_LENGTH = 240
"""Characters of one line: an action has at most 200, an event its kind besides."""


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
    if elements is not None:
        lines += ["Elements:", *(map(plain_line, elements) if elements else ["none"])]
    return "\n".join(lines) + "\n"


def _entry(text: str) -> str:
    lines = text.splitlines()[: 1 + MAX_EVENTS]
    return plain("\n".join(line[:_LINE_LENGTH] for line in lines))


def action_lines(action: str, events: Sequence[str]) -> str:
    """Return one entry of the actions so far: what was done, and below it what came of it.

    Args:
        action: As `show_action` gives it.
        events: What happened besides the pixels; of many, the first ones are told.
    """
    return "\n".join([action, *(f"  {plain_line(event)}" for event in events[:MAX_EVENTS])])


def chat(
    goal: str,
    previous_actions: Sequence[str],
    num_images: int,
    elements: Sequence[str] | None = None,
) -> list[dict[str, object]]:
    """Return chat messages: system turn, then goal, previous actions and images, in this order.

    The text comes before the images so that a causal model reads the page knowing the goal.
    """
    text = user_text(goal, previous_actions, elements)
    content: list[dict[str, str]] = [{"type": "text", "text": text}]
    content += [{"type": "image"}] * num_images
    system = SYSTEM_PROMPT if elements is None else MARKS_SYSTEM_PROMPT
    return [
        {"role": "system", "content": [{"type": "text", "text": system}]},
        {"role": "user", "content": content},
    ]
