"""The trainer's publisher brings a server to its weights, and notices one that holds others."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from awrl_rollout import SGLangClient
from awrl_trainer import (
    ActorConfig,
    Batch,
    Bucket,
    FSDPActor,
    LocalSource,
    OptimizerConfig,
    PublisherConfig,
    PublishError,
    PublishReport,
    SnapshotWriter,
    TrainRow,
    WeightPublisher,
)
from serving import ServerUnderTest, perturb, run_bounded
from webrl.embedded.parity import largest_difference, page_png, page_request
from webrl.policy import PolicyProcessor, load_policy
from webrl.training.publishing import SGLangReceiver

pytestmark = pytest.mark.distributed
first_weights_again = pytest.mark.usefixtures("first_weights_again")


def no_rows(rows: Sequence[TrainRow]) -> Batch:
    raise AssertionError("nothing is trained here")


def actor_of(model: torch.nn.Module, dtype: str = "float32") -> FSDPActor:
    config = ActorConfig(
        optimizer=OptimizerConfig(kind="sgd", lr=0.0),
        publish_dtype="bfloat16" if dtype == "bfloat16" else "float32",
        publish_bucket_bytes=300_000,
    )
    return FSDPActor(copy.deepcopy(model).requires_grad_(), config, collate=no_rows)


async def publish(
    actor: FSDPActor,
    client: SGLangClient,
    version: int,
    snapshots: SnapshotWriter | None = None,
    num_ranks: int = 1,
) -> PublishReport:
    limits = PublisherConfig(
        group_prefix=f"publisher-{version}", num_verified_tensors=10_000, snapshots=snapshots
    )
    publisher = WeightPublisher(
        LocalSource(actor.sender),
        [SGLangReceiver("rollout/0", client, num_ranks=num_ranks)],
        limits,
    )
    try:
        return await publisher.publish(version)
    finally:
        await publisher.aclose()


@first_weights_again
@pytest.mark.parametrize("is_on_disk", [False, True])
def test_a_published_policy_samples_as_the_trainer_s(
    server: ServerUnderTest,
    processor: PolicyProcessor,
    reference: torch.nn.Module,
    tmp_path: Path,
    is_on_disk: bool,
) -> None:
    """Over a group, and through a snapshot of several files."""
    snapshots = SnapshotWriter(tmp_path, base=server.model_path, shard_bytes=300_000)
    page = page_png(77)
    request = page_request(processor, [page])
    perturb(reference)
    actor = actor_of(reference, str(server.dtype).removeprefix("torch."))
    assert len(actor.sender.plan.buckets) > 2

    async def scenario() -> None:
        async with SGLangClient(server.url) as client:
            report = await publish(actor, client, 7, snapshots if is_on_disk else None)
            assert report.receivers == ("rollout/0",)
            assert report.unverified is None
            after = await client.generate(request)
            assert set(after.versions) == {7}
        with torch.no_grad():
            difference = largest_difference(reference, processor, request, [page], after)
        assert difference < server.tolerance

    run_bounded(scenario, deadline_s=120)


def test_each_device_of_a_tensor_parallel_server_is_a_member(
    two_device_server: ServerUnderTest,
) -> None:
    torch.set_num_threads(1)
    reference = load_policy(two_device_server.model_path, torch.float32).requires_grad_(False)
    processor = PolicyProcessor.from_pretrained(two_device_server.model_path)
    page = page_png(78)
    request = page_request(processor, [page])
    perturb(reference)
    actor = actor_of(reference)

    async def scenario() -> None:
        async with SGLangClient(two_device_server.url) as client:
            before = await client.weights.checksums()
            report = await publish(actor, client, 3, num_ranks=2)
            assert report.receivers == ("rollout/0",)
            assert report.unverified is None
            assert (await client.weights.checksums()).total != before.total
            after = await client.generate(request)
            assert set(after.versions) == {3}
        with torch.no_grad():
            difference = largest_difference(reference, processor, request, [page], after)
        assert difference < two_device_server.tolerance

    run_bounded(scenario, deadline_s=180)


@first_weights_again
def test_one_corrupted_weight_is_noticed(
    server: ServerUnderTest, reference: torch.nn.Module
) -> None:
    if not server.is_embedded:
        pytest.skip("SGLang lists no weights by name")
    actor = actor_of(reference)
    gather = actor.sender.gather
    victim = actor.sender.plan.buckets[1].names[0]

    def gather_corrupted(bucket: Bucket) -> torch.Tensor:
        flat = gather(bucket).clone()
        if bucket.index == 1:
            flat[0] += 1
        return flat

    actor.sender.gather = gather_corrupted

    async def scenario() -> None:
        async with SGLangClient(server.url) as client:
            report = await publish(actor, client, 8)
            assert report.receivers == ()
            assert report.quarantined == {"rollout/0": f"verify: other bytes of ['{victim}']"}

    run_bounded(scenario, deadline_s=120)


@first_weights_again
def test_an_update_that_changes_nothing_is_noticed_before_the_server_goes_on(
    server: ServerUnderTest, reference: torch.nn.Module, tmp_path: Path
) -> None:
    class Idle(SGLangReceiver):
        """Says that it took a bucket; the server is never asked."""

        is_idle = False

        async def update_weights_from_disk(self, path: str, *, weight_version: int) -> None:
            if not self.is_idle:
                await super().update_weights_from_disk(path, weight_version=weight_version)

    actor = actor_of(reference, str(server.dtype).removeprefix("torch."))

    async def scenario() -> None:
        writer = SnapshotWriter(tmp_path, base=server.model_path)
        limits = PublisherConfig(snapshots=writer)
        async with SGLangClient(server.url) as client:
            receiver = Idle("rollout/0", client)
            publisher = WeightPublisher(LocalSource(actor.sender), [receiver], limits)
            await publisher.connect()
            assert (await publisher.publish(1)).receivers == ("rollout/0",)
            for parameter in actor.policy.parameters():
                parameter.data.mul_(1.5)
            receiver.is_idle = True
            (reason,) = (await publisher.publish(2)).quarantined.values()
            assert "other bytes" in reason or "changed nothing" in reason
            receiver.is_idle = False
            await publisher.rejoin(receiver)
            assert (await publisher.publish(3)).receivers == ("rollout/0",)
            assert await client.weights.version() == 3

    run_bounded(scenario, deadline_s=120)


@first_weights_again
def test_a_server_of_another_dtype_is_refused_before_a_byte_is_sent(
    server: ServerUnderTest, reference: torch.nn.Module
) -> None:
    if not server.is_embedded:
        pytest.skip("SGLang lists no weights by name")

    async def scenario() -> None:
        async with SGLangClient(server.url) as client:
            with pytest.raises(PublishError, match=r"bfloat16 .* float32"):
                await publish(actor_of(reference, "bfloat16"), client, 9)

    run_bounded(scenario, deadline_s=120)
