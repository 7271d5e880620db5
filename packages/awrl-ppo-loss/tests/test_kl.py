"""KL estimators: values, signs as loss terms, safety."""

import math

import pytest
import torch
from awrl_ppo_loss import (
    ArgumentError,
    ArgumentTypeError,
    KLKind,
    OptionError,
    kl_estimate,
    kl_loss,
)
from hypothesis import given, settings
from hypothesis import strategies as st

KINDS: list[KLKind] = ["k1", "k2", "k3"]


@given(difference=st.floats(-300, 300), reference=st.floats(-50, 0))
@settings(max_examples=200, deadline=None)
def test_k2_and_k3_are_never_negative_and_finite_with_their_gradients(
    difference: float, reference: float
) -> None:
    for dtype in (torch.float32, torch.float64):
        current = torch.tensor([reference + difference], dtype=dtype, requires_grad=True)
        for kind in ("k2", "k3"):
            estimate = kl_estimate(current, torch.tensor([reference], dtype=dtype), kind=kind)
            assert estimate.isfinite()
            assert estimate.item() >= 0
            (grad,) = torch.autograd.grad(estimate, current)
            assert grad.isfinite()


@pytest.mark.parametrize("kind", KINDS)
def test_equal_policies_have_no_divergence_and_k2_and_k3_no_gradient(kind: KLKind) -> None:
    current = torch.tensor([-1.0, -3.0], requires_grad=True)
    estimate = kl_estimate(current, current.detach(), kind=kind)
    estimate.sum().backward()
    assert estimate.tolist() == [0.0, 0.0]
    assert current.grad is not None
    assert current.grad.tolist() == [1.0, 1.0] if kind == "k1" else [0.0, 0.0]


@pytest.mark.parametrize("kind", KINDS)
def test_a_step_down_the_loss_moves_toward_the_reference(kind: KLKind) -> None:
    above = torch.tensor([-1.0], requires_grad=True)
    kl_estimate(above, torch.tensor([-2.0]), kind=kind).sum().backward()
    assert above.grad is not None
    assert above.grad.item() > 0
    if kind != "k1":  # k1's gradient is +1 everywhere: a penalty on the reward, not a loss
        below = torch.tensor([-3.0], requires_grad=True)
        kl_estimate(below, torch.tensor([-2.0]), kind=kind).sum().backward()
        assert below.grad is not None
        assert below.grad.item() < 0


@pytest.mark.parametrize("kind", ["k1", "k3"])
def test_k1_and_k3_estimate_the_divergence_of_the_policy_that_sampled(kind: KLKind) -> None:
    current = torch.tensor([0.7, 0.2, 0.1], dtype=torch.float64).log()
    reference = torch.tensor([0.4, 0.4, 0.2], dtype=torch.float64).log()
    expected = (current.exp() * (current - reference)).sum()
    estimate = (current.exp() * kl_estimate(current, reference, kind=kind)).sum()
    assert estimate.item() == pytest.approx(expected.item())


def test_the_expected_gradient_of_k2_is_that_of_the_divergence() -> None:
    logits = torch.tensor([0.3, -0.2, 0.9], dtype=torch.float64, requires_grad=True)
    reference = torch.tensor([0.4, 0.4, 0.2], dtype=torch.float64).log()
    current = logits.log_softmax(0)
    (expected,) = torch.autograd.grad((current.exp() * (current - reference)).sum(), logits)
    current = logits.log_softmax(0)
    k2 = kl_estimate(current, reference, kind="k2")
    (actual,) = torch.autograd.grad((current.detach().exp() * k2).sum(), logits)
    torch.testing.assert_close(actual, expected)


def test_the_expected_gradient_of_k3_is_that_of_the_divergence_the_other_way() -> None:
    logits = torch.tensor([0.3, -0.2, 0.9], dtype=torch.float64, requires_grad=True)
    reference = torch.tensor([0.4, 0.4, 0.2], dtype=torch.float64).log()
    current = logits.log_softmax(0)
    (expected,) = torch.autograd.grad((reference.exp() * (reference - current)).sum(), logits)
    current = logits.log_softmax(0)
    k3 = kl_estimate(current, reference, kind="k3")
    (actual,) = torch.autograd.grad((current.detach().exp() * k3).sum(), logits)
    torch.testing.assert_close(actual, expected)


@pytest.mark.parametrize("kind", KINDS)
def test_masked_positions_may_hold_anything(kind: KLKind) -> None:
    current = torch.tensor([[-1.0, math.nan, math.inf]], requires_grad=True)
    reference = torch.tensor([[-2.0, math.inf, math.nan]], requires_grad=True)
    mask = torch.tensor([[True, False, False]])
    out = kl_loss(current, reference, mask, kind=kind)
    out.loss.backward()
    assert out.loss.isfinite()
    assert float(out.metrics["kl/reference_mean"]) == pytest.approx(out.loss.item())
    assert current.grad is not None
    assert current.grad[0, 1:].tolist() == [0.0, 0.0]
    assert reference.grad is None
    broken = kl_loss(current, reference, torch.tensor([[True, True, False]]), kind=kind)
    assert broken.loss.isnan()


@pytest.mark.parametrize("kind", KINDS)
def test_gradcheck_holds_in_float64(kind: KLKind) -> None:
    generator = torch.Generator().manual_seed(3)
    current, reference = torch.randn(2, 2, 3, generator=generator, dtype=torch.float64)
    mask = torch.tensor([[True, False, True], [True, True, True]])
    assert torch.autograd.gradcheck(
        lambda x: kl_loss(x, reference, mask, kind=kind, aggregation="sequence_mean").loss,
        current.requires_grad_(),
    )


def test_the_penalty_shares_the_global_denominator() -> None:
    current, reference = torch.full((1, 4), -1.0), torch.full((1, 4), -2.0)
    out = kl_loss(current, reference, current < 0, kind="k1", denominator=8)
    assert out.loss.item() == 0.5
    assert out.denominator.item() == 8


def test_wrong_arguments_are_named() -> None:
    x = torch.zeros(2)
    with pytest.raises(OptionError, match="kind must be one of 'k1', 'k2', 'k3', got 'k4'"):
        kl_estimate(x, x, kind="k4")  # type: ignore[arg-type]
    with pytest.raises(ArgumentError, match="reference_logprobs must be of the mask's shape"):
        kl_estimate(x, torch.zeros(3))
    with pytest.raises(ArgumentTypeError, match="mask must be of dtype"):
        kl_loss(x, x, x)
