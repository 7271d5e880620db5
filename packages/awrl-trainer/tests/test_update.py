"""One update as a whole: what its metrics speak of, and what a failure in the middle leaves."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Sequence
from types import ModuleType
from typing import Any

import pytest
import torch
from awrl_trainer import (
    ActorConfig,
    Batch,
    BatchError,
    FSDPActor,
    LossConfig,
    OptimizerConfig,
    TrainRow,
    collate_text,
)
from awrl_trainer.testing import TinyImagePolicy, TinyPolicy
from torch import Tensor

BROKEN_TOKEN = 30


class PolicyWithHole(TinyPolicy):
    """A policy that can't compute rows with a certain token."""

    def backbone(self, *, input_ids: Tensor, **others: Tensor) -> Tensor:
        hidden = super().backbone(input_ids=input_ids, **others)
        is_broken = (input_ids == BROKEN_TOKEN).any(1)[:, None, None]
        return hidden * torch.where(is_broken, math.nan, 1.0)


def config(**changes: Any) -> ActorConfig:
    return ActorConfig(
        optimizer=OptimizerConfig(kind="sgd", lr=0.1),
        num_mini_batches=4,
        loss=LossConfig(kl_coefficient=0.1, proximal_method="metrics"),
        **changes,
    )


def break_row(row: TrainRow) -> None:
    row.input_ids[0] = BROKEN_TOKEN


def without_times(metrics: dict[str, float]) -> dict[str, float]:
    return {name: value for name, value in metrics.items() if not name.startswith("time/")}


@pytest.mark.parametrize("num_broken", [1, 3])
def test_metrics_speak_of_the_steps_that_were_taken(programs: ModuleType, num_broken: int) -> None:
    rows = programs.make_rows(4)
    for row in rows[:num_broken]:
        break_row(row)
    actor = FSDPActor(PolicyWithHole(), config(), collate=collate_text)
    metrics = without_times(actor.update(rows).metrics)
    assert all(map(math.isfinite, metrics.values())), metrics
    assert metrics["optimizer/num_skipped_steps"] == num_broken
    assert metrics["optimizer/num_steps"] == 4 - num_broken
    trained = rows[num_broken:]
    assert metrics["loss/num_tokens"] == sum(row.num_trainable_tokens for row in trained)
    assert actor.version == 1


def test_an_update_of_skipped_steps_alone_has_neither_loss_nor_norm(programs: ModuleType) -> None:
    rows = programs.make_rows(4)
    for row in rows:
        break_row(row)
    actor = FSDPActor(PolicyWithHole(), config(), collate=collate_text)
    metrics = without_times(actor.update(rows).metrics)
    assert all(map(math.isfinite, metrics.values())), metrics
    assert not {"loss/value", "optimizer/grad_norm"} & metrics.keys()
    assert metrics["optimizer/num_skipped_steps"] == 4
    assert actor.version == 0


def test_ages_leave_out_tokens_of_unknown_version(programs: ModuleType) -> None:
    rows = programs.make_rows(3)
    rows[0].versions[:] = -1
    settings = ActorConfig(optimizer=OptimizerConfig(lr=1e-3))
    actor = FSDPActor(TinyPolicy(), settings, collate=collate_text, version=2)
    metrics = actor.update(rows).metrics
    assert metrics["off_policyness/mean"] == metrics["off_policyness/max"] == 2.0


@pytest.mark.parametrize("num_good_calls", range(8))
def test_weights_that_moved_before_a_failure_have_a_version_of_their_own(
    programs: ModuleType, num_good_calls: int
) -> None:
    def collate(rows: Sequence[TrainRow]) -> Batch:
        if not num_left:
            raise BatchError("a screenshot is gone")
        num_left.pop()
        return collate_text(rows)

    num_left = [None] * num_good_calls
    actor = FSDPActor(TinyPolicy(), config(), collate=collate)
    before = programs.full_weights(actor.policy)
    before = {name: value.clone() for name, value in before.items()}
    # Three calls compute proximal log-probs, then each mini-batch is one call.
    num_steps = max(0, num_good_calls - 3)
    outcome = pytest.raises(BatchError) if num_steps < 4 else contextlib.nullcontext()
    with outcome:
        actor.update(programs.make_rows(4))
    after = programs.full_weights(actor.policy)
    has_moved = any(not torch.equal(after[name], value) for name, value in before.items())
    assert has_moved == (actor.version == 1) == (num_steps > 0)


def test_a_row_with_images_computes_the_same_beside_any_other(programs: ModuleType) -> None:
    rows = [programs.image_row(row, image) for image, row in enumerate(programs.make_rows(4))]
    alone = ActorConfig(optimizer=OptimizerConfig(lr=1e-3), token_budget=1)
    together = ActorConfig(optimizer=OptimizerConfig(lr=1e-3), token_budget=10**6)
    results = [
        FSDPActor(TinyImagePolicy(), settings, collate=programs.collate_images).logprobs(rows)
        for settings in (alone, together)
    ]
    for one, other in zip(*results, strict=True):
        assert one == pytest.approx(other, abs=1e-5)
