"""Proximal log-probs: recomputed, interpolated, and the error of the interpolation."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from awrl_ppo_loss import PolicyBatch, PPOLossError, policy_loss, proximal_logprobs
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

CURRENT = torch.tensor([[-1.0, -1.0, -1.0, -1.0]])
BEHAVIOR = torch.tensor([[-2.0, -2.0, -2.0, -2.0]])
VERSIONS = torch.tensor([[5, 4, 2, -1]])
MASK = torch.tensor([[True, True, True, False]])


def loglinear(
    current: Tensor, behavior: Tensor, versions: Tensor, mask: Tensor, *, proximal_version: int
) -> Tensor:
    logprobs, metrics = proximal_logprobs(
        "loglinear",
        current_logprobs=current,
        behavior_logprobs=behavior,
        mask=mask,
        behavior_versions=versions,
        proximal_version=proximal_version,
    )
    assert metrics == {}
    return logprobs


def loss_of(
    current: Tensor, proximal: Tensor | None, behavior: Tensor, advantages: Tensor, mask: Tensor
) -> Tensor:
    batch = PolicyBatch(
        current_logprobs=current,
        proximal_logprobs=proximal,
        behavior_logprobs=behavior,
        advantages=advantages,
        mask=mask,
    )
    return policy_loss(batch).loss


def test_loglinear_moves_evenly_over_the_versions() -> None:
    proximal = loglinear(CURRENT, BEHAVIOR, VERSIONS, MASK, proximal_version=5)
    # a = (5 - v) / (6 - v): 0, 1/2, 3/4; masked positions keep the behavior log-prob.
    torch.testing.assert_close(proximal, torch.tensor([[-2.0, -1.5, -1.25, -2.0]]))


@given(age=st.integers(0, 50), distance=st.floats(-5, 5))
def test_loglinear_lies_between_behavior_and_current(age: int, distance: float) -> None:
    behavior = torch.tensor([-1.0], dtype=torch.float64)
    proximal = loglinear(
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
    proximal = loglinear(current, behavior, versions, mask, proximal_version=3)
    decoupled = loss_of(current, proximal, behavior, advantages, mask)
    assert torch.equal(decoupled, loss_of(current, None, behavior, advantages, mask))


def test_loglinear_passes_no_gradient() -> None:
    current = CURRENT.clone().requires_grad_()
    proximal = loglinear(current, BEHAVIOR, VERSIONS, MASK, proximal_version=5)
    assert not proximal.requires_grad
    loss_of(current, proximal, BEHAVIOR, torch.ones(1, 4), MASK).backward()
    assert current.grad is not None
    assert current.grad[0, 3].item() == 0.0


@pytest.mark.parametrize("version", [6, -1])
def test_versions_beside_the_wrong_token_are_refused(version: int) -> None:
    versions = torch.tensor([[5, version, 2, -1]])
    message = rf"behavior_versions must be in \[0, proximal_version = 5\].*got {version}"
    with pytest.raises(PPOLossError, match=message):
        loglinear(CURRENT, BEHAVIOR, versions, MASK, proximal_version=5)


def test_masked_positions_may_hold_any_version_and_logprob() -> None:
    current = torch.tensor([[-1.0, math.nan]])
    proximal = loglinear(
        current,
        torch.tensor([[-2.0, -7.0]]),
        torch.tensor([[4, 99]]),
        torch.tensor([[True, False]]),
        proximal_version=5,
    )
    assert proximal.tolist() == [[-1.5, -7.0]]


def test_recompute_returns_the_forward_pass_without_gradient() -> None:
    recomputed = CURRENT.clone().requires_grad_()
    logprobs, metrics = proximal_logprobs(
        "recompute",
        current_logprobs=CURRENT,
        behavior_logprobs=BEHAVIOR,
        mask=MASK,
        recomputed_logprobs=recomputed,
    )
    assert torch.equal(logprobs, CURRENT)
    assert not logprobs.requires_grad
    assert metrics == {}


def test_metrics_recomputes_and_reports_the_error_of_the_approximations() -> None:
    recomputed = torch.tensor([[-2.0, -1.75, -1.0, math.nan]])
    logprobs, metrics = proximal_logprobs(
        "metrics",
        current_logprobs=CURRENT,
        behavior_logprobs=BEHAVIOR,
        mask=MASK,
        recomputed_logprobs=recomputed,
        behavior_versions=VERSIONS,
        proximal_version=5,
    )
    assert logprobs.data_ptr() == recomputed.data_ptr()
    assert {key: float(value) for key, value in metrics.items()} == pytest.approx(
        {
            "loss/num_tokens": 3.0,
            "proximal/loglinear_abs_error_mean": 0.5 / 3,
            "proximal/loglinear_abs_error_max": 0.25,
            "proximal/behavior_abs_error_mean": 1.25 / 3,
            "proximal/behavior_abs_error_max": 1.0,
        }
    )


@pytest.mark.parametrize(
    ("method", "given_inputs", "message"),
    [
        ("recompute", {}, "recomputed_logprobs must be given with method 'recompute'"),
        ("metrics", {}, "recomputed_logprobs must be given with method 'metrics'"),
        ("loglinear", {}, "behavior_versions must be given with method 'loglinear'"),
        ("loglinear", {"behavior_versions": VERSIONS}, "proximal_version must be given"),
        ("linear", {}, "method must be one of 'recompute', 'loglinear', 'metrics', got 'linear'"),
        ("recompute", {"recomputed_logprobs": CURRENT[0]}, "must be of the mask's shape"),
        (
            "loglinear",
            {"behavior_versions": VERSIONS.float(), "proximal_version": 5},
            "behavior_versions must be a tensor of an integer",
        ),
    ],
)
def test_a_missing_or_wrong_input_is_named(
    method: Any, given_inputs: dict[str, Any], message: str
) -> None:
    with pytest.raises(PPOLossError, match=message):
        proximal_logprobs(
            method,
            current_logprobs=CURRENT,
            behavior_logprobs=BEHAVIOR,
            mask=MASK,
            **given_inputs,
        )
