"""Wrong arguments are refused by name, with what to do about it."""

from collections.abc import Callable

import pytest
import torch
from awrl_ppo_loss import (
    ArgumentError,
    ArgumentTypeError,
    LossOutput,
    OptionError,
    PPOLossError,
    cispo_loss,
    decoupled_ppo_loss,
    gspo_loss,
    kl_loss,
    masked_is_loss,
    ppo_loss,
    truncated_is_loss,
)
from torch import Tensor

X = torch.zeros(2, 3)
MASK = torch.ones(2, 3, dtype=torch.bool)
LOSSES: list[Callable[..., LossOutput]] = [
    decoupled_ppo_loss,
    truncated_is_loss,
    masked_is_loss,
    gspo_loss,
    cispo_loss,
]
NAMES = ["current_logprobs", "proximal_logprobs", "behavior_logprobs", "advantages"]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    ("value", "error", "message"),
    [
        (torch.zeros(2, 2), ArgumentError, r"must be of the mask's shape \[2, 3\], got \[2, 2\]"),
        (torch.zeros(3), ArgumentError, "nothing is broadcast"),
        (torch.zeros(2, 3, dtype=torch.long), ArgumentTypeError, "must be of a floating dtype"),
        (MASK, ArgumentTypeError, "got torch.bool"),
        ([[0.0] * 3] * 2, ArgumentTypeError, "must be a tensor, got list"),
        (torch.zeros(2, 3, device="meta"), ArgumentError, "must be on the mask's device cpu"),
    ],
)
@pytest.mark.parametrize("loss", LOSSES)
def test_a_wrong_tensor_is_named(
    loss: Callable[..., LossOutput],
    name: str,
    value: object,
    error: type[PPOLossError],
    message: str,
) -> None:
    arguments = {**dict.fromkeys(NAMES, X), name: value}
    with pytest.raises(error, match=f"{name} .*{message}|{message}") as caught:
        loss(**arguments, mask=MASK)
    assert str(caught.value).startswith(name)


@pytest.mark.parametrize(
    ("mask", "error", "message"),
    [
        (MASK.float(), ArgumentTypeError, r"mask must be of dtype torch\.bool, got torch\.float32"),
        (MASK.long(), ArgumentTypeError, r"mask must be of dtype torch\.bool, got torch\.int64"),
        (None, ArgumentTypeError, "mask must be a tensor, got NoneType"),
        (torch.ones(1, 2, 3, dtype=torch.bool), ArgumentError, r"\[B, T\] or packed \[T\]"),
        (torch.tensor(True), ArgumentError, r"mask must be of shape .*, got \[\]"),
    ],
)
@pytest.mark.parametrize("loss", LOSSES)
def test_a_wrong_mask_is_named(
    loss: Callable[..., LossOutput], mask: object, error: type[PPOLossError], message: str
) -> None:
    with pytest.raises(error, match=message):
        loss(X, X, X, X, mask)


@pytest.mark.parametrize("position", [1, 2, 3])
@pytest.mark.parametrize("loss", LOSSES)
def test_a_gradient_on_the_wrong_side_shows_that_arguments_are_swapped(
    loss: Callable[..., LossOutput], position: int
) -> None:
    tensors: list[Tensor] = [X, X, X, X]
    tensors[position] = X.clone().requires_grad_()
    with pytest.raises(ArgumentError, match=f"{NAMES[position]} must be a constant .*swapped"):
        loss(*tensors, MASK)
    with torch.no_grad():
        assert loss(*tensors, MASK).loss.item() == 0.0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"clip_low": -0.1}, r"clip_low must be a finite number >= 0 and <= 1, got -0\.1"),
        ({"clip_low": 1.5}, "clip_low must be a finite number >= 0 and <= 1"),
        ({"clip_high": float("nan")}, "clip_high must be a finite number >= 0, got nan"),
        ({"clip_high": "0.2"}, "clip_high must be a finite number >= 0, got '0.2'"),
        ({"clip_high": True}, "clip_high must be a finite number"),
        ({"dual_clip": 1.0}, "dual_clip must be a finite number > 1"),
        ({"dual_clip": 1.1}, r"dual_clip must be > 1 \+ clip_high = 1\.2, got 1\.1"),
        ({"behav_imp_weight_cap": 0.0}, "behav_imp_weight_cap must be a finite number > 0"),
        (
            {"behav_imp_weight_action": "drop"},
            "behav_imp_weight_action must be one of 'mask', 'clamp', got 'drop'",
        ),
        ({"aggregation": "mean"}, "aggregation must be one of 'token_mean'"),
    ],
)
def test_an_option_outside_its_range_is_named(options: dict[str, object], message: str) -> None:
    loss: Callable[..., LossOutput] = decoupled_ppo_loss
    with pytest.raises(OptionError, match=message):
        loss(X, X, X, X, MASK, **options)


def test_weight_bounds_must_hold_one_between_them() -> None:
    with pytest.raises(OptionError, match=r"weight_high must be a finite number >= 1, got 0\.5"):
        truncated_is_loss(X, X, X, X, MASK, weight_high=0.5)
    with pytest.raises(OptionError, match="weight_low must be a finite number >= 0 and <= 1"):
        masked_is_loss(X, X, X, X, MASK, weight_low=1.5)


def test_sequence_ids_must_be_integers_of_the_mask_s_shape() -> None:
    with pytest.raises(ArgumentTypeError, match="sequence_ids must be a tensor of an integer"):
        gspo_loss(X, X, X, X, MASK, sequence_ids=X)
    with pytest.raises(ArgumentError, match="sequence_ids must be of the mask's shape"):
        gspo_loss(X, X, X, X, MASK, sequence_ids=torch.zeros(2, dtype=torch.long))


def test_options_are_keyword_only() -> None:
    losses: list[Callable[..., LossOutput]] = [*LOSSES, kl_loss]
    for loss in losses:
        tensors = [X] * (2 if loss is kl_loss else 4)
        with pytest.raises(TypeError, match="positional argument"):
            loss(*tensors, MASK, 0.2)


def test_errors_are_also_the_builtin_that_a_caller_would_catch() -> None:
    with pytest.raises(ValueError, match="behavior_logprobs"):
        ppo_loss(X, X[:1], X, MASK)
    with pytest.raises(TypeError, match="mask"):
        ppo_loss(X, X, X, X)
    for error in (ArgumentError, ArgumentTypeError, OptionError):
        assert issubclass(error, PPOLossError)
