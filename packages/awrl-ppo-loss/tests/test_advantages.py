"""Group advantages: by id, exact, counted."""

import math
from collections.abc import Hashable

import pytest
import torch
from awrl_ppo_loss import (
    ArgumentError,
    ArgumentTypeError,
    OptionError,
    group_normalized_advantages,
    leave_one_out_advantages,
)
from hypothesis import given, settings
from hypothesis import strategies as st


@pytest.mark.parametrize("successes", range(1, 8))
def test_successes_among_eight_give_the_exact_values(successes: int) -> None:
    rewards = [1.0] * successes + [0.0] * (8 - successes)
    advantages, statistics = group_normalized_advantages(rewards, [0] * 8)
    up, down = math.sqrt((8 - successes) / successes), math.sqrt(successes / (8 - successes))
    assert advantages.tolist() == pytest.approx([up] * successes + [-down] * (8 - successes))
    assert statistics.num_mixed == 1


def test_members_meet_by_id_in_any_order_and_any_mix_of_sizes() -> None:
    rewards = torch.tensor([1.0, 5.0, 0.0, 2.0, 1.0, 0.0, 2.0], dtype=torch.float64)
    ids = ["a", "single", "b", "alike", "b", "a", "alike"]
    advantages, statistics = group_normalized_advantages(rewards, ids)
    assert advantages.tolist() == [1.0, 0.0, -1.0, 0.0, 1.0, -1.0, 0.0]
    assert (statistics.num_groups, statistics.num_mixed) == (4, 2)
    assert (statistics.num_single, statistics.num_zero_variance) == (1, 1)
    assert statistics.zero_variance_ids == ("alike",)
    assert statistics.reward_mean == pytest.approx(11 / 7)
    assert statistics.group_std_mean == pytest.approx(1 / 3)


groups = st.lists(
    st.tuples(st.integers(0, 4), st.sampled_from([0.0, 0.5, 1.0])), min_size=1, max_size=20
)


@given(members=groups)
@settings(max_examples=100, deadline=None)
def test_normalised_groups_have_mean_zero_and_variance_one(
    members: list[tuple[int, float]],
) -> None:
    ids: list[Hashable] = [group for group, _ in members]
    advantages, statistics = group_normalized_advantages([reward for _, reward in members], ids)
    assert statistics.num_groups == len(set(ids))
    parts = (statistics.num_single, statistics.num_zero_variance, statistics.num_mixed)
    assert sum(parts) == statistics.num_groups
    for group in set(ids):
        values = [advantages[i].item() for i in range(len(ids)) if ids[i] == group]
        assert sum(values) == pytest.approx(0.0, abs=1e-5)
        square = sum(value * value for value in values) / len(values)
        assert square == pytest.approx(1.0, abs=1e-5) or values == [0.0] * len(values)


@given(members=groups, seed=st.randoms(use_true_random=False))
@settings(max_examples=50, deadline=None)
def test_order_never_matters(members: list[tuple[int, float]], seed: st.DataObject) -> None:
    order = list(range(len(members)))
    seed.shuffle(order)  # type: ignore[attr-defined]
    for function in (group_normalized_advantages, leave_one_out_advantages):
        plain, _ = function([m[1] for m in members], [m[0] for m in members])
        shuffled, _ = function([members[i][1] for i in order], [members[i][0] for i in order])
        torch.testing.assert_close(shuffled, plain[order])


@given(members=groups)
@settings(max_examples=100, deadline=None)
def test_leave_one_out_subtracts_the_mean_of_the_others(
    members: list[tuple[int, float]],
) -> None:
    advantages, _ = leave_one_out_advantages([m[1] for m in members], [m[0] for m in members])
    for i, (group, reward) in enumerate(members):
        others = [m[1] for j, m in enumerate(members) if j != i and m[0] == group]
        expected = reward - sum(others) / len(others) if others else 0.0
        assert advantages[i].item() == pytest.approx(expected, abs=1e-6)


def test_rounding_is_not_taken_for_variance() -> None:
    advantages, statistics = group_normalized_advantages([0.1 + 0.2, 0.3], ["g", "g"])
    assert advantages.tolist() == [0.0, 0.0]
    assert statistics.num_zero_variance == 1
    small, _ = group_normalized_advantages([0.0, 1e-5], ["g", "g"])
    assert small.tolist() == pytest.approx([-1.0, 1.0])
    raised, _ = group_normalized_advantages([0.0, 1e-5], ["g", "g"], min_std=1e-4)
    assert raised.tolist() == [0.0, 0.0]


def test_dtype_follows_the_rewards() -> None:
    ids = torch.tensor([3, 3])
    for dtype in (torch.float64, torch.float32, torch.bfloat16):
        advantages, _ = group_normalized_advantages(torch.tensor([0.0, 1.0], dtype=dtype), ids)
        assert advantages.dtype == dtype
    assert group_normalized_advantages([0, 1], ids)[0].dtype == torch.float32


def test_no_episode_gives_no_advantage() -> None:
    advantages, statistics = group_normalized_advantages([], [])
    assert advantages.shape == (0,)
    assert (statistics.num_groups, statistics.reward_mean) == (0, 0.0)


@pytest.mark.parametrize(
    ("rewards", "ids", "error", "message"),
    [
        ([1.0, 0.0], [0], ArgumentError, "group_ids must hold one id per reward, got 1 ids for 2"),
        ([1.0, math.nan], [0, 0], ArgumentError, "rewards must be finite, got nan at 1"),
        ([1.0, None], [0, 0], ArgumentTypeError, "rewards must be numbers, got None"),
        ([1.0, True], [0, 0], ArgumentTypeError, "rewards must be numbers, got True"),
        ([1.0], [[]], ArgumentTypeError, r"group_ids must be hashable, got \[\]"),
        (torch.tensor([1, 0]), [0, 0], ArgumentTypeError, "rewards must be of a floating dtype"),
        (torch.zeros(1, 2), [0, 0], ArgumentError, r"rewards must be of shape \[N\], got \[1, 2\]"),
        ([1.0], torch.zeros(1), ArgumentTypeError, "group_ids must be a tensor of an integer"),
        ([1.0], torch.zeros(1, 1).long(), ArgumentError, r"group_ids must be of shape \[N\]"),
    ],
)
def test_wrong_arguments_are_named(
    rewards: list[float], ids: list[Hashable], error: type[Exception], message: str
) -> None:
    for function in (group_normalized_advantages, leave_one_out_advantages):
        with pytest.raises(error, match=message):
            function(rewards, ids)


def test_a_negative_tolerance_is_named() -> None:
    with pytest.raises(OptionError, match="min_std must be a finite number >= 0, got -1"):
        group_normalized_advantages([1.0], [0], min_std=-1)
