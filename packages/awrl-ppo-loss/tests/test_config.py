"""A policy loss by name: the same value as the function, and no option that is ignored."""

import dataclasses
import inspect
from collections.abc import Callable
from typing import Any, get_args

import awrl_ppo_loss
import pytest
import torch
from awrl_ppo_loss import LossOutput, Objective, OptionError, PolicyLossConfig, policy_loss

OBJECTIVES: tuple[Objective, ...] = get_args(Objective)
NOT_OPTIONS = {
    "current_logprobs",
    "proximal_logprobs",
    "behavior_logprobs",
    "advantages",
    "mask",
    "denominator",
    "sequence_ids",
}
VALUES: dict[str, Any] = {
    "clip_low": 0.15,
    "clip_high": 0.35,
    "dual_clip": 2.0,
    "behav_imp_weight_cap": 1.05,
    "behav_imp_weight_action": "clamp",
    "weight_low": 0.9,
    "weight_high": 1.1,
    "aggregation": "sequence_constant",
    "constant": 5.0,
}


def function_of(objective: str) -> Callable[..., LossOutput]:
    return getattr(awrl_ppo_loss, f"{objective}_loss")


def options_of(objective: str) -> set[str]:
    return set(inspect.signature(function_of(objective)).parameters) - NOT_OPTIONS


def arguments(objective: str) -> dict[str, Any]:
    generator = torch.Generator().manual_seed(0)
    names = ["current_logprobs", "proximal_logprobs", "behavior_logprobs", "advantages"]
    tensors = dict(zip(names, torch.randn(4, 3, 5, generator=generator) * 0.4, strict=True))
    if objective == "ppo":
        del tensors["proximal_logprobs"]
    return {**tensors, "mask": torch.rand(3, 5, generator=generator) < 0.8}


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_every_option_of_the_function_has_an_effect_through_the_configuration(
    objective: Objective,
) -> None:
    chosen = {name: VALUES[name] for name in options_of(objective)}
    config = PolicyLossConfig(objective=objective, **chosen)
    tensors = arguments(objective)
    out = policy_loss(config, denominator=11, **tensors)
    expected = function_of(objective)(denominator=11, **tensors, **chosen)
    assert torch.equal(out.loss, expected.loss)
    default = policy_loss(PolicyLossConfig(objective=objective), **tensors)
    assert torch.equal(default.loss, function_of(objective)(**tensors).loss)


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_every_option_that_the_function_lacks_is_refused(objective: Objective) -> None:
    fields = {field.name for field in dataclasses.fields(PolicyLossConfig)} - {"objective"}
    assert fields == set(VALUES)
    for name in fields - options_of(objective):
        with pytest.raises(OptionError, match=f"{name} must be None with objective '{objective}'"):
            PolicyLossConfig(objective=objective, **{name: VALUES[name]})


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"objective": "grpo"}, "objective must be one of 'decoupled_ppo', 'ppo'"),
        ({"clip_low": 2}, "clip_low must be a finite number"),
        ({"dual_clip": 0.5}, "dual_clip must be"),
        ({"dual_clip": 1.5, "clip_high": 0.6}, "dual_clip must be"),
        ({"behav_imp_weight_cap": -1}, "behav_imp_weight_cap must be"),
        ({"objective": "masked_is", "weight_high": 0.1}, "weight_high must be"),
        ({"aggregation": "step_constant"}, "constant must be"),
        ({"constant": 4}, "constant must be None"),
    ],
)
def test_options_are_checked_when_the_configuration_is_made(
    options: dict[str, Any], message: str
) -> None:
    with pytest.raises(OptionError, match=message):
        PolicyLossConfig(**options)


def test_the_configuration_is_frozen_and_keyword_only() -> None:
    config = PolicyLossConfig()
    with pytest.raises(dataclasses.FrozenInstanceError):
        config.clip_low = 0.3  # type: ignore[misc]
    with pytest.raises(TypeError):
        PolicyLossConfig("ppo")  # type: ignore[misc]


def test_proximal_logprobs_are_given_exactly_where_they_are_used() -> None:
    tensors = arguments("decoupled_ppo")
    assert not PolicyLossConfig(objective="ppo").needs_proximal
    with pytest.raises(OptionError, match="proximal_logprobs must be None with objective 'ppo'"):
        policy_loss(PolicyLossConfig(objective="ppo"), **tensors)
    del tensors["proximal_logprobs"]
    with pytest.raises(OptionError, match="proximal_logprobs must be given with objective 'gspo'"):
        policy_loss(PolicyLossConfig(objective="gspo"), **tensors)
