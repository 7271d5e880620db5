"""The published keys exist, spelled exactly."""

from __future__ import annotations

import importlib
import inspect
import operator

import pytest
from webrl.config import (
    PUBLISHED_KEYS,
    PUBLISHED_VALUES,
    PublishedKey,
    PublishedValue,
    all_keys,
    load_config,
)

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


@pytest.mark.parametrize(
    "row", [row for row in PUBLISHED_VALUES if row.key], ids=lambda row: row.key
)
def test_the_reference_config_holds_the_published_value(row: PublishedValue) -> None:
    held = operator.attrgetter(row.key)(load_config("webgym_48_16").config)
    assert (type(held), held) == (type(row.value), row.value)


def test_a_published_value_without_a_key_says_why_it_differs() -> None:
    assert [row.name for row in PUBLISHED_VALUES if not row.key and not row.note] == []
