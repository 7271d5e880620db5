"""Prompts within their budget of tokens.

Invariants:

* goal, newest screenshot and memory are in every prompt; of all else the oldest goes first, and of
  the elements the last ones;
* a prompt that fits as a whole is not cut.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from webrl.agent.history import PolicyPrompt, Scene
from webrl.agent.protocol import ChatTokens
from webrl.config import AgentSection
from webrl.errors import PolicyError


class Extent(msgspec.Struct, frozen=True, kw_only=True):
    """How much of a scene a prompt tells."""

    num_turns: int
    """Newest turns."""
    num_images: int
    """Newest screenshots, one at least."""
    num_elements: int
    """First elements of the list."""


def prompt_within(
    scene: Scene,
    section: AgentSection,
    tokens: ChatTokens,
    max_tokens: int | None,
    render: Callable[[Scene, int], list[int]],
) -> PolicyPrompt:
    """Return the longest prompt of a scene that fits.

    Args:
        max_tokens: Most tokens, those of images included; `None` for no bound.
        render: Returns the ids of a scene with so many images.

    Raises:
        PolicyError: Goal, newest screenshot and memory alone are too much.
    """
    extent = Extent(
        num_turns=_least(len(scene.turns), section.history.num_actions),
        num_images=_least(len(scene.sizes), section.images),
        num_elements=len(scene.elements or ()),
    )
    while True:
        ids = render(_part(scene, extent), extent.num_images)
        sizes = scene.sizes[-extent.num_images :]
        num_tokens = len(ids) + sum(tokens.num_image_tokens(*size) - 1 for size in sizes)
        if max_tokens is None or num_tokens <= max_tokens:
            return PolicyPrompt(ids=ids, num_images=extent.num_images)
        smaller = _smaller(scene, extent)
        if smaller is None:
            raise PolicyError(
                f"goal, screenshot and memory must fit into {max_tokens} tokens beside the answer, "
                f"got {num_tokens}. Raise inference.context_length or agent.max_prompt_tokens, or "
                "lower agent.max_pixels or agent.history.memory_chars."
            )
        extent = smaller


def _least(count: int, bound: int | None) -> int:
    return count if bound is None else min(count, bound)


def _part(scene: Scene, extent: Extent) -> Scene:
    """Return the part of a scene that a prompt tells; the memory is that of the whole."""
    first = len(scene.turns) - extent.num_turns
    return msgspec.structs.replace(
        scene,
        turns=scene.turns[first:],
        start_events=() if first else scene.start_events,
        elements=None if scene.elements is None else scene.elements[: extent.num_elements],
    )


def _smaller(scene: Scene, extent: Extent) -> Extent | None:
    """Return what to tell instead, `None` where nothing is left to leave out."""
    turns = scene.turns[len(scene.turns) - extent.num_turns :]
    told = sum(len(turn.decision.thought) + 80 * (1 + len(turn.events)) for turn in turns)
    listed = sum(len(text) for text in (scene.elements or ())[: extent.num_elements])
    replace = msgspec.structs.replace
    if extent.num_elements and listed >= told:
        return replace(extent, num_elements=extent.num_elements // 2)
    if extent.num_images > 1 and extent.num_images > extent.num_turns // 2:
        return replace(extent, num_images=extent.num_images - 1)
    if extent.num_turns:
        return replace(extent, num_turns=extent.num_turns // 2)
    if extent.num_images > 1:
        return replace(extent, num_images=extent.num_images - 1)
    return None
