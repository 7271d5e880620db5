"""Log-probs from logits against torch's own log-softmax: values, gradients, memory, refusals."""

import math
from typing import Any

import pytest
import torch
from awrl_ppo_loss import (
    IGNORED_LABEL,
    ArgumentError,
    ArgumentTypeError,
    OptionError,
    logprobs_from_logits,
)
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode


class LargestFloat32(TorchDispatchMode):
    """Remembers the largest float32 tensor that any operation returned."""

    def __init__(self) -> None:
        super().__init__()
        self.numel = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> object:
        result = func(*args, **(kwargs or {}))
        for value in result if isinstance(result, tuple | list) else [result]:
            if isinstance(value, Tensor) and value.dtype == torch.float32:
                self.numel = max(self.numel, value.numel())
        return result


def naive(
    logits: Tensor, labels: Tensor, temperature: float, masked: list[int]
) -> tuple[Tensor, Tensor]:
    """Log-probs and entropy by the textbook, in float64, position by position."""
    logprobs, entropies = [], []
    for row, label in zip(
        logits.double().reshape(-1, logits.shape[-1]), labels.flatten().tolist(), strict=True
    ):
        kept = [i for i in range(len(row)) if i not in masked]
        if label == IGNORED_LABEL:
            logprobs.append(torch.zeros((), dtype=torch.float64))
            entropies.append(torch.zeros((), dtype=torch.float64))
            continue
        log_probs = (row[kept] / temperature).log_softmax(0)
        logprobs.append(log_probs[kept.index(label)])
        entropies.append(-(log_probs.exp() * log_probs).sum())
    return torch.stack(logprobs).reshape(labels.shape), torch.stack(entropies).reshape(labels.shape)


@given(
    seed=st.integers(0, 2**31),
    dtype=st.sampled_from([torch.float64, torch.float32, torch.bfloat16]),
    temperature=st.sampled_from([1.0, 0.6, 1.7]),
    masked=st.sampled_from([[], [1], [0, 4]]),
    with_ignored=st.booleans(),
    is_packed=st.booleans(),
)
@settings(max_examples=60, deadline=None)
def test_values_and_gradients_equal_the_textbook(
    seed: int,
    dtype: torch.dtype,
    temperature: float,
    masked: list[int],
    with_ignored: bool,
    is_packed: bool,
) -> None:
    generator = torch.Generator().manual_seed(seed)
    logits = (torch.randn(2, 3, 6, generator=generator, dtype=torch.float64) * 3).to(dtype)
    labels = torch.tensor([2, 3, 5])[torch.randint(0, 3, (2, 3), generator=generator)]
    if with_ignored:
        labels[1, 1] = IGNORED_LABEL
    if is_packed:
        logits, labels = logits.reshape(6, 6), labels.reshape(6)
    upstream = torch.randn(2, *labels.shape, generator=generator, dtype=torch.float64)
    exact = logits.double().clone().requires_grad_()
    expected = naive(exact, labels, temperature, masked)
    (expected[0] * upstream[0] + expected[1] * upstream[1]).sum().backward()

    leaf = logits.clone().requires_grad_()
    logprobs, entropy = logprobs_from_logits(
        leaf, labels, temperature=temperature, masked_token_ids=masked, with_entropy=True
    )
    (logprobs * upstream[0] + entropy * upstream[1]).sum().backward()
    tolerance = 1e-10 if dtype == torch.float64 else 1e-4
    assert logprobs.dtype == entropy.dtype
    assert logprobs.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
    torch.testing.assert_close(logprobs.double(), expected[0], rtol=tolerance, atol=tolerance)
    torch.testing.assert_close(entropy.double(), expected[1], rtol=tolerance, atol=tolerance)
    assert leaf.grad is not None
    grad_tolerance = 2e-2 if dtype == torch.bfloat16 else tolerance
    torch.testing.assert_close(
        leaf.grad.double(), exact.grad, rtol=grad_tolerance, atol=grad_tolerance
    )


