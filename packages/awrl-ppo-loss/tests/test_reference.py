"""Every policy loss against a float64 loop over tokens, on random shapes, values and gradients."""

import inspect
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from awrl_ppo_loss import (
    MAX_RATIO,
    Aggregation,
    LossOutput,
    cispo_loss,
    decoupled_ppo_loss,
    gspo_loss,
    masked_is_loss,
    ppo_loss,
    truncated_is_loss,
)
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


def reduce(case: Case, per_token: "PerToken", aggregation: Aggregation) -> Tensor:
    sequences = case.sequences()
    num_tokens, num_sequences = max(len(case.places()), 1), max(len(sequences), 1)
    total = torch.zeros((), dtype=torch.float64)
    for places in sequences:
        for place in places:
            value = per_token[place]
            if aggregation == "token_mean":
                total = total + value / num_tokens
            elif aggregation == "sequence_mean":
                total = total + value / len(places) / num_sequences
            elif aggregation == "step_constant":
                total = total + value / num_tokens / 7.0
            else:
                total = total + value / num_sequences / 7.0
    return total


def ratio(numerator: Tensor, denominator: Tensor) -> Tensor:
    return (numerator - denominator).exp().clamp(max=MAX_RATIO)


Options = dict[str, Any]
PerToken = dict[tuple[int, ...], Tensor]
Reference = Callable[[Case, Tensor, Options], PerToken]


def clipped_ratio(r: Tensor, a: Tensor, options: Options) -> Tensor:
    low, high = options["clip_low"], options["clip_high"]
    value = torch.minimum(r * a, r.clamp(1 - low, 1 + high) * a)
    dual = options.get("dual_clip")
    return torch.maximum(value, dual * a) if dual is not None and a < 0 else value


def capped(w: Tensor, options: Options) -> Tensor:
    cap = options.get("behav_imp_weight_cap")
    if cap is None or w <= cap:
        return w
    is_clamped = options["behav_imp_weight_action"] == "clamp"
    return torch.full_like(w, cap) if is_clamped else torch.zeros_like(w)


def reference_decoupled(case: Case, current: Tensor, options: Options) -> PerToken:
    per_token: PerToken = {}
    for at in case.places():
        w = capped(ratio(case.proximal[at], case.behavior[at]), options)
        r = ratio(current[at], case.proximal[at])
        per_token[at] = -w * clipped_ratio(r, case.advantages[at], options)
    return per_token


def reference_coupled(case: Case, current: Tensor, options: Options) -> PerToken:
    return {
        at: -clipped_ratio(ratio(current[at], case.behavior[at]), case.advantages[at], options)
        for at in case.places()
    }


def reference_truncated(case: Case, current: Tensor, options: Options) -> PerToken:
    bounds = {"behav_imp_weight_cap": options["weight_high"], "behav_imp_weight_action": "clamp"}
    return reference_decoupled(case, current, {**options, **bounds})


def reference_masked(case: Case, current: Tensor, options: Options) -> PerToken:
    per_token: PerToken = {}
    for at in case.places():
        w = ratio(case.proximal[at], case.behavior[at])
        w = w if options["weight_low"] <= w <= options["weight_high"] else torch.zeros_like(w)
        r = ratio(current[at], case.proximal[at])
        per_token[at] = -w * clipped_ratio(r, case.advantages[at], options)
    return per_token


def reference_gspo(case: Case, current: Tensor, options: Options) -> PerToken:
    per_token: PerToken = {}
    for places in case.sequences():
        log_s = sum((current[at] - case.proximal[at] for at in places), torch.zeros(()))
        log_w = sum((case.proximal[at] - case.behavior[at] for at in places), torch.zeros(()))
        s, w = (log_s / len(places)).exp(), capped((log_w / len(places)).exp(), options)
        for at in places:
            per_token[at] = -w * clipped_ratio(s, case.advantages[at], options)
    return per_token


