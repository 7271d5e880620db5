from __future__ import annotations

import contextlib
from typing import Any

import numpy as np
import pytest
import torch
from awrl_trainer import (
    ActorConfig,
    Batch,
    BatchError,
    FSDPActor,
    OptimizerConfig,
    TrainRow,
    collate_model_inputs,
    collate_text,
)
from awrl_trainer.rows import check_batch, check_rows
from awrl_trainer.testing import TinyPolicy


class TextInputs:
    """What a text model reads of one row."""

    pixel_values: torch.Tensor | None = None
    image_grid_thw = None

    def __init__(self, input_ids: torch.Tensor) -> None:
        self.input_ids = input_ids
        self.position_ids = torch.arange(len(input_ids))
        self.mm_token_type_ids = torch.zeros_like(input_ids)


def row(ids: list[int], mask: list[int], **changes: Any) -> TrainRow:
    values: dict[str, Any] = {
        "input_ids": np.array(ids),
        "loss_mask": np.array(mask, dtype=np.bool_),
        "behavior_logprobs": np.zeros(len(ids), dtype=np.float32),
        "advantages": 1.0,
        "row_id": "r1",
    }
    return TrainRow(**(values | changes))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"loss_mask": np.array([0.3, -1.2])}, "loss_mask of row 'r1' must be bool, got float64"),
        ({"loss_mask": np.array([True, True])}, "must be False for the first token"),
        ({"behavior_logprobs": np.zeros(3, np.float32)}, "behavior_logprobs.*must have shape"),
        ({"versions": np.zeros(1, np.int64)}, "versions of row 'r1' must have shape"),
        ({"advantages": float("nan")}, "advantages of row 'r1' must be finite"),
        (
            {"behavior_logprobs": np.array([0, np.inf], np.float32)},
            "behavior_logprobs of row 'r1' must be finite at trainable tokens",
        ),
    ],
)
def test_a_row_that_contradicts_itself_is_refused_by_name(
    changes: dict[str, Any], message: str
) -> None:
    """Among them: advantages where the mask belongs."""
    with pytest.raises(BatchError, match=message):
        row([1, 2], [0, 1], **changes)


@pytest.mark.parametrize("field", ["input_ids", "loss_mask", "behavior_logprobs", "versions"])
@pytest.mark.parametrize("kind", ["list", "tensor", "text", "number", "floats", "None"])
def test_a_field_of_another_type_is_refused_by_name(field: str, kind: str) -> None:
    values: dict[str, Any] = {
        "list": [0, 1],
        "tensor": torch.tensor([0, 1]),
        "text": "01",
        "number": 1,
        "floats": np.array(["a", "b"]),
        "None": None,
    }
    if field == "versions" and kind == "None":
        return
    with pytest.raises(BatchError, match=f"{field} of row 'r1' must be (a NumPy array|bool)"):
        row([1, 2], [0, 1], **{field: values[kind]})


def test_advantages_are_a_number_or_an_array() -> None:
    assert row([1, 2], [0, 1], advantages=np.float32(1.5)).num_trainable_tokens == 1
    for wrong in ([1.0, 2.0], None, "1", torch.ones(2)):
        with pytest.raises(BatchError, match="advantages of row 'r1' must be a NumPy array"):
            row([1, 2], [0, 1], advantages=wrong)
    with pytest.raises(BatchError, match="input_ids of row 'r1' must have shape"):
        row([1, 2], [0, 1], input_ids=np.ones((2, 1), dtype=np.int64))


def test_a_token_id_that_the_policy_does_not_know_is_refused_with_its_row() -> None:
    config = ActorConfig(optimizer=OptimizerConfig(lr=0.1))
    actor = FSDPActor(TinyPolicy(vocabulary_size=32), config, collate=collate_text)
    for ids in ([1, 32], [-1, 2]):
        for ask in (actor.update, actor.logprobs):
            with pytest.raises(
                BatchError, match=r"of row 'r1' must be between 0 and 31.*got (32|-1)"
            ):
                ask([row([3, 4], [0, 1]), row(ids, [0, 1])])
    assert actor.version == 0


def test_values_at_masked_tokens_may_be_anything() -> None:
    one = row([1, 2], [0, 1], behavior_logprobs=np.array([np.nan, -1.0], np.float32))
    assert one.num_trainable_tokens == 1


def test_the_oldest_version_is_that_of_trainable_tokens() -> None:
    one = row([1, 2, 3, 4], [0, 0, 1, 1], versions=np.array([-1, 0, 5, 4]))
    assert one.oldest_version() == 4
    assert row([1, 2], [0, 0], versions=np.array([3, 3])).oldest_version() is None


def test_padded_rows_keep_their_tokens_and_mask_the_rest() -> None:
    rows = [row([1, 2, 3], [0, 1, 1]), row([4, 5], [0, 1])]
    batch = collate_text(rows, pad_token_id=9)
    assert batch.kwargs["input_ids"].tolist() == [[1, 2, 3], [4, 5, 9]]
    assert batch.kwargs["attention_mask"].tolist() == [[1, 1, 1], [1, 1, 0]]
    assert batch.token_positions.tolist() == [1, 2, 4]
    assert check_batch(batch, rows).tolist() == [2, 3, 5]


