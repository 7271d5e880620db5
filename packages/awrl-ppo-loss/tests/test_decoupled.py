"""Decoupled and coupled PPO: identities, dual clip, cap."""

import math

import pytest
import torch
from awrl_ppo_loss import MAX_RATIO, decoupled_ppo_loss, ppo_loss
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor


def row(*values: float) -> Tensor:
    return torch.tensor([list(values)], dtype=torch.float32)


ONE = torch.ones(1, 1, dtype=torch.bool)


@given(seed=st.integers(0, 2**31), dtype=st.sampled_from([torch.float32, torch.float64]))
@settings(max_examples=50, deadline=None)
def test_proximal_equal_to_behavior_is_plain_ppo_bit_for_bit(seed: int, dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(seed)
    current, behavior, advantages = torch.randn(3, 4, 6, generator=generator, dtype=dtype)
    mask = torch.rand(4, 6, generator=generator) < 0.7
    current.requires_grad_()
    coupled = ppo_loss(current, behavior, advantages, mask, dual_clip=3.0)
    decoupled = decoupled_ppo_loss(current, behavior, behavior, advantages, mask, dual_clip=3.0)
    assert torch.equal(coupled.loss, decoupled.loss)
    grads = [torch.autograd.grad(out.loss, current)[0] for out in (coupled, decoupled)]
    assert torch.equal(*grads)
    assert coupled.metrics.keys() == decoupled.metrics.keys()
    for key, value in coupled.metrics.items():
        if mask.any():
            assert float(value) == pytest.approx(float(decoupled.metrics[key]), abs=1e-6), key


@pytest.mark.parametrize(
    ("ratio", "advantage", "dual_clip", "loss", "gradient"),
    [
        (5.0, -1.0, None, 5.0, 5.0),
        (5.0, -1.0, 3.0, 3.0, 0.0),
        (2.0, -1.0, 3.0, 2.0, 2.0),
        (5.0, 1.0, 3.0, -1.2, 0.0),
        (0.5, -1.0, 3.0, 0.8, 0.0),
    ],
)
def test_the_dual_clip_bounds_only_negative_advantages(
    ratio: float, advantage: float, dual_clip: float | None, loss: float, gradient: float
) -> None:
    current = row(math.log(ratio)).requires_grad_()
    out = ppo_loss(current, row(0), row(advantage), ONE, dual_clip=dual_clip)
    out.loss.backward()
    assert out.loss.item() == pytest.approx(loss, rel=1e-6)
    assert current.grad is not None
    assert current.grad.item() == pytest.approx(gradient, rel=1e-6)
    is_dual = dual_clip is not None and ratio > dual_clip and advantage < 0
    assert float(out.metrics["clip/dual_fraction"]) == float(is_dual)


def test_the_dual_clip_leaves_the_staleness_weight_outside() -> None:
    out = decoupled_ppo_loss(
        row(math.log(5.0)), row(0), row(-math.log(2.0)), row(-1.0), ONE, dual_clip=3.0
    )
    assert out.loss.item() == pytest.approx(6.0, rel=1e-6)


@pytest.mark.parametrize(
    ("cap", "action", "loss", "capped"),
    [
        (None, "mask", -8.0, 0.0),
        (10.0, "mask", -8.0, 0.0),
        (5.0, "mask", 0.0, 1.0),
        (5.0, "clamp", -5.0, 1.0),
    ],
)
def test_the_cap_acts_as_it_says_and_is_counted(
    cap: float | None, action: str, loss: float, capped: float
) -> None:
    out = decoupled_ppo_loss(
        row(0),
        row(0),
        row(-math.log(8.0)),
        row(1),
        ONE,
        behav_imp_weight_cap=cap,
        behav_imp_weight_action=action,  # type: ignore[arg-type]
    )
    assert out.loss.item() == pytest.approx(loss, rel=1e-6)
    assert float(out.metrics["staleness_ratio/capped_fraction"]) == capped
    assert float(out.metrics["staleness_ratio/mean"]) == pytest.approx(8.0, rel=1e-6)
    assert out.denominator.item() == 1


@pytest.mark.requirement("decoupled-ratio")
def test_the_staleness_weight_is_never_clipped_by_ppo() -> None:
    out = decoupled_ppo_loss(row(0), row(0), row(-3.0), row(1), ONE)
    assert out.loss.item() == pytest.approx(-math.exp(3), rel=1e-6)
    assert float(out.metrics["clip/fraction"]) == 0.0


def test_clipping_counts_the_same_decoupled_and_coupled_when_only_the_update_moves() -> None:
    current = row(0.5, -0.5, 0.5, -0.5)
    advantages = row(1, 1, -1, -1)
    mask = torch.ones(1, 4, dtype=torch.bool)
    stale = current - 3.0
    zeros = torch.zeros(1, 4)
    decoupled = decoupled_ppo_loss(current, zeros, zeros - 3.0, advantages, mask).metrics
    assert float(decoupled["clip/high_fraction"]) == 0.25
    assert float(decoupled["clip/low_fraction"]) == 0.25
    # Coupled, staleness alone drives every positive advantage over the bound.
    coupled = ppo_loss(current, stale, advantages, mask).metrics
    assert float(coupled["clip/fraction"]) == 0.5
    assert float(coupled["clip/low_fraction"]) == 0.0


def test_a_ratio_at_its_bound_has_no_gradient_and_just_below_it_has_one() -> None:
    for log_ratio, expected in ((19.9, math.exp(19.9)), (25.0, 0.0)):
        current = row(log_ratio).double().requires_grad_()
        out = ppo_loss(current, row(0).double(), row(-1).double(), ONE)
        out.loss.backward()
        assert out.loss.item() == pytest.approx(min(math.exp(log_ratio), MAX_RATIO))
        assert current.grad is not None
        assert current.grad.item() == pytest.approx(expected)


@pytest.mark.parametrize("count", [1, 2, 5])
def test_equal_clip_bounds_of_zero_stop_every_gain(count: int) -> None:
    current = torch.full((1, count), 0.1)
    out = ppo_loss(
        current,
        torch.zeros(1, count),
        torch.ones(1, count),
        torch.ones(1, count, dtype=torch.bool),
        clip_low=0.0,
        clip_high=0.0,
    )
    assert out.loss.item() == -1.0
