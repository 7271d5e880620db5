"""Where gradients flow, where they must not, and what masked or broken positions do to them."""

from __future__ import annotations

import math
from typing import Any, get_args

import pytest
import torch
from awrl_ppo_loss import LossOutput, PolicyBatch, PolicyLossConfig, policy_loss
from awrl_ppo_loss.config import Aggregation
from torch import Tensor

CONFIGS = {
    "ppo": PolicyLossConfig(),
    "bounded": PolicyLossConfig(importance="token_truncate", weight_floor=0.5, weight_cap=1.1),
    "sequence": PolicyLossConfig(importance="sequence_mask", weight_cap=3.0),
    "geometric": PolicyLossConfig(importance="geometric_truncate", weight_cap=1.05),
    "rejected": PolicyLossConfig(importance="seq_mean_k1", weight_cap=3.0),
    "gspo": PolicyLossConfig(objective="gspo", aggregation="sequence_mean", clip_low=3e-4),
    "cispo": PolicyLossConfig(objective="cispo", clip_low=1.0),
    "regularized": PolicyLossConfig(kl_coefficient=0.1, entropy_coefficient=0.1),
}
GARBAGE = [math.nan, math.inf, -math.inf, 1e38, -200.0]
MASK = torch.tensor([[True, True, False, True], [False, True, True, True]])
NAMES = (
    "current_logprobs",
    "proximal_logprobs",
    "behavior_logprobs",
    "advantages",
    "reference_logprobs",
    "entropy",
)


def tensors(dtype: torch.dtype = torch.float64, spread: float = 0.2) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(7)

    def normal(scale: float) -> Tensor:
        return (torch.randn(2, 4, generator=generator, dtype=torch.float64) * scale).to(dtype)

    proximal = normal(1.0) - 2
    return {
        "current_logprobs": proximal + normal(spread),
        "proximal_logprobs": proximal,
        "behavior_logprobs": proximal + normal(spread),
        "advantages": normal(1.0),
        "reference_logprobs": proximal + normal(spread),
        "entropy": normal(1.0),
    }


def call(values: dict[str, Tensor], config: PolicyLossConfig, mask: Tensor = MASK) -> LossOutput:
    return policy_loss(PolicyBatch(**values, mask=mask), config)


def gradient(values: dict[str, Tensor], out: LossOutput) -> Tensor:
    return torch.autograd.grad(out.loss, values["current_logprobs"])[0]


@pytest.mark.parametrize("aggregation", get_args(Aggregation))
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"dual_clip": 1.5},
        {"importance": "token_mask", "weight_floor": 0.8, "weight_cap": 1.2},
        {"importance": "sequence_truncate", "weight_cap": 1.2},
        {"importance": "geometric_mask", "weight_cap": 1.2},
        {"importance": "seq_sum_k1", "weight_cap": 3.0, "constant": 3.0},
        {"kl_coefficient": 0.3, "kl_estimator": "k3", "entropy_coefficient": 0.2},
        {"kl_coefficient": 0.3, "kl_estimator": "k2"},
    ],
)
def test_gradcheck_holds_in_float64(options: dict[str, Any], aggregation: Aggregation) -> None:
    values = tensors()
    config = PolicyLossConfig(**options, aggregation=aggregation)

    def loss(current: Tensor, entropy: Tensor) -> Tensor:
        return call({**values, "current_logprobs": current, "entropy": entropy}, config).loss

    leaves = [values["current_logprobs"].requires_grad_(), values["entropy"].requires_grad_()]
    assert torch.autograd.gradcheck(loss, leaves)


def test_gradcheck_of_gspo_holds_with_one_advantage_per_sequence() -> None:
    values = tensors()
    values["advantages"] = torch.tensor([[1.3], [-0.4]]).double().expand(2, 4)
    # Within a sequence weights must not differ either: a token's own would act as its advantage.
    config = PolicyLossConfig(
        objective="gspo", importance="geometric_truncate", weight_cap=9.0, clip_high=0.01
    )

    def loss(current: Tensor) -> Tensor:
        return call({**values, "current_logprobs": current}, config).loss

    assert torch.autograd.gradcheck(loss, values["current_logprobs"].requires_grad_())


def test_gspo_credits_each_token_with_its_own_advantage() -> None:
    current = torch.zeros(1, 2, requires_grad=True)
    out = policy_loss(
        PolicyBatch(
            current_logprobs=current,
            behavior_logprobs=torch.zeros(1, 2),
            advantages=torch.tensor([[1.0, -1.0]]),
            mask=torch.ones(1, 2, dtype=torch.bool),
        ),
        PolicyLossConfig(objective="gspo", aggregation="sequence_mean"),
    )
    out.loss.backward()
    assert current.grad is not None
    assert current.grad.tolist() == [[-0.5, 0.5]]


def test_the_cispo_gradient_is_its_coefficient_over_the_denominator() -> None:
    values = tensors()
    values["current_logprobs"].requires_grad_()
    out = call(values, PolicyLossConfig(objective="cispo", clip_low=1.0, clip_high=0.1))
    current, proximal = values["current_logprobs"].detach(), values["proximal_logprobs"]
    ratio = (current - proximal).exp().clamp(max=1.1)
    weight = (proximal - values["behavior_logprobs"]).exp()
    expected = torch.where(MASK, -weight * ratio * values["advantages"] / 6, 0.0)
    torch.testing.assert_close(gradient(values, out), expected)


@pytest.mark.parametrize("name", CONFIGS)
def test_only_current_logprobs_and_entropy_receive_a_gradient(name: str) -> None:
    values = {key: value.requires_grad_() for key, value in tensors().items()}
    call(values, CONFIGS[name]).loss.backward()
    grads = {key for key, value in values.items() if value.grad is not None}
    assert grads == {"current_logprobs", *(["entropy"] if name == "regularized" else [])}
    assert values["current_logprobs"].grad is not None
    assert values["current_logprobs"].grad.abs().sum() > 0


