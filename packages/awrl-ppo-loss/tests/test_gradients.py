"""Where gradients flow, where they must not, and what masked or broken positions do to them."""

import math
from collections.abc import Callable

import pytest
import torch
from awrl_ppo_loss import (
    LossOutput,
    cispo_loss,
    decoupled_ppo_loss,
    gspo_loss,
    kl_loss,
    masked_is_loss,
    ppo_loss,
    truncated_is_loss,
)
from torch import Tensor

WITH_PROXIMAL: list[Callable[..., LossOutput]] = [
    decoupled_ppo_loss,
    truncated_is_loss,
    masked_is_loss,
    gspo_loss,
    cispo_loss,
]
GARBAGE = [math.nan, math.inf, -math.inf, 1e38, -200.0]
MASK = torch.tensor([[True, True, False, True], [False, True, True, True]])


def batch(dtype: torch.dtype = torch.float64, spread: float = 0.2) -> list[Tensor]:
    """Current, proximal and behavior log-probs, advantages."""
    generator = torch.Generator().manual_seed(7)

    def normal(scale: float) -> Tensor:
        return (torch.randn(2, 4, generator=generator, dtype=torch.float64) * scale).to(dtype)

    proximal = normal(1.0) - 2
    return [proximal + normal(spread), proximal, proximal + normal(spread), normal(1.0)]


def call(loss: Callable[..., LossOutput], tensors: list[Tensor], mask: Tensor) -> LossOutput:
    """Call a loss with current, proximal, behavior, advantages, of which `ppo_loss` takes three."""
    chosen = [tensors[0], *tensors[2:]] if loss is ppo_loss else tensors
    return loss(*chosen, mask)


@pytest.mark.parametrize(
    "loss", [ppo_loss, decoupled_ppo_loss, truncated_is_loss, masked_is_loss, gspo_loss]
)
@pytest.mark.parametrize("aggregation", ["token_mean", "sequence_mean"])
def test_gradcheck_holds_in_float64(loss: Callable[..., LossOutput], aggregation: str) -> None:
    tensors = batch()

    def value(current: Tensor) -> Tensor:
        rest = tensors[2:] if loss is ppo_loss else tensors[1:]
        return loss(current, *rest, MASK, aggregation=aggregation, dual_clip=1.5).loss

    assert torch.autograd.gradcheck(value, tensors[0].requires_grad_())


def test_the_cispo_gradient_is_its_coefficient_over_the_denominator() -> None:
    current, proximal, behavior, advantages = batch()
    current.requires_grad_()
    cispo_loss(current, proximal, behavior, advantages, MASK, clip_high=0.1).loss.backward()
    ratio = (current.detach() - proximal).exp().clamp(max=1.1)
    expected = torch.where(MASK, -(proximal - behavior).exp() * ratio * advantages / 6, 0.0)
    torch.testing.assert_close(current.grad, expected)


@pytest.mark.parametrize("loss", WITH_PROXIMAL)
def test_only_the_current_logprobs_receive_a_gradient(loss: Callable[..., LossOutput]) -> None:
    tensors = [value.requires_grad_() for value in batch()]
    loss(*tensors, MASK).loss.backward()
    assert tensors[0].grad is not None
    assert tensors[0].grad.abs().sum() > 0
    assert [value.grad for value in tensors[1:]] == [None, None, None]


@pytest.mark.parametrize("garbage", GARBAGE)
@pytest.mark.parametrize("loss", [ppo_loss, *WITH_PROXIMAL])
def test_masked_positions_may_hold_anything(
    loss: Callable[..., LossOutput], garbage: float
) -> None:
    clean = batch(torch.float32)
    soiled = [torch.where(MASK, value, garbage) for value in clean]
    clean[0].requires_grad_()
    soiled[0].requires_grad_()
    expected, out = call(loss, clean, MASK), call(loss, soiled, MASK)
    expected.loss.backward()
    out.loss.backward()
    assert torch.equal(out.loss, expected.loss)
    assert clean[0].grad is not None
    assert soiled[0].grad is not None
    assert torch.equal(soiled[0].grad, clean[0].grad)
    assert (soiled[0].grad[~MASK] == 0).all()
    for key, value in expected.metrics.items():
        assert float(out.metrics[key]) == float(value), key


