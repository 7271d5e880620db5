"""How many more episodes may start now, and which bound says so.

Everything is counted in episodes. Consuming creates no capacity; releasing (publishing, discarding,
skipping) does.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

CONCURRENCY = "concurrency"
"""Name of the bound `max_concurrent - running`."""

STALENESS = "staleness"
"""Name of the bound `(eta + 1) * B + released - (finished + running + reserved)`."""


class Capacity(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to "may one more episode start?"."""

    value: int
    """Episodes that may start now, never negative."""
    binding: str
    """Name of the smallest bound; on a tie the first of concurrency, staleness, extra bounds."""
    bounds: dict[str, int]
    """Every bound by name; may be negative after a limit was lowered."""

    def __bool__(self) -> bool:
        """Return whether at least one episode may start."""
        return self.value > 0

    def describe(self) -> str:
        """Return one sentence that names the binding bound."""
        listed = ", ".join(f"{name} {room}" for name, room in self.bounds.items())
        return f"{self.value} more episodes may start; {self.binding} binds ({listed})"


def compute_capacity(
    *,
    max_concurrent: int,
    budget: int,
    running: int,
    reserved: int,
    finished: int,
    released: int,
    extra_bounds: Mapping[str, int] | None = None,
) -> Capacity:
    """Return `min(max_concurrent - running, budget + released - (finished + running + reserved))`.

    With exactly B episodes a version the second bound is the published
    `(eta + version + 1) * B - (accepted + running)`; unlike it, it survives skipped updates and
    uneven batches.

    Args:
        max_concurrent: Slots over all workers.
        budget: `(eta + 1) * B`.
        running: Episodes that hold a slot.
        reserved: Units that open groups hold for members that are not running.
        finished: Episodes delivered so far, consumed ones included.
        released: Episodes whose batch was published, skipped or discarded.
        extra_bounds: Further named bounds, in episodes (an image store's free room).

    Returns:
        The smallest bound, clipped at 0, with its name.
    """
    bounds = {
        CONCURRENCY: max_concurrent - running,
        STALENESS: budget + released - (finished + running + reserved),
    }
    if extra_bounds:
        bounds.update(extra_bounds)
    binding = min(bounds, key=bounds.__getitem__)
    return Capacity(value=max(0, bounds[binding]), binding=binding, bounds=bounds)
