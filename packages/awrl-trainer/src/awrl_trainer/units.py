"""Rows that are computed together because they share their prefix.

Invariant: every row lies in exactly one unit; a unit's cost stays within the token budget unless it
is a single row.
"""

from __future__ import annotations

from collections.abc import Sequence

from awrl_trainer.micro_batches import RowSize
from awrl_trainer.rows import TrainRow

__all__ = ["plan_units", "unit_size"]


def plan_units(rows: Sequence[TrainRow], *, token_budget: int) -> list[list[int]]:
    """Put rows of one non-empty `prefix_id` together, as many as the budget holds.

    Args:
        rows: All rows.
        token_budget: Largest cost of a unit, in tokens: its prefix once, and all suffixes.

    Returns:
        Indices of the rows of each unit, in the order of their first rows.
    """
    units: list[list[int]] = []
    open_units: dict[str, tuple[list[int], int]] = {}
    for index, row in enumerate(rows):
        unit, cost = open_units.get(row.prefix_id, ([], 0))
        if row.prefix_id and row.num_suffix_tokens and unit:
            cost += row.num_suffix_tokens
            if cost <= token_budget:
                unit.append(index)
                open_units[row.prefix_id] = (unit, cost)
                continue
        unit = [index]
        units.append(unit)
        if row.num_suffix_tokens:
            open_units[row.prefix_id] = (unit, row.cost_tokens)
    return units


def unit_size(rows: Sequence[TrainRow], unit: Sequence[int]) -> RowSize:
    """Return what a unit costs: the first row whole, and the suffixes of the others."""
    first = rows[unit[0]]
    others = sum(rows[index].num_suffix_tokens for index in unit[1:])
    return RowSize(num_tokens=first.cost_tokens + others, has_images=first.has_images)
