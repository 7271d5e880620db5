"""What an agent is told of an episode so far, in no format yet.

Invariants:

* of a reply only what was read in it goes on: its action, thought and memory, never its words;
* there is one screenshot for each turn, what the policy saw before it, and one for the page now.
"""

from __future__ import annotations

import msgspec

from webrl.agent.reply import Decision


class Turn(msgspec.Struct, frozen=True, kw_only=True):
    """One decision of the policy, and what came of it."""

    decision: Decision
    """What it decided."""
    events: tuple[str, ...] = ()
    """What happened besides the pixels, such as `dialog: alert 'hello' accepted`."""
    is_unchanged: bool = False
    """Whether screenshot and address were the same afterwards."""


class Scene(msgspec.Struct, frozen=True, kw_only=True):
    """The page as it stands, and how it came to that."""

    goal: str
    """Instruction of the episode."""
    url: str
    """Address of the page."""
    sizes: tuple[tuple[int, int], ...]
    """`(height, width)` of every screenshot of the episode in pixels, the newest last."""
    elements: tuple[str, ...] | None = None
    """Numbered elements of the page, such as `7 button: Submit`; `None` where none are numbered."""
    turns: tuple[Turn, ...] = ()
    """What was decided so far, oldest first."""
    start_events: tuple[str, ...] = ()
    """What happened while the start page opened."""
    steps_left: int | None = None
    """Actions that the episode has left, the coming one included; `None` where nobody counts."""
    memory: str = ""
    """What the policy noted last; empty where it noted nothing."""


class PolicyPrompt(msgspec.Struct, frozen=True, kw_only=True):
    """What a policy is asked: tokens, and how many of the newest screenshots belong to them."""

    ids: list[int]
    """Token ids with one placeholder per image."""
    num_images: int
    """Screenshots, the newest ones."""
