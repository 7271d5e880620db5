"""Goal, previous actions and screenshots as one chat, for any checkpoint with a chat template.

Invariant: the text is the same for every checkpoint; how roles and images are marked is the chat
template's affair. The tiny policy's template leaves out the system turn, which explains the
action grammar to models that were not warmed up on it.
"""

from __future__ import annotations

from collections.abc import Sequence

SYSTEM_PROMPT = """\
You operate a web browser. You see screenshots of it; the last one is the current page.
Answer with exactly one action and nothing else. Positions are on a grid from 0 to 1000, x from
left to right and y from top to bottom.
left_click(x, y): click at a position
type("text"): type into the focused element
scroll(x, y, dx, dy): scroll by dx, dy with the pointer at x, y
wait(): wait for the page
go_back(): go to the previous page
navigate("url"): open a page
answer("text"): finish with an answer"""
"""System turn: the actions of `webrl.actions`, for models that follow instructions."""

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


def user_text(goal: str, previous_actions: Sequence[str]) -> str:
    """Return the text of the user's turn: the goal, then the actions so far, one a line."""
    lines = [f"Goal: {goal}"]
    if previous_actions:
        lines += ["Previous actions:", *previous_actions]
    return "\n".join(lines) + "\n"


def chat(goal: str, previous_actions: Sequence[str], num_images: int) -> list[dict[str, object]]:
    """Return chat messages: system turn, then goal, previous actions and images, in this order.

    The text comes before the images so that a causal model reads the page knowing the goal.
    """
    content: list[dict[str, str]] = [{"type": "text", "text": user_text(goal, previous_actions)}]
    content += [{"type": "image"}] * num_images
    return [
        {"role": "system", "content": [{"type": "text", "text": SYSTEM_PROMPT}]},
        {"role": "user", "content": content},
    ]
