"""GAE over turns against a direct sum, and turns spread to tokens."""

import math

import pytest
import torch
from awrl_ppo_loss import (
    ArgumentError,
    ArgumentTypeError,
    OptionError,
    spread_to_tokens,
    turn_gae,
)
from hypothesis import given, settings
from hypothesis import strategies as st


@given(
    seed=st.integers(0, 2**31),
    discount=st.sampled_from([0.0, 0.9, 1.0]),
    gae_lambda=st.sampled_from([0.0, 0.5, 1.0]),
    with_bootstrap=st.booleans(),
)
@settings(max_examples=60, deadline=None)
def test_advantages_equal_the_discounted_sum_of_errors(
    seed: int, discount: float, gae_lambda: float, with_bootstrap: bool
) -> None:
    generator = torch.Generator().manual_seed(seed)
    rewards, values = torch.randn(2, 3, 5, generator=generator, dtype=torch.float64)
    mask = torch.rand(3, 5, generator=generator) < 0.7
    last = torch.randn(3, generator=generator, dtype=torch.float64)
    advantages, returns = turn_gae(
        rewards,
        values,
        mask,
        discount=discount,
        gae_lambda=gae_lambda,
        bootstrap_values=last if with_bootstrap else None,
    )
    for b in range(3):
        turns = [k for k in range(5) if mask[b, k]]
        v = [values[b, k].item() for k in turns] + [last[b].item() if with_bootstrap else 0.0]
        errors = [rewards[b, k].item() + discount * v[i + 1] - v[i] for i, k in enumerate(turns)]
        for i, k in enumerate(turns):
            expected = sum(
                (discount * gae_lambda) ** (j - i) * errors[j] for j in range(i, len(turns))
            )
            assert advantages[b, k].item() == pytest.approx(expected, abs=1e-9)
            assert returns[b, k].item() == pytest.approx(expected + v[i], abs=1e-9)
        skipped = [k for k in range(5) if not mask[b, k]]
        assert all(advantages[b, k] == 0 and returns[b, k] == 0 for k in skipped)


def test_without_values_every_turn_gets_the_reward_of_the_episode() -> None:
    rewards = torch.tensor([0.0, 0.0, 1.0])
    advantages, returns = turn_gae(rewards, torch.zeros(3), torch.ones(3, dtype=torch.bool))
    assert advantages.tolist() == returns.tolist() == [1.0, 1.0, 1.0]


def test_masked_turns_may_hold_anything_and_values_get_no_gradient() -> None:
    rewards = torch.tensor([[1.0, math.nan, 2.0]])
    values = torch.tensor([[0.5, math.inf, 0.25]], requires_grad=True)
    mask = torch.tensor([[True, False, True]])
    advantages, returns = turn_gae(rewards, values, mask)
    assert advantages.tolist() == [[2.5, 0.0, 1.75]]
    assert not advantages.requires_grad
    assert not returns.requires_grad


def test_no_turn_gives_nothing() -> None:
    empty = torch.zeros(2, 0)
    advantages, _ = turn_gae(empty, empty, empty == 0)
    assert advantages.shape == (2, 0)


def test_every_token_gets_the_value_of_its_turn() -> None:
    values = torch.tensor([[1.0, 2.0], [3.0, 4.0]])
    turns = torch.tensor([[-1, 0, 0, 1], [1, -1, 1, -100]])
    assert spread_to_tokens(values, turns).tolist() == [[0, 1, 1, 2], [4, 0, 4, 0]]
    assert spread_to_tokens(values[0], turns[0]).tolist() == [0, 1, 1, 2]
    assert spread_to_tokens(values[:, :0], turns.clamp(max=-1)).tolist() == [[0.0] * 4] * 2


def test_a_turn_without_a_value_does_not_leak_into_tokens_without_a_turn() -> None:
    spread = spread_to_tokens(torch.tensor([math.nan, 1.0]), torch.tensor([-1, 1]))
    assert spread.tolist() == [0.0, 1.0]


def test_wrong_arguments_are_named() -> None:
    x, mask = torch.zeros(2, 3), torch.ones(2, 3, dtype=torch.bool)
    with pytest.raises(ArgumentError, match="values must be of the mask's shape"):
        turn_gae(x, x[:1], mask)
    with pytest.raises(ArgumentError, match=r"bootstrap_values must be of the mask's shape \[2\]"):
        turn_gae(x, x, mask, bootstrap_values=torch.zeros(3))
    with pytest.raises(ArgumentTypeError, match="mask must be of dtype"):
        turn_gae(x, x, x)
    with pytest.raises(OptionError, match="discount must be a finite number >= 0 and <= 1"):
        turn_gae(x, x, mask, discount=1.1)
    with pytest.raises(OptionError, match="gae_lambda must be a finite number >= 0 and <= 1"):
        turn_gae(x, x, mask, gae_lambda=-0.1)
    with pytest.raises(ArgumentError, match="turn_ids must be below the number of turns 3, got 3"):
        spread_to_tokens(x, torch.tensor([[0], [3]]))
    with pytest.raises(ArgumentError, match=r"turn_ids must be \[B, T\] beside"):
        spread_to_tokens(x, torch.tensor([0]))
    with pytest.raises(ArgumentTypeError, match="turn_ids must be a tensor of an integer dtype"):
        spread_to_tokens(x, x)
