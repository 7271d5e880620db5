"""Every loss that the configuration can name trains a policy, and none trains it like another."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from awrl_trainer import ActorConfig, FSDPActor, OptimizerConfig, TrainRow, collate_text
from awrl_trainer.testing import TinyPolicy
from webrl.config import load_config
from webrl.launch.component_configs import loss_config

CHOICES: dict[str, list[str]] = {
    "decoupled": [],
    "coupled": ["use_decoupled_loss=false", "recompute_logprob=false"],
    "coupled, recomputed": ["use_decoupled_loss=false"],
    "loglinear": ["recompute_logprob=false", "prox_logp_method=loglinear"],
    "GSPO": ["loss=gspo", "eps_clip=0.01", "loss_aggregation=sequence_mean"],
    "GSPO, coupled": ["loss=gspo", "use_decoupled_loss=false"],
    "CISPO": ["loss=cispo", "eps_clip=1.0", "eps_clip_higher=0.2"],
    "TIS": ["importance=token_truncate", "behav_imp_weight_cap=1.05"],
    "MIS": ["behav_imp_weight_cap=1.3", "behav_imp_weight_floor=0.9"],
    "TIS of rows": ["importance=sequence_truncate", "behav_imp_weight_cap=1.1"],
    "MIS of rows": ["importance=sequence_mask", "behav_imp_weight_cap=2.0"],
    "geometric TIS": ["importance=geometric_truncate", "behav_imp_weight_cap=1.02"],
    "geometric MIS": ["importance=geometric_mask", "behav_imp_weight_cap=1.2"],
    "seq_sum_k1": ["importance=seq_sum_k1", "behav_imp_weight_cap=1.5"],
    "seq_mean_k1": ["importance=seq_mean_k1", "behav_imp_weight_cap=1.1"],
    "sequence mean": ["loss_aggregation=sequence_mean"],
    "sequence sum over k": ["loss_aggregation=sequence_sum", "step_adv_const_length=10"],
    "dual clip": ["c_clip=1.3"],
    "k2 penalty": ["kl_ctl=0.5", "kl_estimator=k2"],
    "k3 penalty": ["kl_ctl=0.5"],
    "entropy bonus": ["entropy_coef=0.1"],
}


def rows_of(policy_logprobs: FSDPActor) -> list[TrainRow]:
    """Rows of an older policy: log-probs near the present ones, advantages of both signs."""
    draw = np.random.default_rng(5)
    rows: list[TrainRow] = []
    for index in range(8):
        length = 6 + index
        mask = np.arange(length) >= 3
        rows.append(
            TrainRow(
                input_ids=draw.integers(0, 31, length),
                loss_mask=mask,
                behavior_logprobs=np.zeros(length, dtype=np.float32),
                advantages=float(draw.choice([-1.5, 1.0])),
                versions=np.where(mask, 0, -1),
                row_id=str(index),
            )
        )
    for row, values in zip(rows, policy_logprobs.logprobs(rows), strict=True):
        row.behavior_logprobs[row.loss_mask] = values + draw.normal(0, 0.3, len(values))
    return rows


def trained(settings: list[str]) -> tuple[torch.Tensor, list[dict[str, float]]]:
    """Weights and metrics after two updates of two mini-batches and two passes each."""
    config = load_config("laptop", [f"actor.{setting}" for setting in settings]).config
    actor = FSDPActor(
        TinyPolicy(),
        ActorConfig(
            optimizer=OptimizerConfig(kind="sgd", lr=0.03, max_grad_norm=None),
            loss=loss_config(config, masked_token_ids=(31,)),
            num_mini_batches=2,
            num_epochs=2,
        ),
        collate=collate_text,
    )
    rows = rows_of(actor)
    metrics = [actor.update(rows).metrics for _ in range(2)]
    weights = [p.full_tensor().flatten() for p in actor.policy.parameters()]  # type: ignore[attr-defined]
    return torch.cat(weights).detach(), metrics


@pytest.fixture(scope="module")
def results() -> dict[str, tuple[torch.Tensor, list[dict[str, float]]]]:
    return {name: trained(settings) for name, settings in CHOICES.items()}


@pytest.mark.parametrize("name", CHOICES)
def test_two_updates_move_the_policy_and_stay_finite(
    name: str, results: dict[str, tuple[torch.Tensor, list[dict[str, float]]]]
) -> None:
    weights, metrics = results[name]
    assert weights.isfinite().all()
    for step in metrics:
        assert step["optimizer/num_steps"] == 4
        assert step["optimizer/grad_norm"] > 0
        assert all(np.isfinite(value) for value in step.values())


@pytest.mark.parametrize("name", CHOICES)
def test_no_two_choices_train_alike(
    name: str, results: dict[str, tuple[torch.Tensor, list[dict[str, float]]]]
) -> None:
    for other in CHOICES:
        if other != name:
            assert not torch.equal(results[name][0], results[other][0]), other


def test_metrics_tell_the_choices_apart(
    results: dict[str, tuple[torch.Tensor, list[dict[str, float]]]],
) -> None:
    first = {name: metrics[0] for name, (_, metrics) in results.items()}
    assert first["coupled"]["staleness_ratio/max"] == 1.0
    assert first["coupled, recomputed"]["staleness_ratio/max"] == 1.0
    # The sampler's log-probs are 0.3 off, those of a forward pass are the policy's own.
    assert first["coupled"]["clip/fraction"] > first["coupled, recomputed"]["clip/fraction"]
    for name in ("TIS", "MIS", "TIS of rows", "MIS of rows", "geometric TIS", "geometric MIS"):
        assert 0 < first[name]["staleness_ratio/capped_fraction"] < 1, name
    for name in ("seq_sum_k1", "seq_mean_k1"):
        assert 0 < first[name]["staleness_ratio/capped_fraction"] < 1, name
    assert first["decoupled"]["staleness_ratio/capped_fraction"] == 0
    assert first["k2 penalty"]["kl/reference_mean"] >= 0
    assert "kl/reference_mean" not in first["decoupled"]
