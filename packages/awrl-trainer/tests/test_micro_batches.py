from __future__ import annotations

from collections import Counter

import pytest
from awrl_trainer.update_plan import MicroBatch, RowSize, plan_micro_batches
from hypothesis import given, settings
from hypothesis import strategies as st


def sizes(*tokens: int) -> list[RowSize]:
    return [RowSize(num_tokens=count) for count in tokens]


def real(plan: list[list[MicroBatch]]) -> list[int]:
    return [i for rank in plan for part in rank if not part.is_dummy for i in part.row_indices]


def test_light_and_heavy_rows_end_in_equal_counts() -> None:
    plan = plan_micro_batches(sizes(*[95] * 5, *[20] * 5), num_ranks=2, token_budget=100)
    assert len(plan[0]) == len(plan[1])
    assert sorted(real(plan)) == list(range(10))


def test_ranks_without_enough_rows_get_stand_ins_of_zero_weight() -> None:
    plan = plan_micro_batches(sizes(95, 95, 95), num_ranks=2, token_budget=100)
    assert [len(rank) for rank in plan] == [2, 2]
    assert [part.is_dummy for part in plan[1]] == [False, True]


def test_equal_rows_are_spread_evenly_instead_of_leaving_a_crumb() -> None:
    plan = plan_micro_batches(sizes(*[10] * 9), num_ranks=1, token_budget=80)
    assert [len(part.row_indices) for part in plan[0]] == [5, 4]


def test_a_row_above_the_budget_is_alone() -> None:
    plan = plan_micro_batches(sizes(500, 10, 10), num_ranks=1, token_budget=100)
    assert [part.row_indices for part in plan[0]] == [(0,), (1, 2)]


@pytest.mark.parametrize(
    ("name", "num_ranks", "token_budget"), [("num_ranks", 0, 1), ("token_budget", 1, 0)]
)
def test_numbers_below_one_are_refused_by_name(
    name: str, num_ranks: int, token_budget: int
) -> None:
    with pytest.raises(ValueError, match=f"{name} must be >= 1, got 0"):
        plan_micro_batches([], num_ranks=num_ranks, token_budget=token_budget)


@settings(max_examples=200, deadline=None)
@given(
    st.lists(st.tuples(st.integers(1, 120), st.booleans()), min_size=1, max_size=40),
    st.integers(1, 5),
    st.integers(1, 200),
    st.booleans(),
)
def test_every_row_once_equal_counts_equal_kinds_and_costs_within_the_budget(
    rows: list[tuple[int, bool]], num_ranks: int, budget: int, is_packed: bool
) -> None:
    given_sizes = [RowSize(num_tokens=n, has_images=image) for n, image in rows]
    plan = plan_micro_batches(
        given_sizes, num_ranks=num_ranks, token_budget=budget, is_packed=is_packed
    )
    assert Counter(real(plan)) == Counter(range(len(rows)))
    assert len({len(rank) for rank in plan}) == 1
    for parts in zip(*plan, strict=True):
        kinds = {given_sizes[i].has_images for part in parts for i in part.row_indices}
        assert len(kinds) == 1
    for rank in plan:
        for part in rank:
            lengths = [given_sizes[i].num_tokens for i in part.row_indices]
            cost = sum(lengths) if is_packed else max(lengths) * len(lengths)
            assert cost <= budget or len(lengths) == 1
