"""Aggregations and the global denominator: parts add up to the whole."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any, get_args

import pytest
import torch
from awrl_ppo_loss import (
    PolicyBatch,
    PolicyLossConfig,
    PPOLossError,
    count_denominator,
    merge_metrics,
    policy_loss,
)
from awrl_ppo_loss.config import Aggregation, Objective
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

LOSSES = torch.tensor([[1.0, 2.0, 3.0], [10.0, 0.0, 0.0], [0.0, 0.0, 0.0]])
MASK = torch.tensor([[True, True, True], [True, False, False], [False, False, False]])
AGGREGATIONS = st.sampled_from(get_args(Aggregation))


def aggregate(
    losses: Tensor,
    mask: Tensor,
    *,
    denominator: float | Tensor | None = None,
    sequence_ids: Tensor | None = None,
    **options: Any,
) -> Tensor:
    """On-policy, the loss of a token is minus its advantage."""
    zeros = torch.zeros_like(losses)
    batch = PolicyBatch(
        current_logprobs=zeros,
        behavior_logprobs=zeros,
        advantages=-losses,
        mask=mask,
        sequence_ids=sequence_ids,
    )
    return policy_loss(batch, PolicyLossConfig(**options), denominator=denominator).loss


@pytest.mark.parametrize(
    ("aggregation", "constant", "loss", "denominator"),
    [
        ("token_mean", None, 16 / 4, 4),
        ("sequence_mean", None, (2 + 10) / 2, 2),
        ("sequence_sum", None, 16 / 2, 2),
        ("token_mean", 8.0, 16 / 4 / 8, 4),
        ("sequence_mean", 8.0, (2 + 10) / 2 / 8, 2),
        ("sequence_sum", 8.0, 16 / 2 / 8, 2),
    ],
)
def test_each_aggregation_has_its_hand_computed_value(
    aggregation: Aggregation, constant: float | None, loss: float, denominator: int
) -> None:
    options: dict[str, Any] = {"aggregation": aggregation, "constant": constant}
    assert aggregate(LOSSES, MASK, **options).item() == pytest.approx(loss, rel=1e-15)
    assert count_denominator(MASK, aggregation=aggregation).item() == denominator
    halved = aggregate(LOSSES, MASK, **options, denominator=2 * denominator)
    assert halved.item() == pytest.approx(loss / 2, rel=1e-15)


@pytest.mark.parametrize("aggregation", ["sequence_mean", "sequence_sum"])
def test_packed_sequences_equal_rows(aggregation: Aggregation) -> None:
    ids = torch.tensor([[7, 7, 7], [-2, -2, -2], [5, 5, 5]])
    expected = aggregate(LOSSES, MASK, aggregation=aggregation)
    order = torch.randperm(9, generator=torch.Generator().manual_seed(0))
    losses, mask, packed_ids = (value.reshape(-1)[order] for value in (LOSSES, MASK, ids))
    value = aggregate(losses, mask, sequence_ids=packed_ids, aggregation=aggregation)
    assert value.item() == pytest.approx(expected.item())
    count = count_denominator(mask, aggregation=aggregation, sequence_ids=packed_ids)
    assert count.item() == 2
    with pytest.raises(PPOLossError, match="sequence_ids must be given for packed tokens"):
        aggregate(losses, mask, aggregation=aggregation)


@pytest.mark.parametrize("aggregation", get_args(Aggregation))
def test_nan_at_a_masked_place_changes_nothing_and_at_an_unmasked_one_stays_visible(
    aggregation: Aggregation,
) -> None:
    losses = torch.where(MASK, LOSSES, math.nan)
    expected = aggregate(LOSSES, MASK, aggregation=aggregation)
    assert torch.equal(aggregate(losses, MASK, aggregation=aggregation), expected)
    assert aggregate(losses, ~MASK, aggregation=aggregation).isnan()


@given(
    seed=st.integers(0, 2**31),
    aggregation=AGGREGATIONS,
    splits=st.lists(st.integers(1, 7), max_size=3),
    objective=st.sampled_from(get_args(Objective)),
    is_sequence_weight=st.booleans(),
)
@settings(max_examples=60, deadline=None)
def test_micro_batches_add_up_to_one_process(
    seed: int,
    aggregation: Aggregation,
    splits: list[int],
    objective: Objective,
    is_sequence_weight: bool,
) -> None:
    generator = torch.Generator().manual_seed(seed)
    current, proximal, behavior, advantages = torch.randn(4, 8, 5, generator=generator) * 0.3
    mask = torch.rand(8, 5, generator=generator) < 0.6
    config = PolicyLossConfig(
        objective=objective,
        aggregation=aggregation,
        constant=4.0,
        importance="sequence_truncate" if is_sequence_weight else "token_mask",
        weight_cap=1.4,
    )
    current.requires_grad_()

    def batch(part: slice) -> PolicyBatch:
        return PolicyBatch(
            current_logprobs=current[part],
            proximal_logprobs=proximal[part],
            behavior_logprobs=behavior[part],
            advantages=advantages[part],
            mask=mask[part],
        )

    whole = policy_loss(batch(slice(None)), config)
    (whole_grad,) = torch.autograd.grad(whole.loss, current)
    bounds = [0, *sorted(set(splits)), 8]
    slices = [slice(start, stop) for start, stop in pairwise(bounds)]
    counts = [count_denominator(mask[part], aggregation=aggregation) for part in slices]
    total = torch.stack(counts).sum()
    assert torch.equal(total, whole.denominator)
    parts = [policy_loss(batch(part), config, denominator=total) for part in slices]
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
            # Sums within a part are taken in float32.
            assert merged[key] == pytest.approx(float(value), rel=2e-6, abs=2e-7), key


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
    with pytest.raises(PPOLossError, match="denominator must be finite and >= 0"):
        aggregate(LOSSES, MASK, denominator=denominator)


def test_a_denominator_of_several_numbers_is_refused() -> None:
    with pytest.raises(PPOLossError, match=r"denominator must be one number, got shape \[2\]"):
        aggregate(LOSSES, MASK, denominator=torch.ones(2))


def test_an_unknown_aggregation_is_refused() -> None:
    with pytest.raises(PPOLossError, match="aggregation must be one of"):
        count_denominator(MASK, aggregation="mean")  # type: ignore[arg-type]
