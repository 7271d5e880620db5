"""The policy, the trainer rank and the server that stand in for hardware, against the real other side."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Generator
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch.distributed as dist
from awrl_rollout import GenerateRequest, InterruptibleGenerator, SGLangClient
from awrl_trainer import (
    ActorConfig,
    LocalSource,
    LossConfig,
    OptimizerConfig,
    PublisherConfig,
    SnapshotWriter,
    TrainRow,
    WeightPublisher,
    WeightSender,
)
from webrl.actions import InvalidAction, parse_action
from webrl.embedded.parity import as_base64, page_png
from webrl.policy import PolicyProcessor
from webrl.rehearse.engine import UPDATE_S_VARIABLE, RehearsedEngine
from webrl.rehearse.fork_server import ForkServer, forking
from webrl.rehearse.manifest import manifest_of, scaled_bucket_bytes, true_manifest
from webrl.rehearse.policy import write_policy
from webrl.servers.server_process import find_free_port
from webrl.training.actor_rank import EngineSpec
from webrl.training.publishing import SGLangReceiver

BUCKET_BYTES = 2**29
"""With it a publish of the true policy takes 33 broadcasts."""


@pytest.fixture(scope="module")
def policy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("policy") / "narrow"
    write_policy(path)
    return path


def test_the_manifest_is_that_of_the_published_checkpoint() -> None:
    manifest = true_manifest()
    shapes = {spec.name: spec.shape for spec in manifest.specs}
    assert len(shapes) == 750
    assert manifest.num_parameters == 8_767_123_696
    assert manifest.num_bytes == 2 * manifest.num_parameters
    assert shapes["model.language_model.layers.35.self_attn.k_proj.weight"] == (1024, 4096)
    assert shapes["model.visual.deepstack_merger_list.2.linear_fc2.weight"] == (4096, 4608)
    assert shapes["lm_head.weight"] == (151936, 4096)


def test_the_narrow_policy_has_the_names_the_order_the_files_and_the_buckets_of_the_true_one(
    policy: Path,
) -> None:
    true, narrow = true_manifest(), manifest_of(policy)
    assert {spec.name for spec in narrow.specs} == {spec.name for spec in true.specs}
    assert {spec.dtype for spec in narrow.specs} == {"bfloat16"}
    assert len(list(policy.glob("*.safetensors"))) == 4
    assert narrow.num_bytes < true.num_bytes / 1000
    bucket_bytes = scaled_bucket_bytes(true, narrow, BUCKET_BYTES)
    assert bucket_bytes < BUCKET_BYTES / 1000
    # 1280 x 720 at the true processor's patches of 16 pixels, merged two by two.
    assert PolicyProcessor.from_pretrained(policy).num_image_tokens(720, 1280) == 40 * 22


class Pictures:
    """Gives any screenshot, and counts them."""

    def __init__(self) -> None:
        self.keys: list[str] = []

    def get_many(self, keys: list[str]) -> list[bytes]:
        self.keys += keys
        return [b"a picture"] * len(keys)


@pytest.fixture
def engine(
    policy: Path, monkeypatch: pytest.MonkeyPatch
) -> Generator[tuple[RehearsedEngine, Pictures]]:
    monkeypatch.setenv(UPDATE_S_VARIABLE, "0")
    processor = PolicyProcessor.from_pretrained(policy)
    config = ActorConfig(
        optimizer=OptimizerConfig(lr=1e-12),
        loss=LossConfig(masked_token_ids=processor.masked_token_ids),
        num_mini_batches=2,
        num_epochs=3,
        publish_bucket_bytes=scaled_bucket_bytes(
            true_manifest(), manifest_of(policy), BUCKET_BYTES
        ),
    )
    pictures = Pictures()
    spec = EngineSpec(policy_path=str(policy), actor=config)
    engine = RehearsedEngine(spec, 0, 1, cast("Any", pictures))
    if dist.is_initialized():  # a test before this one trained in this process
        dist.destroy_process_group()
    engine.start(*engine.rendezvous())
    yield engine, pictures
    dist.destroy_process_group()


def rows(count: int) -> list[TrainRow]:
    return [
        TrainRow(
            input_ids=np.arange(30, 40),
            loss_mask=np.arange(10) > 4,
            behavior_logprobs=np.full(10, -1.0, dtype=np.float32),
            advantages=1.0,
            versions=np.zeros(10, dtype=np.int64),
            image_keys=(f"image-{index}",),
            row_id=str(index),
        )
        for index in range(count)
    ]


@pytest.mark.distributed
def test_an_update_fetches_every_image_steps_as_a_true_one_and_moves_every_weight(
    engine: tuple[RehearsedEngine, Pictures], tmp_path: Path
) -> None:
    rank, pictures = engine
    names = [spec.name for spec in rank.send(WeightSender.publish_plan).specs]
    before = rank.send(WeightSender.checksums, names)
    assert before is not None
    result = rank.update(rows(8))
    assert result.version == rank.version() == 1
    assert result.metrics["optimizer/num_steps"] == 2 * 3
    assert set(pictures.keys) == {f"image-{index}" for index in range(8)}
    after = rank.send(WeightSender.checksums, names)
    assert after is not None
    assert [name for name in names if before[name] == after[name]] == []
    rank.start_save(str(tmp_path / "policies"), str(tmp_path / "state"), 1, {})
    rank.update(rows(8))
    saved = rank.finish_save()
    assert saved is not None
    rank.load(str(saved.path))
    assert (tmp_path / "policies" / "version_1" / "config.json").is_file()
    assert rank.send(WeightSender.checksums, names) == after
    assert rank.version() == 1


@pytest.fixture(scope="module")
def fork_server() -> Generator[ForkServer]:
    with forking() as server:
        yield server


@pytest.fixture
def server(policy: Path, tmp_path: Path, fork_server: ForkServer) -> Generator[str]:
    port = find_free_port("127.0.0.1")
    command = [sys.executable, "-m", "webrl.rehearse.server", "--model-path", str(policy)]
    command += ["--port", str(port), "--dtype", "bfloat16", "--end-with-stdin"]
    command += ["--token-s", "0.001", "--prefill-s", "0", "--tp-size", "2"]
    with (tmp_path / "server.log").open("wb") as log:
        process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=log,
            env={**os.environ, **fork_server.environment},
        )
    yield f"http://127.0.0.1:{port}"
    process.terminate()
    process.wait(10)


@pytest.mark.distributed
def test_a_rank_publishes_to_a_server_in_the_true_number_of_buckets_and_both_ways_verify(
    engine: tuple[RehearsedEngine, Pictures], server: str, policy: Path, tmp_path: Path
) -> None:
    rank, _ = engine
    sender = rank.send(_itself)
    assert len(sender.plan.buckets) == true_manifest().num_buckets(BUCKET_BYTES) == 33

    async def publish(client: SGLangClient, snapshots: SnapshotWriter | None) -> None:
        version = rank.update(rows(8)).version
        limits = PublisherConfig(num_verified_tensors=1000, snapshots=snapshots)
        receiver = SGLangReceiver("rollout/0", client, num_ranks=2)
        publisher = WeightPublisher(LocalSource(sender), [receiver], limits)
        report = await publisher.publish(version)
        await publisher.aclose()
        assert report.receivers == ("rollout/0",)
        assert report.quarantined == {}
        assert report.unverified is None
        assert await client.weights.version() == version

    async def scenario() -> None:
        async with SGLangClient(server) as client:
            await client.wait_until_healthy(deadline_s=60)
            await publish(client, None)
            await publish(client, SnapshotWriter(tmp_path, base=policy))

    asyncio.run(scenario())


def _itself(sender: WeightSender) -> WeightSender:
    return sender


@pytest.mark.distributed
def test_what_a_server_says_is_an_action_also_when_it_was_interrupted(
    server: str, policy: Path
) -> None:
    processor = PolicyProcessor.from_pretrained(policy)
    request = GenerateRequest(
        input_ids=processor.build_prompt("find the price", [], 1),
        images=[as_base64(page_png(1))],
        max_new_tokens=400,
        masked_token_ids=processor.masked_token_ids,
    )

    async def scenario() -> list[tuple[int, ...]]:
        async with SGLangClient(server) as client:
            await client.wait_until_healthy(deadline_s=60)
            generator = InterruptibleGenerator(client)
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(generator.generate(request)) for _ in range(12)]
                for _ in range(4):
                    await asyncio.sleep(0.03)
                    await client.pause_generation()
                    await client.continue_generation()
            assert generator.num_interrupted > 0
            return [tuple(task.result().output_ids) for task in tasks]

    answers = asyncio.run(scenario())
    masked = set(processor.masked_token_ids)
    assert not any(masked & set(ids) for ids in answers)
    texts = [processor.decode(ids) for ids in answers]
    actions = [parse_action(text) for text in texts]
    assert not [action for action in actions if isinstance(action, InvalidAction)], texts
    assert len(set(texts)) > 1
