"""Token-budget micro-batches, equal in number on every rank.

Invariants:

* The plan is a pure function of the rows' sizes: every rank computes the same plan alone, so no
  rank waits for another to learn how many steps there are.
* Every row lies in exactly one micro-batch of one rank, with full weight.
* Rank ``r``'s ``k``-th micro-batch is of the same kind (with or without images) as every other rank's
  ``k``-th: a sharded vision tower then gathers on all ranks or on none. Where a rank has no row
  left, a row of the right kind stands in with weight zero.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["MicroBatch", "RowSize", "plan_micro_batches"]


@dataclass(frozen=True, kw_only=True, slots=True)
class RowSize:
    """What planning needs to know of a row."""

    num_tokens: int
    """Tokens that the model computes."""

    has_images: bool = False
    """Whether the vision tower runs."""


@dataclass(frozen=True, kw_only=True, slots=True)
class MicroBatch:
    """Rows that one rank computes in one forward pass."""

    row_indices: tuple[int, ...]
    """Indices into the rows that were planned."""

    is_dummy: bool = False
    """True when its rows only keep the ranks in step: their loss weighs zero."""


def plan_micro_batches(
    sizes: Sequence[RowSize],
    *,
    num_ranks: int,
    token_budget: int,
    is_packed: bool = False,
) -> list[list[MicroBatch]]:
    """Cut rows into micro-batches of bounded cost, the same count on every rank.

    The cost of a micro-batch is the number of rows times the longest (padded), or the sum of the
    lengths (packed). A row longer than the budget gets a micro-batch of its own.

    Args:
        sizes: Size of each row.
        num_ranks: Number of ranks.
        token_budget: Largest cost of a micro-batch, in tokens.
        is_packed: Whether rows are laid end to end instead of padded.

    Returns:
        For each rank its micro-batches, in the order of execution.

    Raises:
        ValueError: `num_ranks` or `token_budget` below 1.
    """
    for name, value in (("num_ranks", num_ranks), ("token_budget", token_budget)):
        if value < 1:
            raise ValueError(f"{name} must be >= 1, got {value}. Give a positive number.")
    plan: list[list[MicroBatch]] = [[] for _ in range(num_ranks)]
    for has_images in (True, False):
        kind = [i for i, size in enumerate(sizes) if size.has_images is has_images]
        if not kind:
            continue
        per_rank = _balance([sizes[i].num_tokens for i in kind], num_ranks)
        cuts = [
            _cut([kind[i] for i in chosen], sizes, token_budget, is_packed) for chosen in per_rank
        ]
        count = max(len(cut) for cut in cuts)
        stand_in = min(kind, key=lambda i: sizes[i].num_tokens)
        for rank, cut in enumerate(cuts):
            real = [MicroBatch(row_indices=tuple(rows)) for rows in cut]
            dummy = MicroBatch(row_indices=(stand_in,), is_dummy=True)
            plan[rank] += real + [dummy] * (count - len(real))
    return plan


def _balance(costs: Sequence[int], num_parts: int) -> list[list[int]]:
    """Deal items to parts, the heaviest first, each to the lightest part so far.

    Equal costs are dealt in turns, so that equal rows end in equal counts.
    """
    order = sorted(range(len(costs)), key=lambda i: (-costs[i], i))
    loads = [0] * num_parts
    parts: list[list[int]] = [[] for _ in range(num_parts)]
    for item in order:
        lightest = min(range(num_parts), key=lambda p: (loads[p], len(parts[p]), p))
        parts[lightest].append(item)
        loads[lightest] += costs[item]
    return parts


def _cut(
    indices: Sequence[int], sizes: Sequence[RowSize], budget: int, is_packed: bool
) -> list[list[int]]:
    """Cut one rank's rows, longest first, into runs whose cost stays within the budget.

    Sorted rows pad least. The number of micro-batches is found greedily, then the same rows are
    spread evenly over it, so that the last one is not a near-empty forward pass.
    """
    order = sorted(indices, key=lambda i: (-sizes[i].num_tokens, i))
    greedy = _cut_greedily(order, sizes, budget, is_packed)
    if not greedy:
        return []
    even_rows = -(-len(order) // len(greedy))
    even = [order[start : start + even_rows] for start in range(0, len(order), even_rows)]
    is_within = all(_cost(rows, sizes, is_packed) <= budget for rows in even)
    return even if is_within and len(even) == len(greedy) else greedy


def _cut_greedily(
    order: Sequence[int], sizes: Sequence[RowSize], budget: int, is_packed: bool
) -> list[list[int]]:
    runs: list[list[int]] = []
    for index in order:
        if runs and _cost([*runs[-1], index], sizes, is_packed) <= budget:
            runs[-1].append(index)
        else:
            runs.append([index])
    return runs


def _cost(rows: Sequence[int], sizes: Sequence[RowSize], is_packed: bool) -> int:
    lengths = [sizes[i].num_tokens for i in rows]
    return sum(lengths) if is_packed else len(lengths) * max(lengths)
