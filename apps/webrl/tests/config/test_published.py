"""The published keys exist, spelled exactly."""

from __future__ import annotations

import importlib
import inspect

import pytest
from webrl.config import PUBLISHED_KEYS, PublishedKey, all_keys, load_config

SPELLED = {
    "scheduler.type",
    "allocation_mode",
    "cluster.n_inference_servers",
    "rollout.max_head_offpolicyness",
    "rollout.max_concurrent_rollouts",
    "rollout.consumer_batch_size",
    "test_rollout.enabled",
    "test_rollout.n_gpus",
    "weight_update_mode",
    "actor.recompute_logprob",
    "actor.use_decoupled_loss",
    "actor.prox_logp_method",
    "actor.behav_imp_weight_cap",
}


@pytest.mark.requirement("loss-toggles")
def test_the_published_keys_are_spelled_exactly_and_exist() -> None:
    assert {row.key for row in PUBLISHED_KEYS} == SPELLED
    assert set(all_keys()) >= SPELLED


@pytest.mark.parametrize(
    "row", [row for row in PUBLISHED_KEYS if row.owner != "webrl"], ids=lambda row: row.key
)
def test_what_a_published_key_decides_exists_in_its_package(row: PublishedKey) -> None:
    class_name, _, field = row.name.partition(".")
    config = getattr(importlib.import_module(row.owner), class_name)
    assert field in inspect.signature(config).parameters


def test_the_reference_config_holds_the_published_hyper_parameters() -> None:
    config = load_config("webgym_48_16").config
    actor, rollout = config.actor, config.rollout
    assert config.allocation_mode == "sglang[rollout]:d48+fsdp[actor]:d16"
    assert (config.groups_per_batch, config.gconfig.n_samples) == (16, 8)
    assert (rollout.max_head_offpolicyness, rollout.max_concurrent_rollouts) == (2, 1280)
    assert (actor.eps_clip, actor.c_clip, actor.kl_ctl) == (0.2, 3.0, 0.0)
    assert (actor.ppo_n_minibatches, actor.ppo_n_epochs) == (2, 3)
    assert (actor.step_adv_const_length, actor.optimizer.lr) == (10, 5e-6)
    assert (actor.use_decoupled_loss, actor.recompute_logprob) == (True, True)
    assert (actor.prox_logp_method, config.weight_update_mode) == ("recompute", "xccl")
