"""Metrics have hand-computed values, and merge into those of the whole."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from awrl_ppo_loss import PolicyBatch, PolicyLossConfig, merge_metrics, policy_loss
from torch import Tensor

KEYS = {
    "loss/num_tokens",
    "clip/fraction",
    "clip/low_fraction",
    "clip/high_fraction",
    "clip/dual_fraction",
    "update_ratio/mean",
    "update_ratio/max",
    "staleness_ratio/mean",
    "staleness_ratio/max",
    "staleness_ratio/capped_fraction",
    "staleness_ratio/weight_mean",
    "staleness_ratio/weight_square_mean",
    "staleness_ratio/ess_fraction",
    "kl/proximal_current_k3",
    "kl/behavior_proximal_k3",
}


def logs(*ratios: float) -> Tensor:
    return torch.tensor([[math.log(ratio) for ratio in ratios]], dtype=torch.float64)


def metrics_of(
    current: Tensor,
    proximal: Tensor | None,
    behavior: Tensor,
    advantages: Tensor,
    mask: Tensor,
    **options: Any,
) -> dict[str, Tensor | float]:
    batch = PolicyBatch(
        current_logprobs=current,
        proximal_logprobs=proximal,
        behavior_logprobs=behavior,
        advantages=advantages,
        mask=mask,
    )
    return policy_loss(batch, PolicyLossConfig(**options)).metrics


def test_every_metric_has_its_hand_computed_value() -> None:
    update, staleness = logs(1.5, 0.5, 0.9, 0.5, 7.0), logs(2.0, 1.0, 0.5, 4.0, 9.0)
    mask = torch.tensor([[True, True, True, True, False]])
    advantages = torch.tensor([[1.0, -1.0, 1.0, 1.0, 1.0]])
    out = metrics_of(update, torch.zeros_like(update), -staleness, advantages, mask, weight_cap=3.0)
    metrics = {key: float(value) for key, value in out.items()}
    weights = [2.0, 1.0, 0.5, 0.0]
    square_mean = sum(w * w for w in weights) / 4
    expected = {
        "loss/num_tokens": 4,
        "clip/fraction": 0.5,
        "clip/low_fraction": 0.25,
        "clip/high_fraction": 0.25,
        "clip/dual_fraction": 0.0,
        "update_ratio/mean": 3.4 / 4,
        "update_ratio/max": 1.5,
        "staleness_ratio/mean": 7.5 / 4,
        "staleness_ratio/max": 4.0,
        "staleness_ratio/capped_fraction": 0.25,
        "staleness_ratio/weight_mean": 3.5 / 4,
        "staleness_ratio/weight_square_mean": square_mean,
        "staleness_ratio/ess_fraction": (3.5 / 4) ** 2 / square_mean,
        "kl/proximal_current_k3": sum(r - 1 - math.log(r) for r in (1.5, 0.5, 0.9, 0.5)) / 4,
        "kl/behavior_proximal_k3": sum(r - 1 - math.log(r) for r in (2.0, 1.0, 0.5, 4.0)) / 4,
    }
    assert metrics == pytest.approx(expected)
    assert metrics.keys() == KEYS


def test_the_maximum_is_that_of_trainable_tokens_even_below_one() -> None:
    out = metrics_of(
        logs(0.25, 0.5, 9.0),
        None,
        torch.zeros(1, 3),
        torch.ones(1, 3),
        torch.tensor([[True, True, False]]),
    )
    assert float(out["update_ratio/max"]) == pytest.approx(0.5)


def test_the_coupled_loss_reports_a_weight_of_one() -> None:
    zeros = torch.zeros(1, 2)
    metrics = metrics_of(zeros, None, zeros, zeros, zeros == 0)
    assert metrics.keys() == KEYS
    assert float(metrics["staleness_ratio/ess_fraction"]) == 1.0


def test_equal_weights_have_a_full_effective_sample_size_and_one_large_weight_has_not() -> None:
    zeros = torch.zeros(1, 4, dtype=torch.float64)
    mask = zeros == 0
    alike = metrics_of(zeros, zeros, zeros - 2, zeros, mask)
    assert float(alike["staleness_ratio/ess_fraction"]) == pytest.approx(1.0)
    single = metrics_of(zeros, zeros, -logs(1e6, 1, 1, 1), zeros, mask)
    assert float(single["staleness_ratio/ess_fraction"]) == pytest.approx(0.25, rel=1e-4)


def test_dropping_every_token_gives_an_effective_sample_size_of_zero() -> None:
    zeros = torch.zeros(1, 2)
    out = metrics_of(zeros, zeros, zeros - 3, zeros, zeros == 0, weight_cap=1.0)
    assert float(out["staleness_ratio/ess_fraction"]) == 0.0
    assert float(out["staleness_ratio/capped_fraction"]) == 1.0


def test_cispo_counts_ratios_outside_the_bounds_whatever_the_advantage() -> None:
    mask = torch.tensor([[True, True, True, False]])
    zeros = torch.zeros(1, 4)
    metrics = metrics_of(
        logs(0.5, 2.0, 3.0, 0.1),
        zeros,
        zeros,
        zeros - 1,
        mask,
        objective="cispo",
        clip_low=0.2,
        clip_high=1.5,
    )
    assert metrics.keys() == KEYS
    assert float(metrics["clip/low_fraction"]) == pytest.approx(1 / 3)
    assert float(metrics["clip/high_fraction"]) == pytest.approx(1 / 3)


def test_gspo_metrics_speak_of_the_sequence_s_ratio() -> None:
    current = logs(4.0, 1.0)
    zeros = torch.zeros(1, 2)
    metrics = metrics_of(current, zeros, zeros, zeros + 1, zeros == 0, objective="gspo")
    assert metrics.keys() == KEYS
    assert float(metrics["update_ratio/max"]) == pytest.approx(2.0)
    assert float(metrics["clip/high_fraction"]) == 1.0


def test_metrics_carry_no_gradient() -> None:
    current = torch.zeros(1, 2, requires_grad=True)
    zeros = torch.zeros(1, 2)
    for value in metrics_of(current, zeros, zeros, zeros, zeros == 0).values():
        assert not (isinstance(value, Tensor) and value.requires_grad)


def test_merging_weighs_means_by_tokens_and_takes_maxima() -> None:
    parts = [
        {"loss/num_tokens": 1.0, "a/mean": 5.0, "a/max": 5.0},
        {"loss/num_tokens": 3.0, "a/mean": 1.0, "a/max": 2.0},
        {"loss/num_tokens": 0.0, "a/mean": 100.0, "a/max": 100.0},
    ]
    assert merge_metrics(parts) == {"loss/num_tokens": 4.0, "a/mean": 2.0, "a/max": 5.0}
    assert merge_metrics([]) == {}


def test_merging_parts_without_tokens_gives_zeros() -> None:
    zeros = torch.zeros(1, 2)
    part = metrics_of(zeros, zeros, zeros, zeros, zeros != 0)
    merged = merge_metrics([part, part])
    assert set(merged.values()) == {0.0}
