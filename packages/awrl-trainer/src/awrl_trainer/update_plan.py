"""Which rank computes which rows, in which order: pure functions of the rows and the version.

Rows that share a prefix form a group; groups are dealt to mini-batches, and those of one mini-batch to
micro-batches of bounded cost.

Invariants:

* Every rank computes the same plan alone, so no rank waits for another to learn how many steps there
  are. Each row lies in one micro-batch of one rank, with full weight.
* The order is a function of seed, version and epoch: it differs from update to update and from epoch
  to epoch, and a resumed run goes through the same one.
* Rank r's k-th micro-batch is of the same kind (with or without images) as every other rank's k-th: a
  sharded vision tower then gathers on all ranks or on none. Where a rank has no row left, a row of the
  right kind stands in with weight zero.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from awrl_trainer.config import ActorConfig
from awrl_trainer.rows import TrainRow


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


@dataclass(frozen=True, kw_only=True, slots=True)
class MiniBatch:
    """One rank's share of one optimizer step."""

    micro_batches: tuple[MicroBatch, ...]
    """Its forward passes, as many as on every other rank."""
    denominator: float
    """Trainable tokens (or rows that have some) of the mini-batch over all ranks."""


def plan_mini_batches(
    rows: Sequence[TrainRow], version: int, *, config: ActorConfig, rank: int, num_ranks: int
) -> list[MiniBatch]:
    """Return one rank's share of each mini-batch of an update.

    Args:
        version: Version at the start of the update; moves the shuffle.
    """
    rng = np.random.default_rng((config.seed, version))
    groups = _groups(rows, config)
    shuffled = rng.permutation(len(groups))
    mini_batches: list[MiniBatch] = []
    for chosen in np.array_split(shuffled, config.num_mini_batches):
        mine = [groups[index] for index in sorted(chosen.tolist())]
        if mine:
            plan = _plan_groups(rows, mine, config, num_ranks)[rank]
            whole = [rows[index] for group in mine for index in group]
            mini_batches.append(
                MiniBatch(micro_batches=tuple(plan), denominator=_denominator(whole, config))
            )
    return mini_batches


def plan_ranks(
    rows: Sequence[TrainRow], config: ActorConfig, *, num_ranks: int = 1
) -> list[list[MicroBatch]]:
    """Return each rank's micro-batches of one pass over all rows."""
    return _plan_groups(rows, _groups(rows, config), config, num_ranks)


def epoch_order(count: int, version: int, epoch: int, *, seed: int) -> list[int]:
    """Return the order of mini-batches; the first epoch's is that of the shuffled rows."""
    if epoch == 0:
        return list(range(count))
    return np.random.default_rng((seed, version, epoch)).permutation(count).tolist()


def rows_digest(rows: Sequence[TrainRow], state: str) -> bytes:
    """Return 16 bytes that tell whether two ranks were given the same work.

    Args:
        state: Whatever else the work depends on, such as version and configuration.
    """
    digest = hashlib.blake2b(state.encode(), digest_size=16)
    for row in rows:
        names = (row.row_id, row.group_id, row.prefix_id, row.image_keys, row.num_model_tokens)
        digest.update(repr((*names, sorted(row.extras.items()))).encode())
        # Nobody reads these beside trainable tokens.
        trained = (row.behavior_logprobs, row.advantages, row.versions)
        masked = [v[row.loss_mask] if isinstance(v, np.ndarray) else repr(v) for v in trained]
        for values in map(np.asarray, (row.input_ids, row.loss_mask, *masked)):
            digest.update(f"{values.dtype} {values.shape}".encode())
            digest.update(np.ascontiguousarray(values).tobytes())
    return digest.digest()


def _groups(rows: Sequence[TrainRow], config: ActorConfig) -> list[list[int]]:
    if config.row_layout == "shared_prefix":
        return prefix_groups(rows, token_budget=config.token_budget)
    return [[index] for index in range(len(rows))]


def _plan_groups(
    rows: Sequence[TrainRow], groups: Sequence[Sequence[int]], config: ActorConfig, num_ranks: int
) -> list[list[MicroBatch]]:
    plan = plan_micro_batches(
        [group_size(rows, group) for group in groups],
        num_ranks=num_ranks,
        token_budget=config.token_budget,
        is_packed=config.row_layout == "packed",
    )
    return [
        [
            MicroBatch(
                row_indices=tuple(row for group in part.row_indices for row in groups[group]),
                is_dummy=part.is_dummy,
            )
            for part in parts
        ]
        for parts in plan
    ]


def _denominator(rows: Sequence[TrainRow], config: ActorConfig) -> float:
    counts = [row.num_trainable_tokens for row in rows]
    if config.loss.aggregation != "token_mean":
        return float(max(1, sum(count > 0 for count in counts)))
    return float(max(1, sum(counts)))


def prefix_groups(rows: Sequence[TrainRow], *, token_budget: int) -> list[list[int]]:
    """Put rows of one non-empty `prefix_id` together, as many as the budget holds.

    Args:
        token_budget: Largest cost of a group, in tokens: its prefix once, and all suffixes.

    Returns:
        Indices of the rows of each group, in the order of their first rows.
    """
    groups: list[list[int]] = []
    open_groups: dict[str, tuple[list[int], int]] = {}
    for index, row in enumerate(rows):
        group, cost = open_groups.get(row.prefix_id, ([], 0))
        if row.prefix_id and row.num_suffix_tokens and group:
            cost += row.num_suffix_tokens
            if cost <= token_budget:
                group.append(index)
                open_groups[row.prefix_id] = (group, cost)
                continue
        group = [index]
        groups.append(group)
        if row.num_suffix_tokens:
            open_groups[row.prefix_id] = (group, row.cost_tokens)
    return groups


def group_size(rows: Sequence[TrainRow], group: Sequence[int]) -> RowSize:
    """Return what a group costs: the first row whole, and the suffixes of the others."""
    first = rows[group[0]]
    others = sum(rows[index].num_suffix_tokens for index in group[1:])
    return RowSize(num_tokens=first.cost_tokens + others, has_images=first.has_images)


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