def reference_cispo(case: Case, current: Tensor, options: Options) -> PerToken:
    per_token: PerToken = {}
    for at in case.places():
        w = capped(ratio(case.proximal[at], case.behavior[at]), options)
        r = ratio(current[at], case.proximal[at]).detach()
        r = r.clamp(1 - options["clip_low"], 1 + options["clip_high"])
        per_token[at] = -w * r * case.advantages[at] * current[at]
    return per_token


OBJECTIVES: dict[str, tuple[Callable[..., LossOutput], Reference]] = {
    "decoupled_ppo": (decoupled_ppo_loss, reference_decoupled),
    "ppo": (ppo_loss, reference_coupled),
    "truncated_is": (truncated_is_loss, reference_truncated),
    "masked_is": (masked_is_loss, reference_masked),
    "gspo": (gspo_loss, reference_gspo),
    "cispo": (cispo_loss, reference_cispo),
}
CHOICES: dict[str, list[Any]] = {
    "clip_low": [0.0, 0.1, 0.2, 1.0],
    "clip_high": [0.0, 0.2, 0.35],
    "dual_clip": [None, 1.5, 3.0],
    "behav_imp_weight_cap": [None, 0.9, 1.1, 1.5],
    "behav_imp_weight_action": ["mask", "clamp"],
    "weight_low": [0.0, 0.8],
    "weight_high": [1.05, 1.25, 5.0],
}


def options_of(objective: str) -> st.SearchStrategy[Options]:
    """Any mix of the options that the loss has, its defaults among them."""
    known = inspect.signature(OBJECTIVES[objective][0]).parameters
    return st.fixed_dictionaries(
        {name: st.sampled_from(values) for name, values in CHOICES.items() if name in known}
    )


@pytest.mark.requirement("decoupled-ratio")
@pytest.mark.parametrize(
    ("dtype", "tolerance"), [(torch.float64, 1e-11), (torch.float32, 2e-5), (torch.bfloat16, 2e-5)]
)
@pytest.mark.parametrize("objective", OBJECTIVES)
@given(
    case=cases(),
    aggregation=st.sampled_from(
        ["token_mean", "sequence_mean", "step_constant", "sequence_constant"]
    ),
    data=st.data(),
)
@settings(max_examples=NUM_EXAMPLES, deadline=None)
def test_value_and_gradient_equal_the_loop(
    objective: str,
    dtype: torch.dtype,
    tolerance: float,
    case: Case,
    aggregation: Aggregation,
    data: st.DataObject,
) -> None:
    loss_function, reference = OBJECTIVES[objective]
    options = data.draw(options_of(objective))
    # The reference sees the rounded values, in float64: only the arithmetic is compared.
    exact = replace(
        case,
        current=case.current.to(dtype).double(),
        proximal=case.proximal.to(dtype).double(),
        behavior=case.behavior.to(dtype).double(),
        advantages=case.advantages.to(dtype).double(),
    )
    leaf = exact.current.clone().requires_grad_()
    expected = reduce(exact, reference(exact, leaf, options), aggregation)
    if expected.requires_grad:
        expected.backward()
    expected_grad = torch.zeros_like(leaf) if leaf.grad is None else leaf.grad

    current = case.current.to(dtype).clone().requires_grad_()
    constants = (case.proximal, case.behavior, case.advantages)
    tensors = [current, *(value.to(dtype) for value in constants)]
    if objective == "ppo":
        del tensors[1]
    out = loss_function(
        *tensors,
        case.mask,
        aggregation=aggregation,
        sequence_ids=case.sequence_ids,
        constant=7.0 if "constant" in aggregation else None,
        **options,
    )
    out.loss.backward()
    assert current.grad is not None
    scale = max(1.0, abs(expected.item()))
    assert out.loss.item() == pytest.approx(expected.item(), abs=tolerance * scale)
    grad_tolerance = 1e-2 if dtype == torch.bfloat16 else tolerance * 10
    torch.testing.assert_close(
        current.grad.double(), expected_grad, rtol=grad_tolerance, atol=grad_tolerance
    )
