"""A trainer rank without forward and backward passes.

Everything but what an update computes is the real rank's: loading shard by shard, FSDP, the optimizer
with its state, the plan of mini-batches and steps, publishing, snapshots, checkpoints.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence

import torch
from awrl_trainer import Batch, Collate, TrainRow, UpdateResult
from awrl_trainer.testing.nudging import NudgingRunner

from webrl.policy import PolicyProcessor
from webrl.training.actor_rank import UpdateEngine

UPDATE_S_VARIABLE = "WEBRL_REHEARSED_UPDATE_S"
"""Environment variable with the seconds that an update takes at least; 1 where it is not set."""


class RehearsedEngine(UpdateEngine):
    """One rank whose updates fetch the images of its rows, take a set time, and move every weight."""

    _runner = NudgingRunner

    def update(self, rows: Sequence[TrainRow]) -> UpdateResult:
        """Run one update."""
        started_s = time.perf_counter()
        result = super().update(rows)
        wanted_s = float(os.environ.get(UPDATE_S_VARIABLE, "1"))
        time.sleep(max(0.0, wanted_s - (time.perf_counter() - started_s)))
        result.metrics["time/update_s"] = time.perf_counter() - started_s
        return result

    def _collate(self, processor: PolicyProcessor) -> Collate:
        del processor

        def fetch(rows: Sequence[TrainRow]) -> Batch:
            for row in rows:
                self._fetch(row.image_keys)
            nothing = torch.zeros(0, dtype=torch.int64)
            return Batch(kwargs={}, token_positions=nothing)

        return fetch
