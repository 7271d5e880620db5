from __future__ import annotations

import pytest
import torch
from awrl_trainer.policy_module import PolicyModule
from awrl_trainer.testing import TinyPolicy
from torch import Tensor, nn


class FixedLogits(nn.Module):
    """Says the same logits at every position."""

    def __init__(self, logits: list[float]) -> None:
        super().__init__()
        self.head = nn.Linear(1, len(logits), bias=False)
        self.head.weight = nn.Parameter(torch.tensor(logits)[:, None])

    def backbone(self, *, input_ids: Tensor) -> Tensor:
        return torch.ones(*input_ids.shape, 1)


def test_temperature_divides_logits_not_logprobs() -> None:
    policy = PolicyModule(FixedLogits([2.0, 0.0]), temperature=0.5)
    answer = policy({"input_ids": torch.tensor([[1, 0]])}, torch.tensor([0]), torch.tensor([0]))
    assert answer.logprobs.tolist() == pytest.approx([-0.018150], abs=1e-6)


def test_ids_that_the_sampler_never_draws_take_no_part() -> None:
    model = TinyPolicy()
    policy = PolicyModule(model, temperature=2.0, masked_token_ids=(3, 30))
    ids = torch.tensor([[1, 2, 4], [7, 8, 9]])
    answer = policy({"input_ids": ids}, torch.tensor([0, 4]), torch.tensor([2, 9]))
    logits = model.head(model.backbone(input_ids=ids)).reshape(6, -1) / 2.0
    logits[:, [3, 30]] = -torch.inf
    expected = logits.log_softmax(-1)[[0, 4], [2, 9]]
    torch.testing.assert_close(answer.logprobs, expected)


class Config:
    """Of a model that caps its logits."""

    final_logit_softcapping = 30.0


class Capping(nn.Module):
    """Has that config."""

    config = Config()


def test_a_model_that_caps_its_logits_is_refused() -> None:
    with pytest.raises(ValueError, match="final_logit_softcapping of the model's config must be"):
        PolicyModule(Capping())
