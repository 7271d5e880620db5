"""Which screenshots the judge gets.

Invariants:

* a screenshot that shows what the one before it shows is left out;
* the first and the last that are left are always among the chosen ones where two fit, else the last;
* the order is that of the episode.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Sequence


def without_repeats(screenshots: Sequence[str]) -> list[str]:
    """Return the screenshots that differ from the one before."""
    return [image for image, _ in itertools.groupby(screenshots)]


def spread(screenshots: Sequence[str], count: int) -> list[str]:
    """Return at most `count` screenshots, evenly spread, the last included."""
    if len(screenshots) <= count:
        return list(screenshots)
    if count == 1:
        return [screenshots[-1]]
    last = len(screenshots) - 1
    return [screenshots[round(i * last / (count - 1))] for i in range(count)]


def newest(screenshots: Sequence[str], relevant: Collection[int], count: int) -> list[str]:
    """Return at most `count` screenshots: the last one and the newest relevant ones."""
    last = len(screenshots) - 1
    chosen = sorted({index for index in relevant if index < last} | {last})
    return [screenshots[index] for index in chosen[-count:]]
