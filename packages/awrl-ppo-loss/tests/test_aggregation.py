"""Aggregations and the global denominator: parts add up to the whole."""

from itertools import pairwise

import pytest
import torch
from awrl_ppo_loss import (
    Aggregation,
    ArgumentError,
    OptionError,
    aggregate,
    count_denominator,
    decoupled_ppo_loss,
    gspo_loss,
    merge_metrics,
)
from hypothesis import given, settings
from hypothesis import strategies as st

LOSSES = torch.tensor([[1.0, 2.0, 3.0], [10.0, 0.0, 0.0], [0.0, 0.0, 0.0]])
MASK = torch.tensor([[True, True, True], [True, False, False], [False, False, False]])
AGGREGATIONS = st.sampled_from(
    ["token_mean", "sequence_mean", "step_constant", "sequence_constant"]
)


@pytest.mark.parametrize(
    ("aggregation", "constant", "loss", "denominator"),
    [
        ("token_mean", None, 16 / 4, 4),
        ("sequence_mean", None, (2 + 10) / 2, 2),
        ("step_constant", 8.0, 16 / 4 / 8, 4),
        ("sequence_constant", 8.0, 16 / 2 / 8, 2),
    ],
)
def test_each_aggregation_has_its_hand_computed_value(
    aggregation: Aggregation, constant: float | None, loss: float, denominator: int
) -> None:
    value = aggregate(LOSSES, MASK, aggregation=aggregation, constant=constant)
    assert value.item() == loss
    assert count_denominator(MASK, aggregation=aggregation).item() == denominator
    halved = aggregate(
        LOSSES, MASK, aggregation=aggregation, constant=constant, denominator=2 * denominator
    )
    assert halved.item() == loss / 2


@pytest.mark.parametrize("aggregation", ["sequence_mean", "sequence_constant"])
def test_packed_sequences_equal_rows(aggregation: Aggregation) -> None:
    constant = 3.0 if aggregation == "sequence_constant" else None
    ids = torch.tensor([[7, 7, 7], [-2, -2, -2], [5, 5, 5]])
    expected = aggregate(LOSSES, MASK, aggregation=aggregation, constant=constant)
    order = torch.randperm(9, generator=torch.Generator().manual_seed(0))
    packed = [value.reshape(-1)[order] for value in (LOSSES, MASK, ids)]
    value = aggregate(
        packed[0],
        packed[1],
        sequence_ids=packed[2],
        aggregation=aggregation,
        constant=constant,
    )
    assert value.item() == pytest.approx(expected.item())
    with pytest.raises(ArgumentError, match="sequence_ids must be given for packed tokens"):
        aggregate(packed[0], packed[1], aggregation=aggregation, constant=constant)


@given(
    seed=st.integers(0, 2**31),
    aggregation=AGGREGATIONS,
    splits=st.lists(st.integers(1, 7), max_size=3),
    is_sequence_level=st.booleans(),
)
@settings(max_examples=60, deadline=None)
def test_micro_batches_add_up_to_one_process(
    seed: int, aggregation: Aggregation, splits: list[int], is_sequence_level: bool
) -> None:
    generator = torch.Generator().manual_seed(seed)
    current, proximal, behavior, advantages = torch.randn(4, 8, 5, generator=generator) * 0.3
    mask = torch.rand(8, 5, generator=generator) < 0.6
    loss = gspo_loss if is_sequence_level else decoupled_ppo_loss
    constant = 4.0 if "constant" in aggregation else None
    current.requires_grad_()
    tensors = (current, proximal, behavior, advantages, mask)
    whole = loss(*tensors, aggregation=aggregation, constant=constant)
    (whole_grad,) = torch.autograd.grad(whole.loss, current)

    bounds = [0, *sorted(set(splits)), 8]
    slices = [slice(start, stop) for start, stop in pairwise(bounds)]
    counts = [count_denominator(mask[part], aggregation=aggregation) for part in slices]
    total = torch.stack(counts).sum()
    assert torch.equal(total, whole.denominator)
    parts = [
        loss(
            *(value[part] for value in tensors),
            aggregation=aggregation,
            constant=constant,
            denominator=total,
        )
        for part in slices
    ]
    for part in parts:
        part.loss.backward()
    summed = torch.stack([part.loss.detach() for part in parts]).sum()
    # Float64 sums of the same float32 terms: only their order differs.
    assert summed.item() == pytest.approx(whole.loss.item(), rel=1e-12, abs=1e-13)
    assert current.grad is not None
    assert torch.equal(current.grad, whole_grad)
    merged = merge_metrics([part.metrics for part in parts])
    if mask.any():
        for key, value in whole.metrics.items():
            assert merged[key] == pytest.approx(float(value), rel=1e-9, abs=1e-9), key


@pytest.mark.parametrize("denominator", [6, 6.0, torch.tensor(6), torch.tensor([6.0])])
def test_the_denominator_may_be_a_number_or_a_tensor(denominator: float | torch.Tensor) -> None:
    assert aggregate(LOSSES, MASK, denominator=denominator).item() == pytest.approx(16 / 6)


def test_a_part_without_tokens_adds_zero_to_a_batch_that_has_some() -> None:
    nothing = torch.zeros_like(MASK)
    assert aggregate(LOSSES, nothing, denominator=6).item() == 0.0
    assert aggregate(LOSSES, nothing, denominator=0).item() == 0.0
    assert aggregate(LOSSES, nothing, denominator=torch.tensor(0)).item() == 0.0


def test_long_sums_keep_float64_precision() -> None:
    losses = torch.full((1, 2**16), 0.1)
    value = aggregate(losses, torch.ones_like(losses, dtype=torch.bool), denominator=1)
    assert value.item() == pytest.approx(float(losses[0, 0].double()) * 2**16, rel=1e-14)


@pytest.mark.parametrize("denominator", [-1, float("nan"), float("inf"), torch.tensor(-2.0)])
def test_a_denominator_that_is_no_count_is_refused(denominator: float | torch.Tensor) -> None:
    with pytest.raises(ArgumentError, match="denominator must be finite and >= 0"):
        aggregate(LOSSES, MASK, denominator=denominator)


def test_a_denominator_of_several_numbers_is_refused() -> None:
    with pytest.raises(ArgumentError, match=r"denominator must be one number, got shape \[2\]"):
        aggregate(LOSSES, MASK, denominator=torch.ones(2))


def test_the_constant_belongs_to_the_constant_aggregations() -> None:
    with pytest.raises(OptionError, match="constant must be a finite number > 0, got None"):
        aggregate(LOSSES, MASK, aggregation="step_constant")
    with pytest.raises(OptionError, match="constant must be None with aggregation 'token_mean'"):
        aggregate(LOSSES, MASK, constant=2.0)
    with pytest.raises(OptionError, match="aggregation must be one of 'token_mean'"):
        aggregate(LOSSES, MASK, aggregation="tokens")  # type: ignore[arg-type]
    with pytest.raises(OptionError, match="aggregation must be one of"):
        count_denominator(MASK, aggregation="mean")  # type: ignore[arg-type]
