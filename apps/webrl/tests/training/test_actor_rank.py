from __future__ import annotations

import socket
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal, cast

import numpy as np
import pytest
import torch
import torch.distributed as dist
from awrl_trainer import ActorConfig, FSDPActor, LossConfig, OptimizerConfig, TrainRow
from awrl_trainer import WeightSender as Sender
from webrl.policy import (
    InitPolicyConfig,
    PolicyProcessor,
    WarmupConfig,
    init_policy,
    load_policy,
)
from webrl.training.actor_rank import EngineSpec, UpdateEngine
from webrl.training.rows import Collator


def rank_zero() -> UpdateEngine:
    config = ActorConfig(optimizer=OptimizerConfig(lr=1e-3))
    no_pixels = cast("Any", None)
    return UpdateEngine(EngineSpec(policy_path="none", actor=config), 0, 1, no_pixels)


def test_ranks_meet_on_a_port_that_rank_zero_holds_from_the_moment_it_is_told() -> None:
    engines = [rank_zero() for _ in range(4)]
    places = [engine.rendezvous() for engine in engines]
    assert len({port for _, port in places}) == 4
    for host, port in places:
        with (
            socket.socket() as other,
            pytest.raises(OSError, match="Address already in use"),
        ):
            other.bind((host, port))
    assert [engine.rendezvous() for engine in engines] == places


@pytest.fixture(scope="module")
def policy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("policy")
    init_policy(folder, InitPolicyConfig(warmup=WarmupConfig(num_updates=0)))
    return folder


def text_rows(processor: PolicyProcessor) -> list[TrainRow]:
    masked = processor.masked_token_ids
    allowed = np.setdiff1d(np.arange(max(masked)), masked)
    draw = np.random.default_rng(0)
    return [
        TrainRow(
            input_ids=draw.choice(allowed, length),
            loss_mask=np.arange(length) > 4,
            behavior_logprobs=np.full(length, -4.0, dtype=np.float32),
            advantages=advantage,
            prefix_id=str(length),
        )
        for length, advantage in ((9, 1.0), (7, -1.0), (8, 0.5))
    ]


@contextmanager
def started(policy: Path, config: ActorConfig) -> Generator[UpdateEngine]:
    engine = UpdateEngine(
        EngineSpec(policy_path=str(policy), actor=config), 0, 1, cast("Any", None)
    )
    if dist.is_initialized():  # a test before this one trained in this process
        dist.destroy_process_group()
    try:
        engine.start(*engine.rendezvous())
        yield engine
    finally:
        dist.destroy_process_group()


def config_of(processor: PolicyProcessor, **changes: Any) -> ActorConfig:
    return ActorConfig(
        optimizer=OptimizerConfig(lr=1e-3),
        loss=LossConfig(masked_token_ids=processor.masked_token_ids),
        publish_dtype="float32",
        **changes,
    )


@pytest.mark.parametrize("layout", ["shared_prefix", "packed", "padded"])
def test_a_rank_reads_shards_of_the_checkpoint_and_trains_as_the_whole_model_would(
    layout: Literal["shared_prefix", "packed", "padded"], policy: Path
) -> None:
    processor = PolicyProcessor.from_pretrained(policy)
    rows = text_rows(processor)
    with started(policy, config_of(processor, row_layout=layout)) as engine:
        names = [spec.name for spec in engine.send(Sender.publish_plan).specs]
        assert engine.update(rows).version == 1
        trained = engine.send(Sender.checksums, names)
        weights = {n: t.clone() for n, t in engine.send(Sender.named_full_tensors)}
    whole = FSDPActor(
        load_policy(policy, torch.float32),
        config_of(processor),
        collate=Collator(processor, cast("Any", None)),
    )
    before = whole.sender.checksums(names)
    whole.update(rows)
    dist.destroy_process_group()
    assert trained.keys() == before.keys()
    assert trained != before
    if layout == "shared_prefix":
        assert trained == whole.sender.checksums(names)
    for name, value in whole.sender.named_full_tensors():
        torch.testing.assert_close(weights[name], value, rtol=0, atol=1e-4)
