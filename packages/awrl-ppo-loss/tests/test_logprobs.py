"""Log-probs from hidden states against the textbook: values, gradients, memory, refusals."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from awrl_ppo_loss import PolicyBatch, PPOLossError, logprobs_from_hidden, policy_loss
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

D, V = 4, 7


class MostRows(TorchDispatchMode):
    """Remembers the most rows of a `[rows, V]` tensor that any operation returned, by dtype."""

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


def linear(seed: int, dtype: torch.dtype = torch.float64, *, bias: bool = True) -> nn.Linear:
    generator = torch.Generator().manual_seed(seed)
    head = nn.Linear(D, V, bias=bias, dtype=dtype)
    with torch.no_grad():
        for parameter in head.parameters():
            values = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
            parameter.copy_(values)
    return head


def states(seed: int, dtype: torch.dtype = torch.float64) -> Tensor:
    generator = torch.Generator().manual_seed(seed + 1)
    return torch.randn(2, 3, D, generator=generator, dtype=torch.float64).to(dtype)


def naive(
    logits: Tensor, labels: Tensor, temperature: float, masked: list[int]
) -> tuple[Tensor, Tensor]:
    """Log-probs and entropy by the textbook, in float64, position by position."""
    logprobs, entropies = [], []
    for row, label in zip(
        logits.double().reshape(-1, logits.shape[-1]), labels.flatten().tolist(), strict=True
    ):
        kept = [i for i in range(len(row)) if i not in masked]
        log_probs = (row[kept] / temperature).log_softmax(0)
        logprobs.append(log_probs[kept.index(label)])
        entropies.append(-(log_probs.exp() * log_probs).sum())
    return torch.stack(logprobs).reshape(labels.shape), torch.stack(entropies).reshape(labels.shape)


@given(
    seed=st.integers(0, 2**31),
    dtype=st.sampled_from([torch.float64, torch.float32, torch.bfloat16]),
    chunk_tokens=st.sampled_from([1, 2, 4, 100]),
    temperature=st.sampled_from([1.0, 0.6, 1.7]),
    masked=st.sampled_from([[], [6], [5, 6]]),
    with_bias=st.booleans(),
    uses=st.sampled_from(["logprobs", "entropy", "both"]),
)
@settings(max_examples=80, deadline=None)
def test_values_and_gradients_equal_the_textbook(
    seed: int,
    dtype: torch.dtype,
    chunk_tokens: int,
    temperature: float,
    masked: list[int],
    with_bias: bool,
    uses: str,
) -> None:
    labels = torch.tensor([[0, 1, 2], [3, 4, 0]])
    upstream = torch.randn(2, 2, 3, generator=torch.Generator().manual_seed(seed)).double()
    head = linear(seed, dtype, bias=with_bias)
    hidden = states(seed, dtype).requires_grad_()
    scores = logprobs_from_hidden(
        hidden,
        head,
        labels,
        temperature=temperature,
        masked_token_ids=masked,
        chunk_tokens=chunk_tokens,
    )
    exact_head = linear(seed, torch.float64, bias=with_bias)
    exact_head.load_state_dict(head.state_dict())
    exact = hidden.detach().double().requires_grad_()
    expected = naive(exact_head(exact), labels, temperature, masked)

    def total(pair: tuple[Tensor, Tensor]) -> Tensor:
        terms = {"logprobs": pair[0] * upstream[0], "entropy": pair[1] * upstream[1]}
        return sum((terms[key] for key in terms if uses in (key, "both")), torch.zeros(())).sum()

    total(expected).backward()
    total(scores).backward()
    tolerance = {torch.float64: 1e-10, torch.float32: 2e-4, torch.bfloat16: 0.1}[dtype]
    assert {value.dtype for value in scores} == {
        torch.float64 if dtype == torch.float64 else torch.float32
    }
    for actual, wanted in zip(scores, expected, strict=True):
        torch.testing.assert_close(actual.double(), wanted, rtol=tolerance, atol=tolerance)
    leaves = zip([hidden, *head.parameters()], [exact, *exact_head.parameters()], strict=True)
    for leaf, wanted in leaves:
        assert leaf.grad is not None
        assert wanted.grad is not None
        torch.testing.assert_close(
            leaf.grad.double(), wanted.grad, rtol=2 * tolerance, atol=2 * tolerance
        )


@pytest.mark.parametrize("part", [0, 1])
def test_gradcheck_holds_in_float64(part: int) -> None:
    head, labels = linear(5), torch.tensor([[0, 1, 2], [3, 4, 5]])

    def score(hidden: Tensor, *_: Tensor) -> Tensor:
        return logprobs_from_hidden(
            hidden, head, labels, temperature=0.8, masked_token_ids=[6], chunk_tokens=4
        )[part]

    leaves = [states(5).requires_grad_(), *head.parameters()]
    assert torch.autograd.gradcheck(score, leaves)


def test_a_head_may_be_any_module_even_none_at_all() -> None:
    class Capped(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = linear(2)

        def forward(self, hidden: Tensor) -> Tensor:
            return 3 * torch.tanh(self.linear(hidden) / 3)

    head, hidden = Capped(), states(2).requires_grad_()
    labels = torch.tensor([[0, 1, 2], [3, 4, 5]])
    wanted = naive(head(hidden), labels, 1.0, [])
    grads = torch.autograd.grad(sum(wanted).sum(), [hidden, *head.parameters()])  # type: ignore[union-attr]
    scores = logprobs_from_hidden(hidden, head, labels, chunk_tokens=2)
    actual = torch.autograd.grad(sum(scores).sum(), [hidden, *head.parameters()])  # type: ignore[union-attr]
    torch.testing.assert_close(actual, grads)
    logits = head(hidden).detach()
    from_logits = logprobs_from_hidden(logits, nn.Identity(), labels)
    torch.testing.assert_close(from_logits.logprobs, wanted[0].detach())


def test_a_frozen_head_or_frozen_states_get_no_gradient() -> None:
    labels = torch.zeros(2, 3, dtype=torch.long)
    hidden, head = states(1), linear(1)
    logprobs_from_hidden(hidden, head, labels, chunk_tokens=2).logprobs.sum().backward()
    assert hidden.grad is None
    assert head.weight.grad is not None
    head.zero_grad()
    head.requires_grad_(False)
    hidden.requires_grad_()
    logprobs_from_hidden(hidden, head, labels, chunk_tokens=2).logprobs.sum().backward()
    assert hidden.grad is not None
    assert head.weight.grad is None


def test_logits_of_one_chunk_exist_at_a_time_and_float32_of_one_block(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("awrl_ppo_loss.logprobs.BLOCK_ELEMENTS", 2 * 50)
    generator = torch.Generator().manual_seed(0)
    hidden = torch.randn(40, D, generator=generator).bfloat16().requires_grad_()
    head = nn.Linear(D, 50, bias=False, dtype=torch.bfloat16)
    with MostRows(50) as most:
        scores = logprobs_from_hidden(
            hidden, head, torch.arange(40), temperature=0.7, masked_token_ids=[49], chunk_tokens=8
        )
        (scores.logprobs + scores.entropy).sum().backward()
    assert most.rows[torch.bfloat16] == 8
    assert most.rows[torch.float32] == 2


def test_a_head_gradient_does_not_lose_precision_with_more_chunks() -> None:
    generator = torch.Generator().manual_seed(3)
    hidden = torch.randn(1024, 32, generator=generator).bfloat16()
    weight = (torch.randn(64, 32, generator=generator) * 0.2).bfloat16()
    labels = torch.randint(0, 64, (1024,), generator=generator)

    def gradients(dtype: torch.dtype, chunk_tokens: int) -> list[Tensor]:
        head = nn.Linear(32, 64, dtype=dtype)
        with torch.no_grad():
            head.weight.copy_(weight)
            head.bias.zero_()
        scores = logprobs_from_hidden(hidden.to(dtype), head, labels, chunk_tokens=chunk_tokens)
        scores.logprobs.sum().backward()
        grads = [leaf.grad for leaf in head.parameters() if leaf.grad is not None]
        assert [grad.dtype for grad in grads] == [dtype, dtype]
        return [grad.double() for grad in grads]

    exact = gradients(torch.float64, 1024)

    def errors(chunk_tokens: int) -> list[float]:
        pairs = zip(gradients(torch.bfloat16, chunk_tokens), exact, strict=True)
        return [((mine - theirs).norm() / theirs.norm()).item() for mine, theirs in pairs]

    for one, many in zip(errors(1024), errors(4), strict=True):
        assert many <= 1.5 * one
        assert many < 5e-3


def test_masked_ids_leave_the_softmax_and_get_no_gradient() -> None:
    logits = torch.tensor([[1.0, 50.0, 2.0]], requires_grad=True)
    scores = logprobs_from_hidden(logits, nn.Identity(), torch.tensor([0]), masked_token_ids=[1])
    assert scores.logprobs.item() == pytest.approx(1 - math.log(math.e + math.e**2))
    (scores.logprobs + scores.entropy).sum().backward()
    assert logits.grad is not None
    assert logits.grad[0, 1].item() == 0.0
    assert logits.grad.isfinite().all()


def test_a_label_that_the_sampler_could_not_emit_has_probability_zero() -> None:
    scores = logprobs_from_hidden(
        torch.zeros(1, 3), nn.Identity(), torch.tensor([1]), masked_token_ids=[1]
    )
    assert scores.logprobs.item() == -math.inf


def test_near_certainty_the_gradient_keeps_its_relative_precision() -> None:
    logits = torch.tensor([[12.0, 0.0]], dtype=torch.bfloat16, requires_grad=True)
    logprobs_from_hidden(logits, nn.Identity(), torch.tensor([0])).logprobs.sum().backward()
    expected = 1 - 1 / (1 + math.exp(-12))
    assert logits.grad is not None
    assert logits.grad[0].tolist() == pytest.approx([expected, -expected], rel=1e-2)


def test_huge_logits_stay_finite() -> None:
    logits = torch.tensor([[1e30, -1e30, 0.0]], requires_grad=True)
    scores = logprobs_from_hidden(logits, nn.Identity(), torch.tensor([0]))
    (scores.logprobs + scores.entropy).sum().backward()
    assert (scores.logprobs.item(), scores.entropy.item()) == (0.0, 0.0)
    assert logits.grad is not None
    assert logits.grad.isfinite().all()


def test_temperature_divides_the_logits() -> None:
    logits = torch.tensor([[[2.0, 0.0]]])
    scores = logprobs_from_hidden(logits, nn.Identity(), torch.tensor([[0]]), temperature=0.5)
    assert scores.logprobs.item() == pytest.approx(-0.018150, abs=1e-6)


def test_no_token_gives_no_statistics_and_zero_gradients() -> None:
    head, hidden = linear(0), torch.zeros(0, D, dtype=torch.float64, requires_grad=True)
    scores = logprobs_from_hidden(hidden, head, torch.zeros(0, dtype=torch.long))
    scores.logprobs.sum().backward()
    assert scores.entropy.shape == (0,)
    assert head.weight.grad is not None
    assert torch.equal(head.weight.grad, torch.zeros_like(head.weight))


def test_it_feeds_the_loss_and_trains_the_head() -> None:
    head, hidden = linear(6, torch.float32), states(6, torch.float32)
    labels = torch.tensor([[1, 2, 3], [4, 5, 0]])
    mask = torch.tensor([[True, True, True], [True, True, False]])
    with torch.no_grad():
        behavior = logprobs_from_hidden(hidden, head, labels).logprobs
    optimizer = torch.optim.SGD(head.parameters(), lr=0.5)
    for _ in range(3):
        current = logprobs_from_hidden(hidden, head, labels)
        optimizer.zero_grad()
        batch = PolicyBatch(
            current_logprobs=current.logprobs,
            behavior_logprobs=behavior,
            advantages=torch.ones(2, 3),
            mask=mask,
        )
        policy_loss(batch).loss.backward()
        optimizer.step()
    after = logprobs_from_hidden(hidden, head, labels).logprobs
    assert after[mask].mean() > behavior[mask].mean()


def test_the_backward_pass_computes_the_logits_as_autocast_did() -> None:
    head, hidden = linear(9, torch.float32), states(9, torch.float32).requires_grad_()
    labels = torch.zeros(2, 3, dtype=torch.long)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        scores = logprobs_from_hidden(hidden, head, labels)
        logits = head(hidden)
    wanted = logits.float().log_softmax(-1)[..., 0]
    torch.testing.assert_close(scores.logprobs, wanted)
    (actual,) = torch.autograd.grad(scores.logprobs.sum(), hidden)
    (expected,) = torch.autograd.grad(wanted.sum(), hidden)
    torch.testing.assert_close(actual, expected, rtol=2e-2, atol=2e-2)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"hidden": torch.zeros(2, 3, D).long()}, "hidden must be floating"),
        ({"labels": torch.zeros(2).long()}, r"hidden must be floating \[2, 'D'\] beside labels"),
        ({"labels": torch.zeros(2, 3)}, "labels must be of an integer dtype"),
        ({"labels": torch.full((2, 3), V)}, rf"labels must be in \[0, {V}\), got 7"),
        ({"labels": torch.full((2, 3), -100)}, rf"labels must be in \[0, {V}\), got -100"),
        ({"masked_token_ids": [9]}, r"masked_token_ids must be in \[0, 7\), got 9"),
        ({"masked_token_ids": range(V)}, "masked_token_ids must leave a token to sample"),
        ({"chunk_tokens": 0}, "chunk_tokens must be a finite number >= 1, got 0"),
        ({"temperature": -1}, "temperature must be a finite number > 0, got -1"),
        ({"temperature": math.inf}, "temperature must be a finite number > 0, got inf"),
    ],
)
def test_wrong_arguments_are_named(changes: dict[str, Any], message: str) -> None:
    arguments: dict[str, Any] = {
        "hidden": torch.zeros(2, 3, D),
        "head": linear(0, torch.float32),
        "labels": torch.zeros(2, 3, dtype=torch.long),
    }
    with pytest.raises(PPOLossError, match=message):
        logprobs_from_hidden(**{**arguments, **changes})
