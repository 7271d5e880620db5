"""The policy loss by hand-computed values: identities, clip, dual clip, importance weights."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from awrl_ppo_loss import LossOutput, PolicyBatch, PolicyLossConfig, policy_loss
from awrl_ppo_loss.config import Importance
from awrl_ppo_loss.loss import MAX_LOG_RATIO
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor


def row(*values: float, grad: bool = False) -> Tensor:
    return torch.tensor([list(values)], dtype=torch.float32, requires_grad=grad)


def mask_of(*values: int) -> Tensor:
    return torch.tensor([list(values)], dtype=torch.bool)


ONE = mask_of(1)


def decoupled(
    current: Tensor,
    proximal: Tensor | None,
    behavior: Tensor,
    advantages: Tensor,
    mask: Tensor,
    **options: Any,
) -> LossOutput:
    batch = PolicyBatch(
        current_logprobs=current,
        proximal_logprobs=proximal,
        behavior_logprobs=behavior,
        advantages=advantages,
        mask=mask,
    )
    return policy_loss(batch, PolicyLossConfig(**options))


def coupled(
    current: Tensor, behavior: Tensor, advantages: Tensor, mask: Tensor, **options: Any
) -> LossOutput:
    return decoupled(current, None, behavior, advantages, mask, **options)


@given(seed=st.integers(0, 2**31), dtype=st.sampled_from([torch.float32, torch.float64]))
@settings(max_examples=50, deadline=None)
def test_proximal_equal_to_behavior_is_plain_ppo_bit_for_bit(seed: int, dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(seed)
    current, behavior, advantages = torch.randn(3, 4, 6, generator=generator, dtype=dtype)
    mask = torch.rand(4, 6, generator=generator) < 0.7
    current.requires_grad_()
    outs = [
        decoupled(current, proximal, behavior, advantages, mask, dual_clip=3.0)
        for proximal in (None, behavior)
    ]
    assert torch.equal(outs[0].loss, outs[1].loss)
    grads = [torch.autograd.grad(out.loss, current)[0] for out in outs]
    assert torch.equal(*grads)
    assert outs[0].metrics == outs[1].metrics
    # The textbook's value, of one ratio and no weight.
    ratio = (current - behavior).exp()
    value = torch.minimum(ratio * advantages, ratio.clamp(0.8, 1.2) * advantages)
    value = torch.where(advantages < 0, torch.maximum(value, 3.0 * advantages), value)
    expected = -value[mask].double().sum() / max(int(mask.sum()), 1)
    assert outs[0].loss.item() == pytest.approx(expected.item(), rel=1e-5, abs=1e-7)


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
    current = row(math.log(ratio), grad=True)
    out = coupled(current, row(0), row(advantage), ONE, dual_clip=dual_clip)
    out.loss.backward()
    assert out.loss.item() == pytest.approx(loss, rel=1e-6)
    assert current.grad is not None
    assert current.grad.item() == pytest.approx(gradient, rel=1e-6)
    is_dual = dual_clip is not None and ratio > dual_clip and advantage < 0
    assert float(out.metrics["clip/dual_fraction"]) == float(is_dual)


def test_the_dual_clip_leaves_the_importance_weight_outside() -> None:
    out = decoupled(row(math.log(5.0)), row(0), row(-math.log(2.0)), row(-1.0), ONE, dual_clip=3.0)
    assert out.loss.item() == pytest.approx(6.0, rel=1e-6)


@pytest.mark.parametrize(
    ("cap", "importance", "loss", "capped"),
    [
        (None, "token_mask", -8.0, 0.0),
        (10.0, "token_mask", -8.0, 0.0),
        (5.0, "token_mask", 0.0, 1.0),
        (5.0, "token_truncate", -5.0, 1.0),
    ],
)
def test_the_cap_acts_as_it_says_and_is_counted(
    cap: float | None, importance: Importance, loss: float, capped: float
) -> None:
    out = decoupled(
        row(0), row(0), row(-math.log(8.0)), row(1), ONE, weight_cap=cap, importance=importance
    )
    assert out.loss.item() == pytest.approx(loss, rel=1e-6)
    assert float(out.metrics["staleness_ratio/capped_fraction"]) == capped
    assert float(out.metrics["staleness_ratio/mean"]) == pytest.approx(8.0, rel=1e-6)
    assert out.denominator.item() == 1


@pytest.mark.parametrize(
    ("importance", "floor", "cap", "weights"),
    [
        ("token_mask", None, 3.0, [2.0, 0.0, 0.5]),
        ("token_mask", 0.6, 3.0, [2.0, 0.0, 0.0]),
        ("token_truncate", 0.6, 3.0, [2.0, 3.0, 0.6]),
        # The product of the three is 4, their geometric mean 4 ** (1 / 3) = 1.587.
        ("sequence_mask", None, 5.0, [4.0, 4.0, 4.0]),
        ("sequence_mask", None, 3.0, [0.0, 0.0, 0.0]),
        ("sequence_mask", 4.5, None, [0.0, 0.0, 0.0]),
        ("sequence_truncate", None, 3.0, [3.0, 3.0, 3.0]),
        ("sequence_truncate", 4.5, 9.0, [4.5, 4.5, 4.5]),
        ("geometric_mask", None, 2.0, [4 ** (1 / 3)] * 3),
        ("geometric_mask", None, 1.5, [0.0, 0.0, 0.0]),
        ("geometric_truncate", None, 1.5, [1.5, 1.5, 1.5]),
        ("seq_sum_k1", 0.2, 5.0, [2.0, 4.0, 0.5]),
        ("seq_sum_k1", 0.2, 3.0, [0.0, 0.0, 0.0]),
        ("seq_mean_k1", 0.5, 2.0, [2.0, 4.0, 0.5]),
        ("seq_mean_k1", 0.999, 1.001, [0.0, 0.0, 0.0]),
    ],
)
def test_importance_weights_have_their_hand_computed_values(
    importance: Importance, floor: float | None, cap: float | None, weights: list[float]
) -> None:
    ratios = torch.tensor([[2.0, 4.0, 0.5, 1.0]])
    # The last token is masked and belongs to no product; the second sequence is on-policy.
    behavior = -torch.cat((ratios, torch.ones(1, 4))).log()
    zeros = torch.zeros(2, 4)
    current = zeros.clone().requires_grad_()
    mask = torch.tensor([[1, 1, 1, 0], [1, 1, 0, 0]], dtype=torch.bool)
    out = decoupled(
        current,
        zeros,
        behavior,
        torch.ones(2, 4),
        mask,
        importance=importance,
        weight_floor=floor,
        weight_cap=cap,
    )
    (grad,) = torch.autograd.grad(out.loss, current)
    assert (-5 * grad[0, :3]).tolist() == pytest.approx(weights, rel=1e-5)
    is_low = floor is not None and floor > 1
    assert (-5 * grad[1, :2]).tolist() == pytest.approx(
        [(floor or 0) * importance.endswith("truncate") if is_low else 1.0] * 2
    )
    assert out.denominator.item() == 5


@pytest.mark.requirement("decoupled-ratio")
def test_the_staleness_weight_is_never_clipped_by_ppo() -> None:
    out = decoupled(row(0), row(0), row(-3.0), row(1), ONE)
    assert out.loss.item() == pytest.approx(-math.exp(3), rel=1e-6)
    assert float(out.metrics["clip/fraction"]) == 0.0


def test_clipping_counts_the_same_decoupled_and_coupled_when_only_the_update_moves() -> None:
    current = row(0.5, -0.5, 0.5, -0.5)
    advantages = row(1, 1, -1, -1)
    mask = torch.ones(1, 4, dtype=torch.bool)
    stale = current - 3.0
    zeros = torch.zeros(1, 4)
    metrics = decoupled(current, zeros, zeros - 3.0, advantages, mask).metrics
    assert float(metrics["clip/high_fraction"]) == 0.25
    assert float(metrics["clip/low_fraction"]) == 0.25
    # Coupled, staleness alone drives every positive advantage over the bound.
    metrics = coupled(current, stale, advantages, mask).metrics
    assert float(metrics["clip/fraction"]) == 0.5
    assert float(metrics["clip/low_fraction"]) == 0.0


def test_a_ratio_at_its_bound_has_no_gradient_and_just_below_it_has_one() -> None:
    for log_ratio, expected in ((19.9, math.exp(19.9)), (25.0, 0.0)):
        current = row(log_ratio).double().requires_grad_()
        out = coupled(current, row(0).double(), row(-1).double(), ONE)
        out.loss.backward()
        assert out.loss.item() == pytest.approx(math.exp(min(log_ratio, MAX_LOG_RATIO)))
        assert current.grad is not None
        assert current.grad.item() == pytest.approx(expected)


@pytest.mark.parametrize("count", [1, 2, 5])
def test_equal_clip_bounds_of_zero_stop_every_gain(count: int) -> None:
    ones = torch.ones(1, count)
    out = coupled(ones * 0.1, ones * 0, ones, ones > 0, clip_low=0.0, clip_high=0.0)
    assert out.loss.item() == -1.0


def test_a_masked_token_with_an_overflowing_ratio_leaves_loss_and_gradient_finite() -> None:
    current = row(0, 0, 0, grad=True)
    proximal = row(0, 0, -200)
    out = decoupled(current, proximal, proximal, row(1, 1, 1), mask_of(1, 1, 0))
    out.loss.backward()
    assert out.loss.item() == -1.0
    assert current.grad is not None
    assert current.grad.tolist() == [[-0.5, -0.5, 0.0]]


def test_a_valid_token_with_log_ratio_100_and_negative_advantage_stays_finite() -> None:
    current = row(100, grad=True)
    out = decoupled(current, row(0), row(0), row(-1), ONE)
    out.loss.backward()
    assert math.isfinite(out.loss.item())
    assert out.loss.item() > 0
    assert current.grad is not None
    assert current.grad.isfinite().all()


def test_a_bound_of_the_weight_leaves_the_denominator_alone() -> None:
    zeros = row(0, 0, 0, 0)
    current = row(0, 0, 0, 0, grad=True)
    ones = mask_of(1, 1, 1, 1)
    out = decoupled(current, zeros, row(0, 0, 0, -3), row(1, 1, 1, 1), ones, weight_cap=5.0)
    assert out.loss.item() == -0.75
    assert float(out.metrics["staleness_ratio/capped_fraction"]) == 0.25
    assert out.denominator.item() == 4


@pytest.mark.requirement("decoupled-ratio")
@pytest.mark.parametrize(
    ("logprob", "loss", "gradient"), [(0.1, -1.822119, -1.822119), (0.4, -1.978466, 0.0)]
)
def test_no_gradient_flows_through_the_staleness_weight(
    logprob: float, loss: float, gradient: float
) -> None:
    current, proximal, behavior = row(logprob, grad=True), row(0, grad=True), row(-0.5, grad=True)
    advantages = row(1, grad=True)
    out = decoupled(current, proximal, behavior, advantages, ONE)
    out.loss.backward()
    assert out.loss.item() == pytest.approx(loss, abs=1e-6)
    assert current.grad is not None
    assert current.grad.item() == pytest.approx(gradient, abs=1e-6)
    assert proximal.grad is None
    assert behavior.grad is None
    assert advantages.grad is None


@pytest.mark.requirement("proximal-snapshot")
def test_at_the_start_of_the_update_the_ratio_is_one_and_the_gradient_is_not_zero() -> None:
    current = row(-0.25, grad=True)
    proximal = current.detach().clone()
    out = decoupled(current, proximal, proximal - 0.5, row(1), ONE)
    out.loss.backward()
    assert float(out.metrics["update_ratio/mean"]) == 1.0
    assert float(out.metrics["clip/fraction"]) == 0.0
    assert out.loss.item() == pytest.approx(-1.648721, abs=1e-6)
    assert current.grad is not None
    assert current.grad.item() == pytest.approx(-1.648721, abs=1e-6)


def test_the_clip_fraction_compares_the_ratio_before_clipping() -> None:
    out = coupled(row(math.log(1.5), 0.0), row(0, 0), row(1, 1), mask_of(1, 1))
    assert float(out.metrics["clip/fraction"]) == 0.5
    assert float(out.metrics["clip/high_fraction"]) == 0.5
    assert float(out.metrics["clip/low_fraction"]) == 0.0


@pytest.mark.parametrize(
    ("ratio", "advantage", "clip_high", "loss"),
    [
        (1.5, 1, 0.28, -1.28),
        (0.5, -1, 0.28, 0.8),
        (0.5, 1, 0.28, -0.5),
        (1.5, 1, 0.2, -1.2),
        (0.5, -1, 0.2, 0.8),
    ],
)
def test_clip_bounds_may_be_equal_or_differ(
    ratio: float, advantage: float, clip_high: float, loss: float
) -> None:
    out = decoupled(
        row(math.log(ratio)), row(0), row(0), row(advantage), ONE, clip_low=0.2, clip_high=clip_high
    )
    assert out.loss.item() == pytest.approx(loss, abs=1e-6)


@pytest.mark.parametrize("objective", ["ppo", "gspo"])
def test_sequences_weigh_alike_whatever_their_length(objective: str) -> None:
    zeros = torch.zeros(2, 5)
    mask = torch.tensor([[1, 1, 1, 1, 1], [1, 0, 0, 0, 0]], dtype=torch.bool)
    advantages = torch.tensor([[1.0], [-1.0]]).expand(2, 5)
    options = {"objective": objective, "aggregation": "sequence_mean"}
    out = decoupled(zeros, zeros, zeros, advantages, mask, **options)
    assert out.loss.item() == pytest.approx(0.0, abs=1e-7)
    assert out.denominator.item() == 2


def test_a_regularizer_of_coefficient_zero_is_reported_and_has_no_gradient() -> None:
    current, entropy = row(-1, -3, grad=True), row(0.5, 0.7, grad=True)
    batch = PolicyBatch(
        current_logprobs=current,
        behavior_logprobs=row(-1, -3),
        advantages=row(0, 0),
        mask=mask_of(1, 0),
        reference_logprobs=row(-2, math.nan),
        entropy=entropy,
    )
    out = policy_loss(batch)
    assert out.loss.item() == 0.0
    assert float(out.metrics["policy/entropy"]) == 0.5
    assert float(out.metrics["kl/reference_mean"]) == pytest.approx(math.exp(-1))
    out.loss.backward()
    assert entropy.grad is None
