"""Sizes of pages that a policy can be shown."""

from __future__ import annotations

SHORTEST_SIDE, LONGEST_SIDE = 16, 8192
"""Pixels of one side."""

MOST_ASPECT = 200
"""Longer over shorter side; image processors of Qwen's family refuse more."""


def broken_page_size(width: int, height: int) -> str | None:
    """Return the rule that a size breaks, None where a screenshot of it can be shown."""
    if not all(SHORTEST_SIDE <= side <= LONGEST_SIDE for side in (width, height)):
        return f"between {SHORTEST_SIDE} and {LONGEST_SIDE} pixels on each side"
    if max(width, height) > MOST_ASPECT * min(width, height):
        return f"at most {MOST_ASPECT} times as long as wide, as image processors want it"
    return None
