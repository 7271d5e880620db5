from __future__ import annotations

from types import ModuleType

import numpy as np
import pytest
from awrl_trainer import ActorConfig, Batch, FSDPActor, LossConfig, OptimizerConfig, TrainRow
from awrl_trainer import collate_text as collate
from awrl_trainer.testing import TinyImagePolicy, TinyPolicy
from awrl_trainer.update_plan import group_size, plan_mini_batches, plan_ranks, prefix_groups


def config(**changes: object) -> ActorConfig:
    optimizer = OptimizerConfig(lr=1e-3)
    return ActorConfig(optimizer=optimizer, **changes)  # pyright: ignore[reportArgumentType]


def order_of(rows: list[TrainRow], version: int, **changes: object) -> list[int]:
    plan = plan_mini_batches(rows, version, config=config(**changes), rank=0, num_ranks=1)
    return [i for mini in plan for micro in mini.micro_batches for i in micro.row_indices]


def test_updates_see_the_same_rows_in_different_orders(programs: ModuleType) -> None:
    rows = programs.make_rows(10)
    first, second = (order_of(rows, version, num_mini_batches=5) for version in (0, 1))
    assert sorted(first) == sorted(second) == list(range(10))
    assert first != second
    assert order_of(rows, 1, num_mini_batches=5) == second, "a resumed run sees the same order"


def test_epochs_see_mini_batches_in_different_orders(programs: ModuleType) -> None:
    seen: list[str] = []

    def remember(rows: list[TrainRow]) -> Batch:
        seen.append(rows[0].row_id)
        return collate(rows)

    actor = FSDPActor(
        TinyPolicy(),
        config(num_mini_batches=6, num_epochs=3, loss=LossConfig(proximal_method="loglinear")),
        collate=remember,  # pyright: ignore[reportArgumentType]
    )
    actor.update(programs.make_rows(6))
    epochs = [tuple(seen[start : start + 6]) for start in (0, 6, 12)]
    assert {frozenset(epoch) for epoch in epochs} == {frozenset("012345")}
    assert len(set(epochs)) == 3


def test_after_shuffle_and_split_each_text_keeps_its_image(programs: ModuleType) -> None:
    """The first number of each patch is its image's key."""
    rows = [
        programs.image_row(row, image)
        for row, image in zip(programs.make_rows(6), (1, 1, 1, 2, 2, 2), strict=True)
    ]
    pairs: list[tuple[str, float]] = []
    num_at_once: list[int] = []

    def remember(chosen: list[TrainRow]) -> Batch:
        num_at_once.append(len(chosen))
        batch = programs.collate_images(chosen)
        pixels = batch.kwargs["pixel_values"].view(len(chosen), 2, 6)[:, 0, 0] * 8
        pairs.extend(zip((row.row_id for row in chosen), pixels.tolist(), strict=True))
        return batch

    actor = FSDPActor(
        TinyImagePolicy(),
        config(
            num_mini_batches=2,
            token_budget=20,
            loss=LossConfig(use_decoupled_loss=False, proximal_method="behavior"),
        ),
        collate=remember,  # pyright: ignore[reportArgumentType]
    )
    actor.update(rows)
    assert sorted(pairs) == [(str(i), float(1 + i // 3)) for i in range(6)]
    assert max(num_at_once) <= 2, "pixels of one micro-batch at a time"


def prefixed(prefix_id: str, num_prefix: int, num_suffix: int) -> TrainRow:
    length = num_prefix + num_suffix
    return TrainRow(
        input_ids=np.arange(length),
        loss_mask=np.arange(length) >= num_prefix,
        behavior_logprobs=np.zeros(length, dtype=np.float32),
        advantages=0.0,
        prefix_id=prefix_id,
    )


def test_groups_hold_equal_prefixes_up_to_the_budget() -> None:
    rows = [prefixed(name, 10, 5) for name in ("a", "b", "a", "", "a", "", "a")]
    groups = prefix_groups(rows, token_budget=25)
    assert groups == [[0, 2, 4], [1], [3], [5], [6]]
    assert group_size(rows, groups[0]).num_tokens == 25


@pytest.mark.parametrize(
    ("layout", "num_micro_batches"), [("shared_prefix", 1), ("packed", 2), ("padded", 3)]
)
def test_the_layout_says_what_fits_into_a_micro_batch(layout: str, num_micro_batches: int) -> None:
    """Rows of 15, 11, 11 and 11 tokens of which 10 are shared: 18 together, 26 and 22, or 15, 22, 11."""
    rows = [prefixed("a", 10, num_suffix) for num_suffix in (5, 1, 1, 1)]
    plan = plan_ranks(rows, config(row_layout=layout, token_budget=26))[0]
    assert len(plan) == num_micro_batches


def test_sequence_mean_counts_rows_that_have_trainable_tokens(programs: ModuleType) -> None:
    rows = [*programs.make_rows(3), prefixed("", 4, 0)]
    plan = plan_mini_batches(
        rows,
        0,
        config=config(loss=LossConfig(aggregation="sequence_mean")),
        rank=0,
        num_ranks=1,
    )
    assert plan[0].denominator == 3.0


@pytest.mark.requirement("proximal-snapshot")
@pytest.mark.parametrize("method", ["recompute", "loglinear", "metrics"])
def test_all_proximal_methods_agree_on_the_first_step_of_fresh_rows(
    method: str, programs: ModuleType
) -> None:
    """On-policy rows of the current version have proximal = behavior = current."""
    actor = FSDPActor(
        TinyPolicy(),
        config(loss=LossConfig(proximal_method=method)),  # pyright: ignore[reportArgumentType]
        collate=collate,
    )
    rows = programs.make_rows(4)
    fresh: list[TrainRow] = []
    for row, values in zip(rows, actor.logprobs(rows), strict=True):
        logprobs = np.zeros(len(row.input_ids), dtype=np.float32)
        logprobs[row.loss_mask] = values
        fresh.append(
            TrainRow(
                input_ids=row.input_ids,
                loss_mask=row.loss_mask,
                behavior_logprobs=logprobs,
                advantages=row.advantages,
                versions=row.versions,
            )
        )
    metrics = actor.update(fresh).metrics
    assert metrics["staleness_ratio/max"] == pytest.approx(1.0, abs=1e-6)
    assert metrics["update_ratio/max"] == pytest.approx(1.0, abs=1e-6)
    assert metrics["clip/fraction"] == 0.0
    assert ("proximal/loglinear_abs_error_mean" in metrics) == (method == "metrics")
