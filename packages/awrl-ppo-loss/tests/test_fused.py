"""The fused path equals logits and log-softmax, in value, gradient and refusals, in less memory."""

import math
from typing import Any

import pytest
import torch
from awrl_ppo_loss import (
    IGNORED_LABEL,
    ArgumentError,
    ArgumentTypeError,
    OptionError,
    decoupled_ppo_loss,
    logprobs_from_hidden,
    logprobs_from_logits,
)
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

D, V = 4, 7


class LargestWithVocabulary(TorchDispatchMode):
    """Remembers the most rows of a `[rows, V]` tensor that any operation returned."""

    def __init__(self, vocabulary_size: int) -> None:
        super().__init__()
        self.vocabulary_size = vocabulary_size
        self.rows: dict[torch.dtype, int] = {}

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> object:
        result = func(*args, **(kwargs or {}))
        for value in result if isinstance(result, tuple | list) else [result]:
            if isinstance(value, Tensor) and value.shape[-1:] == (self.vocabulary_size,):
                rows = value.numel() // self.vocabulary_size
                self.rows[value.dtype] = max(self.rows.get(value.dtype, 0), rows)
        return result


def head(seed: int, dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor, Tensor]:
    """Hidden states `[2, 3, D]`, weight `[V, D]` and bias `[V]`."""
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype)

    return normal(2, 3, D), normal(V, D), normal(V)


