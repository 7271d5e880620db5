"""Wrong arguments are refused by name, with what to do about it."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import pytest
import torch
from awrl_ppo_loss import PolicyBatch, PolicyLossConfig, PPOLossError, policy_loss

X = torch.zeros(2, 3)
MASK = torch.ones(2, 3, dtype=torch.bool)
NAMES = ["current_logprobs", "proximal_logprobs", "behavior_logprobs", "advantages"]
OTHERS = ["reference_logprobs", "entropy"]


def batch_of(**changes: Any) -> PolicyBatch:
    return PolicyBatch(**{**dict.fromkeys(NAMES, X), "mask": MASK, **changes})


@pytest.mark.parametrize("name", [*NAMES, *OTHERS])
@pytest.mark.parametrize(
    ("value", "message"),
    [
        (torch.zeros(2, 2), r"must be of the mask's shape \[2, 3\], got \[2, 2\]"),
        (torch.zeros(2, 1), "nothing is broadcast"),
        (torch.zeros(2, 3, dtype=torch.long), "must be of a floating dtype"),
        (MASK, "got torch.bool"),
        ([[0.0] * 3] * 2, "must be a tensor, got list"),
        (torch.zeros(2, 3, device="meta"), "must be on the mask's device cpu"),
    ],
)
def test_a_wrong_tensor_is_named(name: str, value: object, message: str) -> None:
    with pytest.raises(PPOLossError, match=message) as caught:
        batch_of(**{name: value})
    assert str(caught.value).startswith(name)


@pytest.mark.parametrize(
    ("mask", "message"),
    [
        (MASK.float(), r"mask must be of dtype torch\.bool, got torch\.float32"),
        (MASK.long(), r"mask must be of dtype torch\.bool, got torch\.int64"),
        (None, "mask must be a tensor, got NoneType"),
        (torch.ones(1, 2, 3, dtype=torch.bool), r"\[B, T\] or packed \[T\]"),
        (torch.tensor(True), r"mask must be of shape .*, got \[\]"),
    ],
)
def test_a_wrong_mask_is_named(mask: object, message: str) -> None:
    with pytest.raises(PPOLossError, match=message):
        batch_of(mask=mask)


@pytest.mark.parametrize("name", [*NAMES[1:], "reference_logprobs"])
def test_a_gradient_on_the_wrong_side_shows_that_arguments_are_swapped(name: str) -> None:
    changes = {name: X.clone().requires_grad_()}
    with pytest.raises(PPOLossError, match=f"{name} must be a constant .*swapped"):
        batch_of(**changes)
    with torch.no_grad():
        assert policy_loss(batch_of(**changes)).loss.item() == 0.0


def test_sequence_ids_must_be_integers_of_the_mask_s_shape() -> None:
    with pytest.raises(PPOLossError, match="sequence_ids must be a tensor of an integer"):
        batch_of(sequence_ids=X)
    with pytest.raises(PPOLossError, match="sequence_ids must be of the mask's shape"):
        batch_of(sequence_ids=torch.zeros(2, dtype=torch.long))


@pytest.mark.parametrize(
    "options",
    [
        {"objective": "gspo"},
        {"aggregation": "sequence_mean"},
        {"importance": "sequence_mask", "weight_cap": 3.0},
    ],
)
def test_packed_tokens_need_ids_where_sequences_matter(options: dict[str, Any]) -> None:
    flat = batch_of(**{name: X[0] for name in NAMES}, mask=MASK[0])
    with pytest.raises(PPOLossError, match="sequence_ids must be given for packed tokens"):
        policy_loss(flat, PolicyLossConfig(**options))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"clip_low": -1}, r"clip_low must be a finite number >= 0 and <= 1, got -1"),
        ({"clip_low": 1.5}, "clip_low must be a finite number >= 0 and <= 1"),
        ({"clip_high": math.nan}, "clip_high must be a finite number >= 0, got nan"),
        ({"clip_high": "0.2"}, "clip_high must be a finite number >= 0, got '0.2'"),
        ({"clip_high": True}, "clip_high must be a finite number"),
        ({"dual_clip": 1.0}, "dual_clip must be a finite number > 1"),
        ({"dual_clip": 1.1}, r"dual_clip must be > 1 \+ clip_high = 1\.2, got 1\.1"),
        ({"dual_clip": 3.0, "objective": "cispo"}, "dual_clip must be None with .*'cispo'"),
        ({"weight_cap": 0.0}, "weight_cap must be a finite number > 0"),
        ({"weight_cap": -1}, "weight_cap must be a finite number > 0"),
        ({"weight_cap": math.nan}, "weight_cap must be a finite number > 0, got nan"),
        ({"weight_floor": -0.1}, "weight_floor must be a finite number >= 0"),
        ({"weight_floor": 2.0, "weight_cap": 1.5}, "weight_cap must be a finite number > 2"),
        ({"importance": "token_truncate"}, "weight_cap or weight_floor must be a number"),
        ({"importance": "drop"}, "importance must be one of 'token_mask', .* got 'drop'"),
        ({"aggregation": "token-mean"}, "aggregation must be one of 'token_mean'"),
        ({"objective": "grpo"}, "objective must be one of 'ppo', 'gspo', 'cispo', got 'grpo'"),
        ({"constant": 0}, "constant must be a finite number > 0, got 0"),
        ({"kl_coefficient": -1}, "kl_coefficient must be a finite number >= 0"),
        ({"kl_estimator": "k4"}, "kl_estimator must be one of 'k1', 'k2', 'k3', got 'k4'"),
        ({"entropy_coefficient": math.inf}, "entropy_coefficient must be a finite number"),
    ],
)
def test_an_option_outside_its_range_is_named(options: dict[str, Any], message: str) -> None:
    with pytest.raises(PPOLossError, match=message):
        PolicyLossConfig(**options)


def test_the_configuration_is_frozen_and_keyword_only_and_names_a_misspelt_option() -> None:
    config = PolicyLossConfig()
    with pytest.raises(dataclasses.FrozenInstanceError):
        config.clip_low = 0.3  # type: ignore[misc]
    with pytest.raises(TypeError):
        PolicyLossConfig("ppo")  # type: ignore[misc]
    with pytest.raises(TypeError, match="dual_clp"):
        PolicyLossConfig(dual_clp=3.0)  # type: ignore[call-arg]


@pytest.mark.parametrize(
    ("options", "name"),
    [({"kl_coefficient": 0.1}, "reference_logprobs"), ({"entropy_coefficient": 0.1}, "entropy")],
)
def test_a_regularizer_needs_its_tensor(options: dict[str, Any], name: str) -> None:
    with pytest.raises(PPOLossError, match=f"{name} must be given with a"):
        policy_loss(batch_of(), PolicyLossConfig(**options))


def test_the_error_is_also_the_builtin_that_a_caller_would_catch() -> None:
    with pytest.raises(ValueError, match="behavior_logprobs"):
        batch_of(behavior_logprobs=X[:1])
