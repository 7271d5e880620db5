"""Which rank computes which rows, in which order: pure functions of the rows and the version.

Invariants:

* Every rank computes the same plan alone; each row lies in one mini-batch of one rank.
* The order is a function of seed, version and epoch: it differs from update to update and from epoch
  to epoch, and a resumed run goes through the same one.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from awrl_trainer.config import ActorConfig
from awrl_trainer.micro_batches import MicroBatch, plan_micro_batches
from awrl_trainer.rows import TrainRow
from awrl_trainer.units import plan_units, unit_size

__all__ = ["MiniBatch", "epoch_order", "plan_mini_batches", "plan_ranks", "rows_digest"]


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
        rows: All rows.
        version: Version at the start of the update; moves the shuffle.
        config: Mini-batches, budget, aggregation, seed.
        rank: Whose share.
        num_ranks: Number of ranks.
    """
    rng = np.random.default_rng((config.seed, version))
    units = plan_units(rows, token_budget=config.token_budget)
    shuffled = rng.permutation(len(units))
    mini_batches: list[MiniBatch] = []
    for chosen in np.array_split(shuffled, config.num_mini_batches):
        mine = [units[index] for index in sorted(chosen.tolist())]
        if mine:
            plan = _plan_units(rows, mine, config, num_ranks)[rank]
            whole = [rows[index] for unit in mine for index in unit]
            mini_batches.append(
                MiniBatch(micro_batches=tuple(plan), denominator=_denominator(whole, config))
            )
    return mini_batches


def plan_ranks(
    rows: Sequence[TrainRow], config: ActorConfig, *, num_ranks: int = 1
) -> list[list[MicroBatch]]:
    """Return each rank's micro-batches of one pass over all rows."""
    return _plan_units(rows, plan_units(rows, token_budget=config.token_budget), config, num_ranks)


def epoch_order(count: int, version: int, epoch: int, *, seed: int) -> list[int]:
    """Return the order of mini-batches; the first epoch's is that of the shuffled rows.

    Args:
        count: Number of mini-batches.
        version: Version at the start of the update.
        epoch: Index of the pass.
        seed: Seed of the run.
    """
    if epoch == 0:
        return list(range(count))
    return np.random.default_rng((seed, version, epoch)).permutation(count).tolist()


def rows_digest(rows: Sequence[TrainRow], version: int) -> bytes:
    """Return 16 bytes that tell whether two ranks were given the same work."""
    digest = hashlib.blake2b(str(version).encode(), digest_size=16)
    for row in rows:
        digest.update(np.ascontiguousarray(row.input_ids).tobytes())
        digest.update(np.ascontiguousarray(row.loss_mask).tobytes())
        digest.update(str((row.image_keys, row.prefix_id)).encode())
    return digest.digest()


def _plan_units(
    rows: Sequence[TrainRow], units: Sequence[Sequence[int]], config: ActorConfig, num_ranks: int
) -> list[list[MicroBatch]]:
    plan = plan_micro_batches(
        [unit_size(rows, unit) for unit in units],
        num_ranks=num_ranks,
        token_budget=config.token_budget,
        is_packed=config.is_packed,
    )
    return [
        [
            MicroBatch(
                row_indices=tuple(row for unit in part.row_indices for row in units[unit]),
                is_dummy=part.is_dummy,
            )
            for part in parts
        ]
        for parts in plan
    ]


def _denominator(rows: Sequence[TrainRow], config: ActorConfig) -> float:
    counts = [row.num_trainable_tokens for row in rows]
    if config.loss.aggregation == "sequence_mean":
        return float(max(1, sum(count > 0 for count in counts)))
    return float(max(1, sum(counts)))
