"""Proximal log-probs: recomputed, interpolated, and the error of the interpolation."""

import math

import pytest
import torch
from awrl_ppo_loss import (
    ArgumentError,
    ArgumentTypeError,
    OptionError,
    ProximalMethod,
    decoupled_ppo_loss,
    loglinear_proximal_logprobs,
    ppo_loss,
    proximal_logprobs,
)
from hypothesis import given
from hypothesis import strategies as st

CURRENT = torch.tensor([[-1.0, -1.0, -1.0, -1.0]])
BEHAVIOR = torch.tensor([[-2.0, -2.0, -2.0, -2.0]])
VERSIONS = torch.tensor([[5, 4, 2, -1]])
MASK = torch.tensor([[True, True, True, False]])


def test_loglinear_moves_evenly_over_the_versions() -> None:
    proximal = loglinear_proximal_logprobs(CURRENT, BEHAVIOR, VERSIONS, MASK, proximal_version=5)
    # a = (5 - v) / (6 - v): 0, 1/2, 3/4; masked positions keep the behavior log-prob.
    torch.testing.assert_close(proximal, torch.tensor([[-2.0, -1.5, -1.25, -2.0]]))


@given(age=st.integers(0, 50), distance=st.floats(-5, 5))
def test_loglinear_lies_between_behavior_and_current(age: int, distance: float) -> None:
    behavior = torch.tensor([-1.0], dtype=torch.float64)
    proximal = loglinear_proximal_logprobs(
        behavior + distance,
        behavior,
        torch.tensor([50 - age]),
        torch.tensor([True]),
        proximal_version=50,
    )
    share = age / (age + 1)
    assert proximal.item() == pytest.approx(-1.0 + share * distance)


def test_on_policy_tokens_make_loglinear_plain_ppo() -> None:
    generator = torch.Generator().manual_seed(0)
    current, behavior, advantages = torch.randn(3, 2, 4, generator=generator)
    mask = torch.ones(2, 4, dtype=torch.bool)
    versions = torch.full((2, 4), 3)
    proximal = loglinear_proximal_logprobs(current, behavior, versions, mask, proximal_version=3)
    decoupled = decoupled_ppo_loss(current, proximal, behavior, advantages, mask)
    assert torch.equal(decoupled.loss, ppo_loss(current, behavior, advantages, mask).loss)


def test_loglinear_passes_no_gradient() -> None:
    current = CURRENT.clone().requires_grad_()
    proximal = loglinear_proximal_logprobs(current, BEHAVIOR, VERSIONS, MASK, proximal_version=5)
    assert not proximal.requires_grad
    decoupled_ppo_loss(current, proximal, BEHAVIOR, torch.ones(1, 4), MASK).loss.backward()
    assert current.grad is not None
    assert current.grad[0, 3].item() == 0.0


@pytest.mark.parametrize("version", [6, -1])
def test_versions_beside_the_wrong_token_are_refused(version: int) -> None:
    versions = torch.tensor([[5, version, 2, -1]])
    message = rf"behavior_versions must be in \[0, proximal_version = 5\].*got {version}"
    with pytest.raises(ArgumentError, match=message):
        loglinear_proximal_logprobs(CURRENT, BEHAVIOR, versions, MASK, proximal_version=5)


def test_masked_positions_may_hold_any_version_and_logprob() -> None:
    current = torch.tensor([[-1.0, math.nan]])
    proximal = loglinear_proximal_logprobs(
        current,
        torch.tensor([[-2.0, -7.0]]),
        torch.tensor([[4, 99]]),
        torch.tensor([[True, False]]),
        proximal_version=5,
    )
    assert proximal.tolist() == [[-1.5, -7.0]]


@pytest.mark.parametrize("method", ["recompute", ProximalMethod.RECOMPUTE])
def test_recompute_returns_the_forward_pass_without_gradient(method: ProximalMethod | str) -> None:
    recomputed = CURRENT.clone().requires_grad_()
    out = proximal_logprobs(
        method,
        current_logprobs=CURRENT,
        behavior_logprobs=BEHAVIOR,
        mask=MASK,
        recomputed_logprobs=recomputed,
    )
    assert torch.equal(out.logprobs, CURRENT)
    assert not out.logprobs.requires_grad
    assert out.metrics == {}


def test_metrics_recomputes_and_reports_the_error_of_the_approximations() -> None:
    recomputed = torch.tensor([[-2.0, -1.75, -1.0, math.nan]])
    out = proximal_logprobs(
        "metrics",
        current_logprobs=CURRENT,
        behavior_logprobs=BEHAVIOR,
        mask=MASK,
        recomputed_logprobs=recomputed,
        behavior_versions=VERSIONS,
        proximal_version=5,
    )
    assert out.logprobs.data_ptr() == recomputed.data_ptr()
    assert {key: float(value) for key, value in out.metrics.items()} == pytest.approx(
        {
            "loss/num_tokens": 3.0,
            "proximal/loglinear_abs_error_mean": 0.5 / 3,
            "proximal/loglinear_abs_error_max": 0.25,
            "proximal/behavior_abs_error_mean": 1.25 / 3,
            "proximal/behavior_abs_error_max": 1.0,
        }
    )


def test_loglinear_needs_no_forward_pass_and_the_others_do() -> None:
    out = proximal_logprobs(
        ProximalMethod.LOGLINEAR,
        current_logprobs=CURRENT,
        behavior_logprobs=BEHAVIOR,
        mask=MASK,
        behavior_versions=VERSIONS,
        proximal_version=5,
    )
    assert out.logprobs[0, 1].item() == -1.5
    assert [method.needs_forward for method in ProximalMethod] == [True, False, True]


@pytest.mark.parametrize(
    ("method", "missing"),
    [
        ("recompute", "recomputed_logprobs"),
        ("metrics", "recomputed_logprobs"),
        ("loglinear", "behavior_versions"),
    ],
)
def test_a_missing_input_is_named(method: str, missing: str) -> None:
    with pytest.raises(ArgumentError, match=f"{missing} must be given with method '{method}'"):
        proximal_logprobs(method, current_logprobs=CURRENT, behavior_logprobs=BEHAVIOR, mask=MASK)


def test_wrong_arguments_are_named() -> None:
    with pytest.raises(ArgumentError, match="proximal_version must be given"):
        proximal_logprobs(
            "loglinear",
            current_logprobs=CURRENT,
            behavior_logprobs=BEHAVIOR,
            mask=MASK,
            behavior_versions=VERSIONS,
        )
    with pytest.raises(OptionError, match="method must be one of 'recompute', 'loglinear'"):
        proximal_logprobs("linear", current_logprobs=CURRENT, behavior_logprobs=BEHAVIOR, mask=MASK)
    with pytest.raises(ArgumentTypeError, match="behavior_versions must be a tensor of an integer"):
        loglinear_proximal_logprobs(CURRENT, BEHAVIOR, VERSIONS.float(), MASK, proximal_version=5)
