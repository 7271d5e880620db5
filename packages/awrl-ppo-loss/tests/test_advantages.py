"""Group advantages: by id, exact."""

from __future__ import annotations

import math
from collections.abc import Hashable
from random import Random
from typing import Any, get_args

import pytest
import torch
from awrl_ppo_loss import PPOLossError, group_normalized_advantages
from awrl_ppo_loss.advantages import AdvantageNorm
from hypothesis import given, settings
from hypothesis import strategies as st


@pytest.mark.parametrize("successes", range(1, 8))
def test_successes_among_eight_give_the_exact_values(successes: int) -> None:
    rewards = [1.0] * successes + [0.0] * (8 - successes)
    advantages = group_normalized_advantages(rewards, [0] * 8)
    up, down = math.sqrt((8 - successes) / successes), math.sqrt(successes / (8 - successes))
    assert advantages.tolist() == pytest.approx([up] * successes + [-down] * (8 - successes))


def test_members_meet_by_id_in_any_order_and_any_mix_of_sizes() -> None:
    rewards = [1.0, 5.0, 0.0, 2.0, 1.0, 0.0, 2.0]
    ids = ["a", "single", "b", "alike", "b", "a", "alike"]
    advantages = group_normalized_advantages(rewards, ids)
    assert advantages.tolist() == [1.0, 0.0, -1.0, 0.0, 1.0, -1.0, 0.0]


groups = st.lists(
    st.tuples(st.integers(0, 4), st.sampled_from([0.0, 0.5, 1.0])), min_size=1, max_size=20
)


@given(members=groups)
@settings(max_examples=100, deadline=None)
def test_normalised_groups_have_mean_zero_and_variance_one(
    members: list[tuple[int, float]],
) -> None:
    ids: list[Hashable] = [group for group, _ in members]
    advantages = group_normalized_advantages([reward for _, reward in members], ids)
    for group in set(ids):
        values = [advantages[i].item() for i in range(len(ids)) if ids[i] == group]
        assert sum(values) == pytest.approx(0.0, abs=1e-5)
        square = sum(value * value for value in values) / len(values)
        assert square == pytest.approx(1.0, abs=1e-5) or values == [0.0] * len(values)


@given(members=groups, random=st.randoms(use_true_random=False))
@settings(max_examples=50, deadline=None)
def test_order_never_matters(members: list[tuple[int, float]], random: Random) -> None:
    order = list(range(len(members)))
    random.shuffle(order)
    for norm in get_args(AdvantageNorm):
        plain = group_normalized_advantages(
            [m[1] for m in members], [m[0] for m in members], norm=norm
        )
        shuffled = group_normalized_advantages(
            [members[i][1] for i in order], [members[i][0] for i in order], norm=norm
        )
        torch.testing.assert_close(shuffled, plain[order])


@given(members=groups)
@settings(max_examples=100, deadline=None)
def test_the_mean_norm_subtracts_the_mean_of_the_others(members: list[tuple[int, float]]) -> None:
    advantages = group_normalized_advantages(
        [m[1] for m in members], [m[0] for m in members], norm="mean"
    )
    for i, (group, reward) in enumerate(members):
        others = [m[1] for j, m in enumerate(members) if j != i and m[0] == group]
        expected = reward - sum(others) / len(others) if others else 0.0
        assert advantages[i].item() == pytest.approx(expected, abs=1e-6)


def test_rounding_is_not_taken_for_variance() -> None:
    assert group_normalized_advantages([0.1 + 0.2, 0.3], ["g", "g"]).tolist() == [0.0, 0.0]
    small = group_normalized_advantages([0.0, 1e-5], ["g", "g"])
    assert small.tolist() == pytest.approx([-1.0, 1.0])


def test_no_episode_gives_no_advantage() -> None:
    assert group_normalized_advantages([], []).shape == (0,)


@pytest.mark.parametrize(
    ("rewards", "ids", "norm", "message"),
    [
        ([1.0, 0.0], [0], "mean", "group_ids must hold one id per reward, got 1 ids for 2"),
        ([1.0, math.nan], [0, 0], "mean", "rewards must be finite numbers, got nan at 1"),
        ([1.0, None], [0, 0], "mean", "rewards must be finite numbers, got None at 1"),
        ([1.0, True], [0, 0], "mean", "rewards must be finite numbers, got True at 1"),
        ([1.0, 0.0], [0, 0], "std", "norm must be one of 'mean_std', 'mean', got 'std'"),
    ],
)
def test_wrong_arguments_are_named(rewards: Any, ids: Any, norm: Any, message: str) -> None:
    with pytest.raises(PPOLossError, match=message):
        group_normalized_advantages(rewards, ids, norm=norm)