@given(
    seed=st.integers(0, 2**31),
    dtype=st.sampled_from([torch.float64, torch.float32]),
    chunk_tokens=st.sampled_from([1, 2, 4, 100]),
    temperature=st.sampled_from([1.0, 0.5]),
    masked=st.sampled_from([None, [6], [5, 6]]),
    with_bias=st.booleans(),
    with_ignored=st.booleans(),
)
@settings(max_examples=60, deadline=None)
def test_values_and_gradients_equal_the_unfused_path(
    seed: int,
    dtype: torch.dtype,
    chunk_tokens: int,
    temperature: float,
    masked: list[int] | None,
    with_bias: bool,
    with_ignored: bool,
) -> None:
    labels = torch.tensor([[0, 1, 2], [3, 4, 0]])
    if with_ignored:
        labels[0, 1:] = IGNORED_LABEL
    upstream = torch.randn(2, 2, 3, generator=torch.Generator().manual_seed(seed))
    grads: list[list[Tensor | None]] = []
    values: list[Tensor] = []
    for is_fused in (False, True):
        hidden, weight, bias = (value.requires_grad_() for value in head(seed, dtype))
        used_bias = bias if with_bias else None
        if is_fused:
            logprobs, entropy = logprobs_from_hidden(
                hidden,
                weight,
                labels,
                bias=used_bias,
                temperature=temperature,
                masked_token_ids=masked,
                with_entropy=True,
                chunk_tokens=chunk_tokens,
            )
        else:
            logprobs, entropy = logprobs_from_logits(
                torch.nn.functional.linear(hidden, weight, used_bias),
                labels,
                temperature=temperature,
                masked_token_ids=masked,
                with_entropy=True,
            )
        (logprobs * upstream[0] + entropy * upstream[1]).sum().backward()
        grads.append([hidden.grad, weight.grad, used_bias.grad if used_bias is not None else None])
        values += [logprobs, entropy]
    tolerance = 1e-10 if dtype == torch.float64 else 2e-4
    for expected, actual in ((values[0], values[2]), (values[1], values[3])):
        torch.testing.assert_close(actual, expected, rtol=tolerance, atol=tolerance)
    for expected_grad, grad in zip(*grads, strict=True):
        torch.testing.assert_close(grad, expected_grad, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("with_entropy", [False, True])
def test_gradcheck_holds_in_float64(with_entropy: bool) -> None:
    labels = torch.tensor([[0, 1, IGNORED_LABEL], [3, 4, 5]])

    def score(hidden: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        logprobs, entropy = logprobs_from_hidden(
            hidden,
            weight,
            labels,
            bias=bias,
            temperature=0.8,
            masked_token_ids=[6],
            with_entropy=True,
            chunk_tokens=2,
        )
        return logprobs + entropy if with_entropy else logprobs

    assert torch.autograd.gradcheck(score, [value.requires_grad_() for value in head(5)])


def test_a_frozen_head_or_frozen_states_get_no_gradient() -> None:
    labels = torch.zeros(2, 3, dtype=torch.long)
    for frozen in range(2):
        tensors = list(head(1))[:2]
        tensors[1 - frozen].requires_grad_()
        logprobs_from_hidden(tensors[0], tensors[1], labels, chunk_tokens=2).sum().backward()
        assert tensors[frozen].grad is None
        assert tensors[1 - frozen].grad is not None


def test_logits_of_one_chunk_exist_at_a_time_and_float32_of_one_block(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("awrl_ppo_loss.scoring.BLOCK_ELEMENTS", 2 * 50)
    generator = torch.Generator().manual_seed(0)
    hidden = torch.randn(40, D, generator=generator).bfloat16().requires_grad_()
    weight = torch.randn(50, D, generator=generator).bfloat16().requires_grad_()
    labels = torch.arange(40)
    with LargestWithVocabulary(50) as largest:
        logprobs_from_hidden(
            hidden, weight, labels, temperature=0.7, masked_token_ids=[49], chunk_tokens=8
        ).sum().backward()
    assert largest.rows[torch.bfloat16] == 8
    assert largest.rows[torch.float32] == 2


def test_bfloat16_stays_within_the_rounding_of_the_unfused_path() -> None:
    generator = torch.Generator().manual_seed(3)
    hidden = torch.randn(64, 32, generator=generator)
    weight = torch.randn(128, 32, generator=generator) * 0.2
    labels = torch.randint(0, 128, (64,), generator=generator)
    upstream = torch.randn(64, generator=generator)
    exact = [hidden.bfloat16().double().requires_grad_(), weight.bfloat16().double()]
    exact[1].requires_grad_()
    reference = logprobs_from_logits(exact[0] @ exact[1].t(), labels)
    (reference * upstream).sum().backward()
    errors: dict[bool, list[float]] = {}
    for is_fused in (False, True):
        low = [hidden.bfloat16().requires_grad_(), weight.bfloat16().requires_grad_()]
        if is_fused:
            logprobs = logprobs_from_hidden(low[0], low[1], labels, chunk_tokens=8)
        else:
            logprobs = logprobs_from_logits(low[0] @ low[1].t(), labels)
        (logprobs * upstream).sum().backward()
        errors[is_fused] = [(logprobs.double() - reference).abs().max().item()]
        for leaf, target in zip(low, exact, strict=True):
            assert leaf.grad is not None
            assert target.grad is not None
            errors[is_fused].append((leaf.grad.double() - target.grad).norm().item())
    # Eight partial sums of dW in bfloat16 may cost a little more than one product.
    for fused_error, naive_error in zip(errors[True], errors[False], strict=True):
        assert fused_error <= 2.5 * naive_error


def test_a_head_gradient_summed_in_float32_does_not_lose_precision_with_more_chunks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("awrl_ppo_loss.fused.BLOCK_ELEMENTS", 40 * 32)
    generator = torch.Generator().manual_seed(3)
    hidden = torch.randn(1024, 32, generator=generator).bfloat16()
    head = (torch.randn(64, 32, generator=generator) * 0.2).bfloat16(), torch.zeros(64).bfloat16()
    labels = torch.randint(0, 64, (1024,), generator=generator)

    def gradients(dtype: torch.dtype, **options: Any) -> list[Tensor]:
        weight, bias = (value.to(dtype, copy=True).requires_grad_() for value in head)
        states = hidden.to(dtype)
        logprobs_from_hidden(states, weight, labels, bias=bias, **options).sum().backward()
        grads = [leaf.grad for leaf in (weight, bias) if leaf.grad is not None]
        assert [grad.dtype for grad in grads] == [dtype, dtype]
        return [grad.double() for grad in grads]

    exact = gradients(torch.float64)

    def errors(**options: Any) -> list[float]:
        pairs = zip(gradients(torch.bfloat16, **options), exact, strict=True)
        return [((mine - theirs).norm() / theirs.norm()).item() for mine, theirs in pairs]

    one_chunk = errors(chunk_tokens=1024)
    many_chunks = errors(chunk_tokens=8)
    in_float32 = errors(chunk_tokens=8, accumulation_dtype=torch.float32)
    for one, many, wide in zip(one_chunk, many_chunks, in_float32, strict=True):
        assert wide <= 1.5 * one
        assert many >= 3 * wide


def test_ignored_positions_may_hold_nan_and_cost_nothing() -> None:
    hidden, weight = (value[..., :2].clone() for value in head(4)[:2])
    hidden[0, 1] = math.nan
    labels = torch.tensor([[1, IGNORED_LABEL, 2], [IGNORED_LABEL, IGNORED_LABEL, 3]])
    hidden.requires_grad_()
    weight.requires_grad_()
    with LargestWithVocabulary(V) as largest:
        logprobs_from_hidden(hidden, weight, labels).sum().backward()
    assert largest.rows[torch.float64] == 3
    assert hidden.grad is not None
    assert weight.grad is not None
    assert weight.grad.isfinite().all()
    assert hidden.grad[0, 1].tolist() == [0.0, 0.0]
    nothing = logprobs_from_hidden(hidden, weight, torch.full((2, 3), IGNORED_LABEL))
    nothing.sum().backward()
    assert torch.equal(nothing, torch.zeros(2, 3, dtype=torch.float64))


def test_it_feeds_the_loss_and_trains_the_head() -> None:
    hidden, weight, _ = head(6, torch.float32)
    weight.requires_grad_()
    labels = torch.tensor([[1, 2, 3], [4, 5, IGNORED_LABEL]])
    mask = labels != IGNORED_LABEL
    with torch.no_grad():
        behavior = logprobs_from_hidden(hidden, weight, labels)
    advantages = torch.ones(2, 3)
    optimizer = torch.optim.SGD([weight], lr=0.5)
    for _ in range(3):
        current = logprobs_from_hidden(hidden, weight, labels)
        optimizer.zero_grad()
        loss = decoupled_ppo_loss(current, behavior, behavior, advantages, mask, clip_high=10.0)
        loss.loss.backward()
        optimizer.step()
    after = logprobs_from_hidden(hidden, weight, labels)
    assert after[mask].mean() > behavior[mask].mean()


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="compiling is for a CUDA device")
def test_compiled_kernels_give_the_same_values_and_gradients() -> None:
    labels = torch.tensor([[0, 1, 2], [3, IGNORED_LABEL, 5]], device="cuda")
    results: list[list[Tensor]] = []
    for use_compile in (False, True):
        hidden, weight, bias = (value.cuda().requires_grad_() for value in head(8, torch.float32))
        logprobs, entropy = logprobs_from_hidden(
            hidden,
            weight,
            labels,
            bias=bias,
            temperature=0.9,
            masked_token_ids=[6],
            with_entropy=True,
            chunk_tokens=2,
            use_compile=use_compile,
        )
        (logprobs + 0.1 * entropy).sum().backward()
        plain = logprobs_from_hidden(
            hidden, weight, labels, chunk_tokens=2, use_compile=use_compile
        )
        (grad,) = torch.autograd.grad(plain.sum(), weight)
        leaves = (hidden, weight, bias)
        grads = [leaf.grad for leaf in leaves if leaf.grad is not None]
        results.append([logprobs, entropy, *grads, plain, grad])
    for expected, actual in zip(*results, strict=True):
        torch.testing.assert_close(actual, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"weight": torch.zeros(V, D + 1)}, ArgumentError, rf"weight must be of shape \[V, {D}\]"),
        ({"weight": torch.zeros(V, D).half()}, ArgumentTypeError, "weight must be of the dtype of"),
        ({"bias": torch.zeros(V + 1)}, ArgumentError, rf"bias must be of shape \[{V}\]"),
        ({"bias": torch.zeros(V).half()}, ArgumentTypeError, "bias must be of the dtype of hidden"),
        ({"weight": torch.zeros(V, D, device="meta")}, ArgumentError, "weight must be on the"),
        ({"hidden": torch.zeros(2, 3, D).long()}, ArgumentTypeError, "hidden must be a tensor of"),
        ({"labels": torch.full((2, 3), V)}, ArgumentError, rf"labels must be in \[0, {V}\), got 7"),
        ({"labels": torch.zeros(2).long()}, ArgumentError, r"labels must be of shape \[2, 3\]"),
        (
            {"accumulation_dtype": torch.half},
            OptionError,
            "accumulation_dtype must hold the weight",
        ),
        ({"chunk_tokens": 0}, OptionError, "chunk_tokens must be an integer >= 1, got 0"),
        ({"temperature": -1}, OptionError, "temperature must be a finite number > 0, got -1"),
    ],
)
def test_wrong_arguments_are_named(
    changes: dict[str, Any], error: type[Exception], message: str
) -> None:
    arguments: dict[str, Any] = {
        "hidden": torch.zeros(2, 3, D),
        "weight": torch.zeros(V, D),
        "labels": torch.zeros(2, 3, dtype=torch.long),
    }
    with pytest.raises(error, match=message):
        logprobs_from_hidden(**{**arguments, **changes})


def test_autocast_changes_nothing() -> None:
    hidden, weight, _ = head(9, torch.float32)
    labels = torch.zeros(2, 3, dtype=torch.long)
    expected = logprobs_from_hidden(hidden, weight, labels)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(logprobs_from_hidden(hidden, weight, labels), expected)
