"""Public reports of wrong policy losses, each with its right value."""

import inspect
import math
from collections.abc import Callable
from typing import get_args

import pytest
import torch
from awrl_ppo_loss import (
    Aggregation,
    ArgumentError,
    ArgumentTypeError,
    LossOutput,
    OptionError,
    PolicyLossConfig,
    aggregate,
    decoupled_ppo_loss,
    group_normalized_advantages,
    gspo_loss,
    kl_estimate,
    kl_loss,
    logprobs_from_hidden,
    logprobs_from_logits,
    ppo_loss,
)
from torch import Tensor

AGGREGATIONS: tuple[Aggregation, ...] = get_args(Aggregation)


def row(*values: float, grad: bool = False) -> Tensor:
    return torch.tensor([list(values)], dtype=torch.float32, requires_grad=grad)


def mask_of(*values: int) -> Tensor:
    return torch.tensor([list(values)], dtype=torch.bool)


def test_a_masked_token_with_an_overflowing_ratio_leaves_loss_and_gradient_finite() -> None:
    current = row(0, 0, 0, grad=True)
    proximal = row(0, 0, -200)
    out = decoupled_ppo_loss(current, proximal, proximal, row(1, 1, 1), mask_of(1, 1, 0))
    out.loss.backward()
    assert out.loss.item() == -1.0
    assert current.grad is not None
    assert current.grad.tolist() == [[-0.5, -0.5, 0.0]]


def test_a_valid_token_with_log_ratio_100_and_negative_advantage_stays_finite() -> None:
    current = row(100, grad=True)
    out = decoupled_ppo_loss(current, row(0), row(0), row(-1), mask_of(1))
    out.loss.backward()
    assert math.isfinite(out.loss.item())
    assert out.loss.item() > 0
    assert current.grad is not None
    assert current.grad.isfinite().all()


@pytest.mark.parametrize("aggregation", AGGREGATIONS)
def test_nan_at_a_masked_place_changes_neither_loss_nor_gradient(
    aggregation: Aggregation,
) -> None:
    losses = row(1, math.nan, 3, grad=True)
    # Of one sequence with two tokens, so k = 2 makes the sum over sequences their mean.
    constant = {"step_constant": 1.0, "sequence_constant": 2.0}.get(aggregation)
    loss = aggregate(losses, mask_of(1, 0, 1), aggregation=aggregation, constant=constant)
    loss.backward()
    assert loss.item() == 2.0
    assert losses.grad is not None
    assert losses.grad.tolist() == [[0.5, 0.0, 0.5]]


@pytest.mark.parametrize("aggregation", AGGREGATIONS)
def test_nan_at_an_unmasked_place_stays_visible(aggregation: Aggregation) -> None:
    constant = 2.0 if "constant" in aggregation else None
    losses = row(1, math.nan, 3)
    loss = aggregate(losses, mask_of(1, 1, 1), aggregation=aggregation, constant=constant)
    assert loss.isnan()


def test_the_behavior_filter_leaves_the_denominator_alone() -> None:
    behavior = row(0, 0, 0, -3)
    zeros = row(0, 0, 0, 0)
    out = decoupled_ppo_loss(
        row(0, 0, 0, 0, grad=True),
        zeros,
        behavior,
        row(1, 1, 1, 1),
        mask_of(1, 1, 1, 1),
        behav_imp_weight_cap=5.0,
    )
    assert out.loss.item() == -0.75
    assert float(out.metrics["staleness_ratio/capped_fraction"]) == 0.25
    assert out.denominator.item() == 4


def test_a_batch_without_trainable_tokens_gives_zero_and_backward_runs() -> None:
    current = row(0, math.nan, grad=True)
    out = decoupled_ppo_loss(
        current, row(math.inf, 1), row(0, -math.inf), row(math.nan, 1), mask_of(0, 0)
    )
    out.loss.backward()
    assert out.loss.item() == 0.0
    assert current.grad is not None
    assert current.grad.tolist() == [[0.0, 0.0]]


@pytest.mark.requirement("decoupled-ratio")
@pytest.mark.parametrize(
    ("logprob", "loss", "gradient"), [(0.1, -1.822119, -1.822119), (0.4, -1.978466, 0.0)]
)
def test_no_gradient_flows_through_the_staleness_weight(
    logprob: float, loss: float, gradient: float
) -> None:
    current, proximal, behavior = row(logprob, grad=True), row(0, grad=True), row(-0.5, grad=True)
    advantages = row(1, grad=True)
    out = decoupled_ppo_loss(current, proximal, behavior, advantages, mask_of(1))
    out.loss.backward()
    assert out.loss.item() == pytest.approx(loss, abs=1e-6)
    assert current.grad is not None
    assert current.grad.item() == pytest.approx(gradient, abs=1e-6)
    assert proximal.grad is None
    assert behavior.grad is None
    assert advantages.grad is None


@pytest.mark.parametrize("function", [decoupled_ppo_loss, ppo_loss])
def test_a_misspelt_option_is_named(function: object) -> None:
    assert callable(function)
    num_tensors = sum(
        p.kind is p.POSITIONAL_OR_KEYWORD for p in inspect.signature(function).parameters.values()
    )
    tensors = [row(0)] * (num_tensors - 1)
    with pytest.raises(TypeError, match="dual_clp"):
        function(*tensors, mask_of(1), dual_clp=3.0)


