"""Between the grid of the actions and the pixels of a viewport.

Invariant: a pixel's centre that goes to the grid and back lands in the same pixel, for viewports
up to 500 pixels; above that the grid itself is coarser than the pixels.
"""

from __future__ import annotations

from webrl.actions.action import GRID_SIZE


def to_pixels(x: int, y: int, *, width: int, height: int) -> tuple[float, float]:
    """Return the point in CSS pixels, always inside the viewport.

    Args:
        x: Grid units from the left.
        y: Grid units from the top.
        width: Viewport width in CSS pixels.
        height: Viewport height in CSS pixels.

    Returns:
        `(x, y)` in CSS pixels, at least half a pixel off the right and the bottom edge.
    """
    return (
        min(max(x * width / GRID_SIZE, 0.0), width - 0.5),
        min(max(y * height / GRID_SIZE, 0.0), height - 0.5),
    )


def to_grid(x: float, y: float, *, width: int, height: int) -> tuple[int, int]:
    """Return the grid point nearest to a point in CSS pixels.

    Args:
        x: CSS pixels from the left.
        y: CSS pixels from the top.
        width: Viewport width in CSS pixels.
        height: Viewport height in CSS pixels.

    Returns:
        `(x, y)` in grid units, 0 to 1000.
    """
    return (
        min(max(round(x * GRID_SIZE / width), 0), GRID_SIZE),
        min(max(round(y * GRID_SIZE / height), 0), GRID_SIZE),
    )