def test_labels_of_a_packed_stream_never_cross_a_row() -> None:
    rows = [row([10, 11, 12], [0, 1, 1]), row([20, 21], [0, 1])]
    inputs = [TextInputs(torch.from_numpy(each.input_ids)) for each in rows]
    batch = collate_model_inputs(rows, inputs, layout="packed")
    flat = batch.kwargs["input_ids"].reshape(-1)
    pairs = list(zip(flat[batch.sources].tolist(), check_batch(batch, rows).tolist(), strict=True))
    assert pairs == [(10, 11), (11, 12), (20, 21)]
    assert batch.kwargs["position_ids"].tolist() == [[0, 1, 2, 0, 1]]


@pytest.mark.parametrize(
    ("batch", "message"),
    [
        (Batch(kwargs={}, token_positions=torch.tensor([1])), "must hold 'input_ids'"),
        (
            Batch(kwargs={"input_ids": torch.tensor([[1, 2]])}, token_positions=torch.tensor([])),
            "token_positions must have shape",
        ),
        (
            Batch(kwargs={"input_ids": torch.tensor([[1, 7]])}, token_positions=torch.tensor([1])),
            "input_ids at token_positions must be the rows' trainable tokens, got 7 for 2",
        ),
        (
            Batch(kwargs={"input_ids": torch.tensor([[1, 2]])}, token_positions=torch.tensor([2])),
            "token_positions must lie in",
        ),
        (
            Batch(
                kwargs={"input_ids": torch.tensor([[1, 2]])},
                token_positions=torch.tensor([1]),
                source_positions=torch.tensor([1]),
            ),
            "source_positions must lie before their tokens",
        ),
    ],
)
def test_a_batch_that_speaks_of_other_tokens_is_refused(batch: Batch, message: str) -> None:
    with pytest.raises(BatchError, match=message):
        check_batch(batch, [row([1, 2], [0, 1])])


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([], "rows must not be empty"),
        ([row([1, 9], [0, 1])], "trainable tokens of row 'r1' must not be masked ids, got 9"),
        ([row([1, 2], [0, 1], versions=np.array([0, 4]))], "versions of row 'r1' must be <= 3"),
    ],
)
def test_rows_that_the_policy_cannot_have_sampled_are_refused(
    rows: list[TrainRow], message: str
) -> None:
    with pytest.raises(BatchError, match=message):
        check_rows(rows, version=3, masked_token_ids=(9,))


@pytest.mark.parametrize("versions", [None, np.array([0, -1]), np.array([-1, -1])])
def test_versions_are_known_where_the_loss_needs_them(versions: np.ndarray | None) -> None:
    rows = [row([1, 2], [0, 1], versions=versions)]
    check_rows(rows, version=3, masked_token_ids=())
    with pytest.raises(BatchError, match="versions of row 'r1' must be known"):
        check_rows(rows, version=3, masked_token_ids=(), needs_versions=True)


@pytest.mark.parametrize(
    ("other", "is_alike"),
    [
        (row([1, 2, 7], [0, 0, 1], prefix_id="p"), True),
        (row([1, 2, 3, 4], [0, 0, 1, 0], prefix_id="p"), True),
        (row([1, 9], [0, 0], prefix_id="p"), True),
        (row([1, 9, 3], [0, 0, 1], prefix_id="p"), False),
        (row([1, 2, 3], [0, 1, 1], prefix_id="p"), False),
        (row([1, 2, 3], [0, 0, 1], prefix_id="p", image_keys=("a",)), False),
        (row([1, 9, 3], [0, 0, 1], prefix_id="q"), True),
        (row([1, 9, 3], [0, 0, 1]), True),
    ],
)
def test_rows_of_one_prefix_begin_alike(other: TrainRow, is_alike: bool) -> None:
    rows = [row([1, 2, 3], [0, 0, 1], prefix_id="p"), other]
    expected = contextlib.nullcontext()
    if not is_alike:
        expected = pytest.raises(BatchError, match="rows of prefix_id 'p' must be equal")
    with expected:
        check_rows(rows, version=0, masked_token_ids=())


@pytest.mark.parametrize("kind", ["ids", "positions", "images"])
def test_inputs_of_one_prefix_that_differ_are_not_laid_together(kind: str) -> None:
    rows = [row([1, 2, 3], [0, 0, 1], prefix_id="p") for _ in range(2)]
    inputs = [TextInputs(torch.from_numpy(each.input_ids)) for each in rows]
    collate_model_inputs(rows, inputs, layout="shared_prefix")
    if kind == "ids":
        inputs[1].input_ids = torch.tensor([1, 9, 3])
    elif kind == "positions":
        inputs[1].position_ids = torch.tensor([0, 2, 3])
    else:
        inputs[1].pixel_values = torch.ones(1, 6)
    with pytest.raises(BatchError, match="must share one prefix"):
        collate_model_inputs(rows, inputs, layout="shared_prefix")


def test_masked_ids_and_new_versions_in_the_prompt_are_fine() -> None:
    check_rows([row([9, 2], [0, 1], versions=np.array([7, 3]))], version=3, masked_token_ids=(9,))
