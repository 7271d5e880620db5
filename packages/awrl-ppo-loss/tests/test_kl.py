"""KL estimators: values, signs as terms of a loss, bounds."""

from __future__ import annotations

import math

import pytest
import torch
from awrl_ppo_loss.config import KLEstimator
from awrl_ppo_loss.loss import MAX_KL, kl_estimate
from hypothesis import given, settings
from hypothesis import strategies as st

ESTIMATORS: list[KLEstimator] = ["k1", "k2", "k3"]


@given(log_ratio=st.floats(-300, 300))
@settings(max_examples=200, deadline=None)
def test_estimates_are_bounded_and_finite_with_their_gradients(log_ratio: float) -> None:
    for dtype in (torch.float32, torch.float64):
        leaf = torch.tensor([log_ratio], dtype=dtype, requires_grad=True)
        for estimator in ESTIMATORS:
            estimate = kl_estimate(leaf, estimator)
            assert abs(estimate.item()) <= MAX_KL
            assert estimator == "k1" or estimate.item() >= 0
            (grad,) = torch.autograd.grad(estimate, leaf)
            assert grad.isfinite()


@pytest.mark.parametrize(
    ("log_ratio", "value", "gradient"),
    [(-19.0, 10.0, 0.0), (-10.0, 10.0, 0.0), (-2.0, math.exp(2) - 3, 1 - math.exp(2))],
)
def test_one_token_far_from_the_reference_weighs_ten_at_most(
    log_ratio: float, value: float, gradient: float
) -> None:
    leaf = torch.tensor([log_ratio], dtype=torch.float64, requires_grad=True)
    estimate = kl_estimate(leaf, "k3")
    estimate.backward()
    assert estimate.item() == pytest.approx(value)
    assert leaf.grad is not None
    assert leaf.grad.item() == pytest.approx(gradient)


@pytest.mark.parametrize(
    ("log_ratio", "values"), [(1.0, {"k1": 1.0, "k2": 0.5, "k3": 0.367879}), (0.0, {"k3": 0.0})]
)
def test_estimates_have_the_right_sign(log_ratio: float, values: dict[KLEstimator, float]) -> None:
    for estimator, value in values.items():
        estimate = kl_estimate(torch.tensor([log_ratio]), estimator)
        assert estimate.item() == pytest.approx(value, abs=1e-6)


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_equal_policies_have_no_divergence_and_k2_and_k3_no_gradient(
    estimator: KLEstimator,
) -> None:
    leaf = torch.zeros(2, requires_grad=True)
    estimate = kl_estimate(leaf, estimator)
    estimate.sum().backward()
    assert estimate.tolist() == [0.0, 0.0]
    assert leaf.grad is not None
    assert leaf.grad.tolist() == [1.0, 1.0] if estimator == "k1" else [0.0, 0.0]


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_a_step_down_the_loss_moves_toward_the_reference(estimator: KLEstimator) -> None:
    for log_ratio in (1.0, -1.0):
        leaf = torch.tensor([log_ratio], requires_grad=True)
        kl_estimate(leaf, estimator).backward()
        assert leaf.grad is not None
        # k1's gradient is +1 everywhere: a penalty on the reward, not a loss.
        assert leaf.grad.item() * (1.0 if estimator == "k1" else log_ratio) > 0


@pytest.mark.parametrize("estimator", ["k1", "k3"])
def test_k1_and_k3_estimate_the_divergence_of_the_policy_that_sampled(
    estimator: KLEstimator,
) -> None:
    current = torch.tensor([0.7, 0.2, 0.1], dtype=torch.float64).log()
    reference = torch.tensor([0.4, 0.4, 0.2], dtype=torch.float64).log()
    expected = (current.exp() * (current - reference)).sum()
    estimate = (current.exp() * kl_estimate(current - reference, estimator)).sum()
    assert estimate.item() == pytest.approx(expected.item())


@pytest.mark.parametrize("estimator", ["k2", "k3"])
def test_the_expected_gradient_is_that_of_a_divergence(estimator: KLEstimator) -> None:
    logits = torch.tensor([0.3, -0.2, 0.9], dtype=torch.float64, requires_grad=True)
    reference = torch.tensor([0.4, 0.4, 0.2], dtype=torch.float64).log()
    current = logits.log_softmax(0)
    forward = (current.exp() * (current - reference)).sum()
    backward = (reference.exp() * (reference - current)).sum()
    divergence = forward if estimator == "k2" else backward
    (expected,) = torch.autograd.grad(divergence, logits, retain_graph=True)
    estimate = kl_estimate(current - reference, estimator)
    (actual,) = torch.autograd.grad((current.detach().exp() * estimate).sum(), logits)
    torch.testing.assert_close(actual, expected)