@pytest.mark.parametrize(
    ("logprob", "kinds"), [(-1.0, {"k1": 1.0, "k2": 0.5, "k3": 0.367879}), (-2.0, {"k3": 0.0})]
)
def test_kl_estimators_have_the_right_sign(logprob: float, kinds: dict[str, float]) -> None:
    for kind, value in kinds.items():
        estimate = kl_estimate(row(logprob), row(-2), kind=kind)  # type: ignore[arg-type]
        assert estimate.item() == pytest.approx(value, abs=1e-6)


def test_the_kl_loss_pulls_the_current_policy_back() -> None:
    current = row(-1, grad=True)
    kl_loss(current, row(-2), mask_of(1), kind="k3").loss.backward()
    assert current.grad is not None
    assert current.grad.item() == pytest.approx(0.632121, abs=1e-6)


@pytest.mark.requirement("proximal-snapshot")
def test_at_the_start_of_the_update_the_ratio_is_one_and_the_gradient_is_not_zero() -> None:
    current = row(-0.25, grad=True)
    proximal = current.detach().clone()
    out = decoupled_ppo_loss(current, proximal, proximal - 0.5, row(1), mask_of(1))
    out.loss.backward()
    assert float(out.metrics["update_ratio/mean"]) == 1.0
    assert float(out.metrics["clip/fraction"]) == 0.0
    assert out.loss.item() == pytest.approx(-1.648721, abs=1e-6)
    assert current.grad is not None
    assert current.grad.item() == pytest.approx(-1.648721, abs=1e-6)


def test_with_proximal_equal_to_behavior_the_loss_is_plain_ppo() -> None:
    current, behavior = row(-0.4, -2.0), row(-0.5, -1.0)
    advantages, mask = row(1, -2), mask_of(1, 1)
    decoupled = decoupled_ppo_loss(current, behavior, behavior, advantages, mask)
    assert torch.equal(decoupled.loss, ppo_loss(current, behavior, advantages, mask).loss)


def test_temperature_divides_the_logits() -> None:
    label = torch.tensor([[0]])
    logits = torch.tensor([[[2.0, 0.0]]])
    logprobs = logprobs_from_logits(logits, label, temperature=0.5)
    assert logprobs.item() == pytest.approx(-0.018150, abs=1e-6)
    # The same logits from hidden states, through a head that changes nothing.
    fused = logprobs_from_hidden(logits, torch.eye(2), label, temperature=0.5)
    assert fused.item() == pytest.approx(-0.018150, abs=1e-6)


def test_the_clip_fraction_compares_the_ratio_before_clipping() -> None:
    current = row(math.log(1.5), 0.0)
    out = ppo_loss(current, row(0, 0), row(1, 1), mask_of(1, 1))
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
    current = row(math.log(ratio))
    zeros = row(0)
    out = decoupled_ppo_loss(
        current, zeros, zeros, row(advantage), mask_of(1), clip_low=0.2, clip_high=clip_high
    )
    assert out.loss.item() == pytest.approx(loss, abs=1e-6)


def test_advantages_in_place_of_the_mask_are_refused() -> None:
    advantages = row(0.3, -1.2)
    logprobs = row(-1, -2)
    with pytest.raises(ArgumentTypeError, match=r"mask must be of dtype torch\.bool"):
        decoupled_ppo_loss(logprobs, logprobs, logprobs, advantages, mask=advantages)
    with pytest.raises(ArgumentTypeError, match=r"mask must be of dtype torch\.bool"):
        decoupled_ppo_loss(logprobs, logprobs, logprobs, mask_of(1, 1), advantages)
    with pytest.raises(ArgumentError, match=r"must be of the mask's shape \[1, 3\]"):
        decoupled_ppo_loss(logprobs, logprobs, logprobs, advantages, mask_of(1, 1, 0))
    with pytest.raises(ArgumentTypeError, match=r"mask must be of dtype torch\.bool"):
        ppo_loss(logprobs, logprobs, mask_of(1, 1), advantages)


def test_a_group_of_one_gets_advantage_zero() -> None:
    advantages, statistics = group_normalized_advantages([1.0], ["only"])
    assert advantages.tolist() == [0.0]
    assert statistics.num_single == 1


def test_a_misspelt_or_foreign_option_of_the_configuration_is_named() -> None:
    with pytest.raises(TypeError, match="dual_clp"):
        PolicyLossConfig(dual_clp=3.0)  # type: ignore[call-arg]
    with pytest.raises(OptionError, match="dual_clip must be None with objective 'cispo'"):
        PolicyLossConfig(objective="cispo", dual_clip=3.0)


@pytest.mark.parametrize("loss", [gspo_loss, decoupled_ppo_loss])
def test_sequences_weigh_alike_whatever_their_length(loss: Callable[..., LossOutput]) -> None:
    zeros = torch.zeros(2, 5)
    mask = torch.tensor([[1, 1, 1, 1, 1], [1, 0, 0, 0, 0]], dtype=torch.bool)
    advantages = torch.tensor([[1.0], [-1.0]]).expand(2, 5)
    out = loss(zeros, zeros, zeros, advantages, mask, aggregation="sequence_mean")
    assert out.loss.item() == pytest.approx(0.0, abs=1e-7)
    assert out.denominator.item() == 2


def test_one_advantage_per_sequence_is_not_broadcast_silently() -> None:
    zeros = torch.zeros(2, 5)
    with pytest.raises(ArgumentError, match=r"advantages must be of the mask's shape \[2, 5\]"):
        gspo_loss(zeros, zeros, zeros, torch.tensor([[1.0], [-1.0]]), zeros == 0)
