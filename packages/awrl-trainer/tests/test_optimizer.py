from __future__ import annotations

import dataclasses
import math
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from awrl_trainer import ActorConfig, FSDPActor, LossConfig, OptimizerConfig, collate_text
from awrl_trainer.optimizer import SteppedOptimizer, learning_rate
from awrl_trainer.testing import TinyPolicy
from torch import nn


def test_the_rate_warms_up_then_decays_to_its_floor() -> None:
    config = OptimizerConfig(
        lr=1.0, schedule="linear", num_warmup_steps=2, num_total_steps=6, min_lr_ratio=0.2
    )
    rates = [learning_rate(config, step) for step in range(8)]
    assert rates == pytest.approx([0.5, 1.0, 1.0, 0.8, 0.6, 0.4, 0.2, 0.2])


def test_cosine_is_half_way_at_half_time() -> None:
    config = OptimizerConfig(lr=2.0, schedule="cosine", num_total_steps=10)
    assert learning_rate(config, 5) == pytest.approx(1.0)
    assert learning_rate(config, 10) == pytest.approx(0.0)


def test_weight_decay_spares_vectors() -> None:
    module = nn.Linear(2, 2)
    nn.init.ones_(module.bias)
    nn.init.ones_(module.weight)
    optimizer = SteppedOptimizer(module, OptimizerConfig(lr=0.1, weight_decay=1.0))
    for parameter in module.parameters():
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    assert torch.equal(module.bias, torch.ones(2))
    torch.testing.assert_close(module.weight, torch.full((2, 2), 0.9))


def test_a_norm_that_is_not_finite_leaves_weights_state_and_rate() -> None:
    module = nn.Linear(1, 1, bias=False)
    optimizer = SteppedOptimizer(module, OptimizerConfig(lr=0.1))
    before = module.weight.detach().clone()
    module.weight.grad = torch.full((1, 1), math.inf)
    result = optimizer.step()
    assert result.is_skipped
    assert torch.equal(module.weight, before)
    assert optimizer.num_steps == 0
    assert optimizer.inner.state_dict()["state"] == {}
    assert module.weight.grad is None


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_offloaded_averages_wait_in_pinned_memory_and_change_no_bit(
    tmp_path: Path, programs: ModuleType
) -> None:
    actors: list[FSDPActor] = []
    for is_offloaded in (False, True):
        optimizer = OptimizerConfig(lr=1e-2, weight_decay=0.1, is_state_offloaded=is_offloaded)
        config = ActorConfig(optimizer=optimizer)
        actors.append(FSDPActor(TinyPolicy(), config, collate=collate_text, device="cuda"))
    rows = [programs.make_rows(4, seed=step, version=step) for step in range(3)]
    for actor in actors:
        for step in range(2):
            actor.update(rows[step])
        actor.save(tmp_path / str(actor is actors[0]))
    weight = actors[1].policy.get_parameter("model.lm_head.weight")
    for name in ("exp_avg", "exp_avg_sq"):
        value: Any = actors[1].optimizer.inner.state[weight][name]
        assert value.to_local().is_pinned()
    for actor in actors:
        actor.load(tmp_path / str(actor is actors[1]) / "version_2")
        actor.update(rows[2])
    assert actors[0].sender.fingerprint() == actors[1].sender.fingerprint()


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("lr", -1.0),
        ("betas", (0.9, 1.0)),
        ("eps", 0.0),
        ("weight_decay", -0.1),
        ("schedule", "step"),
        ("kind", "adam"),
        ("num_warmup_steps", -1),
        ("min_lr_ratio", 2.0),
        ("max_grad_norm", 0.0),
    ],
)
def test_optimizer_numbers_out_of_range_are_refused_by_name(field: str, value: Any) -> None:
    with pytest.raises(ValueError, match=f"{field} must be"):
        dataclasses.replace(OptimizerConfig(lr=0.1), **{field: value})


def test_a_decay_needs_its_end() -> None:
    with pytest.raises(ValueError, match="num_total_steps must be above num_warmup_steps"):
        OptimizerConfig(lr=0.1, schedule="linear")


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("proximal_method", "linear"),
        ("proximal_method", "behavior"),
        ("entropy_coefficient", -1.0),
        ("temperature", 0.0),
        ("temperature", float("inf")),
        ("clip_low", -1.0),
        ("clip_high", float("nan")),
        ("dual_clip", 1.0),
        ("weight_cap", -1.0),
        ("aggregation", "token-mean"),
        ("importance", "drop"),
    ],
)
def test_loss_numbers_out_of_range_are_refused_by_name(field: str, value: Any) -> None:
    with pytest.raises(ValueError, match=f"{field} must be"):
        LossConfig(**{field: value})


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("token_budget", 0),
        ("num_mini_batches", 0),
        ("num_epochs", 0),
        ("compute_dtype", "float16"),
        ("checkpointed_block_share", 1.5),
    ],
)
def test_actor_numbers_out_of_range_are_refused_by_name(field: str, value: Any) -> None:
    with pytest.raises(ValueError, match=f"{field} must be"):
        dataclasses.replace(ActorConfig(optimizer=OptimizerConfig(lr=0.1)), **{field: value})