@pytest.mark.parametrize("with_entropy", [False, True])
def test_gradcheck_holds_in_float64(with_entropy: bool) -> None:
    logits = torch.randn(3, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    labels = torch.tensor([4, IGNORED_LABEL, 0])

    def score(x: Tensor) -> Tensor:
        if not with_entropy:
            return logprobs_from_logits(x, labels, temperature=0.7, masked_token_ids=[2])
        logprobs, entropy = logprobs_from_logits(x, labels, temperature=0.7, with_entropy=True)
        return torch.cat((logprobs, entropy))

    assert torch.autograd.gradcheck(score, logits.requires_grad_())


def test_no_float32_copy_of_all_logits_exists_forward_or_backward(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("awrl_ppo_loss.scoring.BLOCK_ELEMENTS", 4 * 64)
    logits = torch.randn(32, 64, generator=torch.Generator().manual_seed(2))
    low = logits.bfloat16().requires_grad_()
    labels = torch.arange(32)
    with LargestFloat32() as largest:
        logprobs_from_logits(low, labels, temperature=0.5, masked_token_ids=[63]).sum().backward()
    assert 0 < largest.numel <= 4 * 64
    blocks = low.grad
    monkeypatch.undo()
    low.grad = None
    logprobs_from_logits(low, labels, temperature=0.5, masked_token_ids=[63]).sum().backward()
    assert blocks is not None
    assert low.grad is not None
    assert torch.equal(blocks, low.grad)


def test_ignored_positions_are_never_looked_at() -> None:
    logits = torch.tensor([[0.0, 1.0], [math.nan, math.inf]], requires_grad=True)
    labels = torch.tensor([1, IGNORED_LABEL])
    logprobs, entropy = logprobs_from_logits(logits, labels, with_entropy=True)
    (logprobs + entropy).sum().backward()
    assert logprobs[1].item() == entropy[1].item() == 0.0
    assert logits.grad is not None
    assert logits.grad[1].tolist() == [0.0, 0.0]
    assert logits.grad[0].isfinite().all()


def test_all_positions_ignored_gives_zeros() -> None:
    logits = torch.randn(2, 3, 4, requires_grad=True)
    logprobs = logprobs_from_logits(logits, torch.full((2, 3), IGNORED_LABEL))
    logprobs.sum().backward()
    assert torch.equal(logprobs, torch.zeros(2, 3))
    assert logits.grad is not None
    assert torch.equal(logits.grad, torch.zeros(2, 3, 4))


def test_masked_ids_leave_the_softmax_and_get_no_gradient() -> None:
    logits = torch.tensor([[1.0, 50.0, 2.0]], requires_grad=True)
    logprobs, entropy = logprobs_from_logits(
        logits, torch.tensor([0]), masked_token_ids=torch.tensor([1]), with_entropy=True
    )
    assert logprobs.item() == pytest.approx(1 - math.log(math.e + math.e**2))
    (logprobs + entropy).sum().backward()
    assert logits.grad is not None
    assert logits.grad[0, 1].item() == 0.0
    assert logits.grad.isfinite().all()


def test_a_label_that_the_sampler_could_not_emit_has_probability_zero() -> None:
    logprobs = logprobs_from_logits(torch.zeros(1, 3), torch.tensor([1]), masked_token_ids=[1])
    assert logprobs.item() == -math.inf


def test_near_certainty_the_gradient_keeps_its_relative_precision() -> None:
    logits = torch.tensor([[12.0, 0.0]], dtype=torch.bfloat16, requires_grad=True)
    logprobs_from_logits(logits, torch.tensor([0])).sum().backward()
    expected = 1 - 1 / (1 + math.exp(-12))
    assert logits.grad is not None
    assert logits.grad[0].tolist() == pytest.approx([expected, -expected], rel=1e-2)


def test_huge_logits_stay_finite() -> None:
    logits = torch.tensor([[1e30, -1e30, 0.0]], requires_grad=True)
    logprobs, entropy = logprobs_from_logits(logits, torch.tensor([0]), with_entropy=True)
    (logprobs + entropy).sum().backward()
    assert (logprobs.item(), entropy.item()) == (0.0, 0.0)
    assert logits.grad is not None
    assert logits.grad.isfinite().all()


@pytest.mark.parametrize(
    ("logits", "labels", "options", "error", "message"),
    [
        (torch.zeros(2, 3), torch.zeros(3).long(), {}, ArgumentError, r"labels must be of shape"),
        (torch.zeros(2, 3), torch.zeros(2), {}, ArgumentTypeError, "labels must be a tensor of an"),
        (torch.zeros(2, 3).long(), torch.zeros(2).long(), {}, ArgumentTypeError, "logits must be"),
        (torch.zeros(3), torch.tensor(0), {}, ArgumentError, "logits must be of shape"),
        (torch.zeros(1, 3), torch.tensor([3]), {}, ArgumentError, r"labels must be in \[0, 3\)"),
        (torch.zeros(1, 3), torch.tensor([-1]), {}, ArgumentError, "got -1"),
        (
            torch.zeros(1, 3),
            torch.tensor([0]),
            {"masked_token_ids": [7]},
            ArgumentError,
            r"masked_token_ids must be in \[0, 3\), got 7",
        ),
        (
            torch.zeros(1, 2),
            torch.tensor([0]),
            {"masked_token_ids": [0, 1]},
            ArgumentError,
            "masked_token_ids must leave a token to sample, got all 2 ids",
        ),
        (
            torch.zeros(1, 3),
            torch.tensor([0]),
            {"masked_token_ids": torch.zeros(1)},
            ArgumentTypeError,
            "masked_token_ids must be a tensor of an integer dtype",
        ),
        (
            torch.zeros(1, 3),
            torch.tensor([0]),
            {"temperature": 0.0},
            OptionError,
            r"temperature must be a finite number > 0, got 0\.0",
        ),
    ],
)
def test_wrong_arguments_are_named(
    logits: Tensor, labels: Tensor, options: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        logprobs_from_logits(logits, labels, **options)