@pytest.mark.parametrize("garbage", GARBAGE)
@pytest.mark.parametrize("name", CONFIGS)
def test_masked_positions_may_hold_anything(name: str, garbage: float) -> None:
    clean = tensors(torch.float32)
    soiled = {key: torch.where(MASK, value, garbage) for key, value in clean.items()}
    for values in (clean, soiled):
        values["current_logprobs"].requires_grad_()
        values["entropy"].requires_grad_()
    expected, out = call(clean, CONFIGS[name]), call(soiled, CONFIGS[name])
    assert torch.equal(out.loss, expected.loss)
    for key, value in expected.metrics.items():
        assert float(out.metrics[key]) == float(value), key
    expected.loss.backward()
    out.loss.backward()
    for key in ("current_logprobs", "entropy")[: 2 if name == "regularized" else 1]:
        wanted, grad = clean[key].grad, soiled[key].grad
        assert wanted is not None
        assert grad is not None
        assert torch.equal(grad, wanted)
        assert (grad[~MASK] == 0).all()


@pytest.mark.parametrize("garbage", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("position", NAMES)
@pytest.mark.parametrize("name", CONFIGS)
def test_an_unmasked_nan_or_infinity_stays_visible(
    name: str, position: str, garbage: float
) -> None:
    if position in NAMES[4:] and name != "regularized":
        return
    values = tensors(torch.float32)
    values[position][0, 1] = garbage
    values["current_logprobs"].requires_grad_()
    out = call(values, CONFIGS[name])
    assert not out.loss.isfinite()
    if position != "entropy":  # which has no part in this gradient
        assert not gradient(values, out).isfinite().all()


@pytest.mark.parametrize("position", NAMES[1:3])
@pytest.mark.parametrize("is_coupled", [False, True])
def test_a_nan_of_a_coupled_loss_stays_visible(position: str, is_coupled: bool) -> None:
    values = tensors(torch.float32)
    values[position][0, 1] = math.nan
    if is_coupled:
        del values["proximal_logprobs"]
    out = call(values, PolicyLossConfig())
    assert out.loss.isfinite() == (is_coupled and position == "proximal_logprobs")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("shift", [200.0, -200.0])
@pytest.mark.parametrize("position", [*NAMES[:3], "reference_logprobs"])
@pytest.mark.parametrize("name", CONFIGS)
def test_log_ratios_of_200_stay_finite_forward_and_backward(
    name: str, position: str, shift: float, dtype: torch.dtype
) -> None:
    values = tensors(dtype)
    values[position] = values[position] + shift
    values["current_logprobs"].requires_grad_()
    out = call(values, CONFIGS[name])
    assert out.loss.isfinite()
    assert all(math.isfinite(float(value)) for value in out.metrics.values())
    # float16 cannot hold a gradient of 1e8: the arithmetic is float32, its result is not.
    if dtype != torch.float16:
        assert gradient(values, out).isfinite().all()


@pytest.mark.parametrize("shape", [(2, 4), (0, 4), (2, 0), (0,), (5,)])
@pytest.mark.parametrize("name", CONFIGS)
def test_a_batch_without_trainable_tokens_gives_exactly_zero(
    name: str, shape: tuple[int, ...]
) -> None:
    values = {key: torch.full(shape, math.nan) for key in NAMES}
    values["current_logprobs"].requires_grad_()
    ids = torch.zeros(shape, dtype=torch.long)
    mask = torch.zeros(shape, dtype=torch.bool)
    out = policy_loss(PolicyBatch(**values, mask=mask, sequence_ids=ids), CONFIGS[name])
    assert str(out.loss.item()) == "0.0"
    assert torch.equal(gradient(values, out), torch.zeros(shape))
    assert out.denominator.item() == 0
    assert all(math.isfinite(float(value)) for value in out.metrics.values())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float64])
def test_the_gradient_has_the_dtype_and_shape_of_the_current_logprobs(dtype: torch.dtype) -> None:
    values = tensors(dtype)
    values["current_logprobs"].requires_grad_()
    out = call(values, PolicyLossConfig())
    grad = gradient(values, out)
    assert out.loss.dtype == torch.float64
    assert (grad.dtype, grad.shape) == (dtype, MASK.shape)


def test_non_contiguous_and_packed_tensors_give_the_same_loss() -> None:
    values = tensors()
    expected = call(values, PolicyLossConfig()).loss
    turned = {key: value.t().contiguous().t() for key, value in values.items()}
    packed = {key: value.reshape(-1) for key, value in values.items()}
    assert call(turned, PolicyLossConfig()).loss.item() == pytest.approx(expected.item())
    assert torch.equal(call(packed, PolicyLossConfig(), MASK.reshape(-1)).loss, expected)


def test_the_loss_scales_its_gradient_with_what_follows_it() -> None:
    values = tensors()
    values["current_logprobs"].requires_grad_()
    out = call(values, PolicyLossConfig())
    scaled = torch.autograd.grad(out.loss * 3, values["current_logprobs"])[0]
    torch.testing.assert_close(scaled, gradient(values, call(values, PolicyLossConfig())) * 3)
    with torch.no_grad():
        assert not call(values, PolicyLossConfig()).loss.requires_grad


@pytest.mark.parametrize("position", NAMES[:4])
def test_dtypes_may_differ_between_arguments(position: str) -> None:
    values = tensors(torch.float32)
    expected = call(values, PolicyLossConfig())
    values[position] = values[position].double()
    out = call(values, PolicyLossConfig())
    assert out.loss.item() == pytest.approx(expected.loss.item(), rel=1e-5)
