"""The policy loss against a float64 loop over tokens, on random shapes, values and gradients."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, get_args

import pytest
import torch
from awrl_ppo_loss import PolicyBatch, PolicyLossConfig, policy_loss
from awrl_ppo_loss.config import Aggregation, Importance, Objective
from awrl_ppo_loss.loss import MAX_KL, MAX_LOG_RATIO
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

NUM_EXAMPLES = 40


@dataclass
class Case:
    current: Tensor
    proximal: Tensor
    behavior: Tensor
    advantages: Tensor
    mask: Tensor
    sequence_ids: Tensor | None

    def sequences(self) -> list[list[tuple[int, ...]]]:
        """Trainable places by sequence, sequences without one left out."""
        by_id: dict[int, list[tuple[int, ...]]] = {}
        for place in self.mask.nonzero().tolist():
            key = place[0] if self.sequence_ids is None else int(self.sequence_ids[tuple(place)])
            by_id.setdefault(key, []).append(tuple(place))
        return list(by_id.values())

    def places(self) -> list[tuple[int, ...]]:
        return [place for places in self.sequences() for place in places]


@st.composite
def cases(draw: st.DrawFn) -> Case:
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**31)))
    num_sequences, num_tokens = draw(st.integers(1, 4)), draw(st.integers(1, 5))
    shape = (num_sequences, num_tokens)
    spread = draw(st.sampled_from([0.05, 0.5, 3.0]))

    def normal(scale: float) -> Tensor:
        return torch.randn(shape, generator=generator, dtype=torch.float64) * scale

    proximal = -normal(1.0).abs()
    case = Case(
        current=proximal + normal(spread),
        proximal=proximal,
        behavior=proximal + normal(spread),
        advantages=normal(1.0),
        mask=torch.rand(shape, generator=generator) < draw(st.sampled_from([0.0, 0.5, 1.0])),
        sequence_ids=None,
    )
    if not draw(st.booleans()):
        return case
    return Case(
        current=case.current.reshape(-1),
        proximal=case.proximal.reshape(-1),
        behavior=case.behavior.reshape(-1),
        advantages=case.advantages.reshape(-1),
        mask=case.mask.reshape(-1),
        sequence_ids=torch.randint(-3, 3, shape, generator=generator).reshape(-1),
    )


PerToken = dict[tuple[int, ...], Tensor]
Options = dict[str, Any]


def reduce(case: Case, per_token: PerToken, aggregation: Aggregation) -> Tensor:
    sequences = case.sequences()
    total = torch.zeros((), dtype=torch.float64)
    for places in sequences:
        for place in places:
            value = per_token[place]
            if aggregation == "token_mean":
                total = total + value / len(case.places())
            elif aggregation == "sequence_mean":
                total = total + value / len(places) / len(sequences)
            else:
                total = total + value / len(sequences)
    return total


def bounded_ratio(log_ratio: Tensor) -> Tensor:
    return log_ratio.clamp(max=MAX_LOG_RATIO).exp()


def weight_of(case: Case, at: tuple[int, ...], places: list[tuple[int, ...]], o: Options) -> float:
    """The importance weight by the words of its documentation, in plain numbers."""
    logs = [float(case.proximal[place] - case.behavior[place]) for place in places]
    own = float(case.proximal[at] - case.behavior[at])
    kind = o["importance"]
    if kind.startswith("token"):
        log_statistic = own
    elif kind in ("sequence_mask", "sequence_truncate", "seq_sum_k1"):
        log_statistic = sum(logs)
    else:
        log_statistic = sum(logs) / len(logs)
    statistic = math.exp(min(log_statistic, MAX_LOG_RATIO))
    low = 0.0 if o["weight_floor"] is None else o["weight_floor"]
    high = math.inf if o["weight_cap"] is None else o["weight_cap"]
    if low <= statistic <= high:
        return math.exp(min(own, MAX_LOG_RATIO)) if kind.startswith("seq_") else statistic
    return min(max(statistic, low), high) if kind.endswith("truncate") else 0.0


def objective_of(
    case: Case, current: Tensor, at: tuple[int, ...], places: list[tuple[int, ...]], o: Options
) -> Tensor:
    log_ratio = current[at] - case.proximal[at]
    if o["objective"] == "gspo":
        # Equation 14 of the paper: sg[s] * pi / sg[pi].
        mean = sum(float(current.detach()[place] - case.proximal[place]) for place in places) / len(
            places
        )
        log_ratio = mean + current[at] - current[at].detach()
    ratio, advantage = bounded_ratio(log_ratio), case.advantages[at]
    clipped = ratio.clamp(1 - o["clip_low"], 1 + o["clip_high"])
    if o["objective"] == "cispo":
        return clipped.detach() * advantage * current[at]
    value = torch.minimum(ratio * advantage, clipped * advantage)
    if o["dual_clip"] is not None and advantage < 0:
        return torch.maximum(value, o["dual_clip"] * advantage)
    return value


def reference_loss(case: Case, current: Tensor, options: Options) -> Tensor:
    per_token: PerToken = {}
    for places in case.sequences():
        for at in places:
            weight = weight_of(case, at, places, options)
            per_token[at] = -weight * objective_of(case, current, at, places, options)
    return reduce(case, per_token, options["aggregation"]) / (options["constant"] or 1.0)


BOUNDS = [(None, 0.9), (None, 1.5), (0.8, None), (0.9, 1.2), (0.999, 1.001)]


@st.composite
def options_of(draw: st.DrawFn, objective: Objective) -> Options:
    """Any mix of options that the objective has, defaults among them."""
    importance: Importance = draw(st.sampled_from(get_args(Importance)))
    free = [(None, None)] if importance == "token_mask" else []
    floor, cap = draw(st.sampled_from([*free, *BOUNDS]))
    return {
        "objective": objective,
        "clip_low": draw(st.sampled_from([0.0, 0.1, 0.2, 1.0])),
        "clip_high": draw(st.sampled_from([0.0, 0.2, 0.35])),
        "dual_clip": draw(st.sampled_from([None] if objective == "cispo" else [None, 1.5, 3.0])),
        "importance": importance,
        "weight_floor": floor,
        "weight_cap": cap,
        "aggregation": draw(st.sampled_from(get_args(Aggregation))),
        "constant": draw(st.sampled_from([None, 7.0])),
    }


@pytest.mark.requirement("decoupled-ratio")
@pytest.mark.parametrize(
    ("dtype", "tolerance"), [(torch.float64, 1e-11), (torch.float32, 2e-5), (torch.bfloat16, 2e-5)]
)
@pytest.mark.parametrize("is_coupled", [False, True])
@pytest.mark.parametrize("objective", get_args(Objective))
@given(case=cases(), data=st.data())
@settings(max_examples=NUM_EXAMPLES, deadline=None)
def test_value_and_gradient_equal_the_loop(
    objective: Objective,
    is_coupled: bool,
    dtype: torch.dtype,
    tolerance: float,
    case: Case,
    data: st.DataObject,
) -> None:
    options = data.draw(options_of(objective))
    if is_coupled:
        case = replace(case, proximal=case.behavior)
    # The reference sees the rounded values, in float64: only the arithmetic is compared.
    exact = replace(
        case,
        current=case.current.to(dtype).double(),
        proximal=case.proximal.to(dtype).double(),
        behavior=case.behavior.to(dtype).double(),
        advantages=case.advantages.to(dtype).double(),
    )
    leaf = exact.current.clone().requires_grad_()
    expected = reference_loss(exact, leaf, options)
    if expected.requires_grad:
        expected.backward()
    expected_grad = torch.zeros_like(leaf) if leaf.grad is None else leaf.grad

    current = case.current.to(dtype).clone().requires_grad_()
    out = policy_loss(
        PolicyBatch(
            current_logprobs=current,
            behavior_logprobs=case.behavior.to(dtype),
            proximal_logprobs=None if is_coupled else case.proximal.to(dtype),
            advantages=case.advantages.to(dtype),
            mask=case.mask,
            sequence_ids=case.sequence_ids,
        ),
        PolicyLossConfig(**options),
    )
    out.loss.backward()
    assert current.grad is not None
    scale = max(1.0, abs(expected.item()))
    assert out.loss.item() == pytest.approx(expected.item(), abs=tolerance * scale)
    grad_tolerance = 1e-2 if dtype == torch.bfloat16 else tolerance * 10
    torch.testing.assert_close(
        current.grad.double(), expected_grad, rtol=grad_tolerance, atol=grad_tolerance
    )


@given(case=cases(), estimator=st.sampled_from(["k1", "k2", "k3"]), data=st.data())
@settings(max_examples=NUM_EXAMPLES, deadline=None)
def test_penalty_and_entropy_bonus_equal_the_loop(
    case: Case, estimator: str, data: st.DataObject
) -> None:
    aggregation: Aggregation = data.draw(st.sampled_from(get_args(Aggregation)))
    options: Options = {
        "kl_estimator": estimator,
        "aggregation": aggregation,
        "kl_coefficient": 0.3,
        "entropy_coefficient": 0.7,
    }

    def batch(current: Tensor, entropy: Tensor) -> PolicyBatch:
        return PolicyBatch(
            current_logprobs=current,
            behavior_logprobs=case.behavior,
            reference_logprobs=case.proximal,
            entropy=entropy,
            advantages=torch.zeros_like(case.advantages),
            mask=case.mask,
            sequence_ids=case.sequence_ids,
        )

    leaves = [case.current.clone().requires_grad_(), case.advantages.clone().requires_grad_()]
    per_token: PerToken = {}
    for at in case.places():
        d = leaves[0][at] - case.proximal[at]
        kinds = {"k1": d, "k2": d * d / 2, "k3": (-d).exp() - 1 + d}
        bounded = kinds[estimator].clamp(-MAX_KL, MAX_KL)
        per_token[at] = 0.3 * bounded - 0.7 * leaves[1][at]
    expected = reduce(case, per_token, aggregation)
    inputs = [case.current.clone().requires_grad_(), case.advantages.clone().requires_grad_()]
    out = policy_loss(batch(*inputs), PolicyLossConfig(**options))
    assert out.loss.item() == pytest.approx(expected.item(), abs=1e-11)
    if case.places():
        wanted = torch.autograd.grad(expected, leaves)
        actual = torch.autograd.grad(out.loss, inputs)
        torch.testing.assert_close(actual, wanted)