@pytest.mark.parametrize("garbage", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize(
    ("loss", "argument"),
    [(ppo_loss, 0), (ppo_loss, 2), (ppo_loss, 3)]
    + [(loss, argument) for loss in WITH_PROXIMAL for argument in range(4)],
)
def test_an_unmasked_nan_or_infinity_stays_visible(
    loss: Callable[..., LossOutput], argument: int, garbage: float
) -> None:
    tensors = batch(torch.float32)
    tensors[argument][0, 1] = garbage
    tensors[0].requires_grad_()
    out = call(loss, tensors, MASK)
    out.loss.backward()
    assert not out.loss.isfinite()
    assert tensors[0].grad is not None
    assert not tensors[0].grad.isfinite().all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("shift", [200.0, -200.0])
@pytest.mark.parametrize("argument", [0, 1, 2])
@pytest.mark.parametrize("loss", [ppo_loss, *WITH_PROXIMAL])
def test_log_ratios_of_200_stay_finite_forward_and_backward(
    loss: Callable[..., LossOutput], argument: int, shift: float, dtype: torch.dtype
) -> None:
    tensors = batch(dtype)
    tensors[argument] = tensors[argument] + shift
    tensors[0].requires_grad_()
    out = call(loss, tensors, MASK)
    out.loss.backward()
    assert out.loss.isfinite()
    assert all(math.isfinite(float(value)) for value in out.metrics.values())
    # float16 cannot hold a gradient of 1e8: the arithmetic is float32, its result is not.
    if dtype != torch.float16:
        assert tensors[0].grad is not None
        assert tensors[0].grad.isfinite().all()


@pytest.mark.parametrize("shape", [(2, 4), (0, 4), (2, 0), (0,), (5,)])
@pytest.mark.parametrize("loss", [ppo_loss, decoupled_ppo_loss, truncated_is_loss, cispo_loss])
def test_a_batch_without_trainable_tokens_gives_exactly_zero(
    loss: Callable[..., LossOutput], shape: tuple[int, ...]
) -> None:
    tensors = [torch.full(shape, math.nan) for _ in range(4)]
    tensors[0].requires_grad_()
    out = call(loss, tensors, torch.zeros(shape, dtype=torch.bool))
    out.loss.backward()
    assert str(out.loss.item()) == "0.0"
    assert tensors[0].grad is not None
    assert torch.equal(tensors[0].grad, torch.zeros(shape))
    assert out.denominator.item() == 0
    assert all(math.isfinite(float(value)) for value in out.metrics.values())


@pytest.mark.parametrize("loss", [gspo_loss, kl_loss])
def test_sequence_losses_without_trainable_tokens_give_exactly_zero(
    loss: Callable[..., LossOutput],
) -> None:
    tensors = [torch.full((2, 3), math.nan) for _ in range(2 if loss is kl_loss else 4)]
    tensors[0].requires_grad_()
    out = loss(*tensors, torch.zeros(2, 3, dtype=torch.bool), aggregation="sequence_mean")
    out.loss.backward()
    assert out.loss.item() == 0.0
    assert torch.equal(tensors[0].grad, torch.zeros(2, 3))  # type: ignore[arg-type]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float64])
def test_the_gradient_has_the_dtype_and_shape_of_the_current_logprobs(dtype: torch.dtype) -> None:
    tensors = batch(dtype)
    tensors[0].requires_grad_()
    out = call(decoupled_ppo_loss, tensors, MASK)
    out.loss.backward()
    assert out.loss.dtype == torch.float64
    assert tensors[0].grad is not None
    assert (tensors[0].grad.dtype, tensors[0].grad.shape) == (dtype, tensors[0].shape)


def test_non_contiguous_and_packed_tensors_give_the_same_loss() -> None:
    tensors = batch()
    expected = call(decoupled_ppo_loss, tensors, MASK).loss
    turned = [value.t().contiguous().t() for value in tensors]
    packed = [value.reshape(-1) for value in tensors]
    assert call(decoupled_ppo_loss, turned, MASK).loss.item() == pytest.approx(expected.item())
    assert torch.equal(call(decoupled_ppo_loss, packed, MASK.reshape(-1)).loss, expected)


def test_the_loss_scales_its_gradient_with_what_follows_it() -> None:
    tensors = batch()
    tensors[0].requires_grad_()
    (grad,) = torch.autograd.grad(call(decoupled_ppo_loss, tensors, MASK).loss, tensors[0])
    (scaled,) = torch.autograd.grad(call(decoupled_ppo_loss, tensors, MASK).loss * 3, tensors[0])
    torch.testing.assert_close(scaled, grad * 3)
    with torch.no_grad():
        assert not call(decoupled_ppo_loss, tensors, MASK).loss.requires_grad


@pytest.mark.parametrize("position", range(4))
def test_dtypes_may_differ_between_arguments(position: int) -> None:
    tensors = batch(torch.float32)
    expected = call(decoupled_ppo_loss, tensors, MASK)
    tensors[position] = tensors[position].double()
    out = call(decoupled_ppo_loss, tensors, MASK)
    assert out.loss.item() == pytest.approx(expected.loss.item(), rel=1e-5)
