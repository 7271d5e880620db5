"""Publishing to receivers in processes of their own, over gloo."""

from __future__ import annotations

import asyncio
import socket
from types import ModuleType

import pytest
import torch
from awrl_trainer import (
    ActorConfig,
    FSDPActor,
    LocalSource,
    OptimizerConfig,
    PublisherConfig,
    WeightPublisher,
    collate_text,
    open_store,
)
from awrl_trainer.testing import ReceiverProcess, TinyPolicy

pytestmark = pytest.mark.distributed

LIMITS = PublisherConfig(
    handshake_deadline_s=60, pause_deadline_s=60, broadcast_deadline_s=60, resume_deadline_s=60
)


def make_actor() -> FSDPActor:
    return FSDPActor(
        TinyPolicy(),
        ActorConfig(optimizer=OptimizerConfig(lr=1e-2), publish_bucket_bytes=1500),
        collate=collate_text,
    )


def sent_weights(actor: FSDPActor) -> dict[str, torch.Tensor]:
    return {name: value.clone() for name, value in actor.sender.named_full_tensors()}


async def assert_holds(
    receiver: ReceiverProcess, expected: dict[str, torch.Tensor], version: int
) -> None:
    held_version, is_paused, weights = await receiver.weights()
    assert held_version == version
    assert not is_paused
    assert weights.keys() == expected.keys()
    for name, value in expected.items():
        assert torch.equal(weights[name], value), name


def test_a_receiver_killed_in_mid_broadcast_costs_itself_only(programs: ModuleType) -> None:
    """Bytes are equal before and after, training goes on, and a new process joins again."""

    async def run() -> None:
        actor = make_actor()
        async with (
            ReceiverProcess("well") as well,
            ReceiverProcess("doomed", dies_at_update=4) as doomed,
            ReceiverProcess("doomed") as fresh,
        ):
            publisher = WeightPublisher(LocalSource(actor.sender), [doomed, well], LIMITS)
            actor.update(programs.make_rows(4))
            assert len(actor.sender.plan.buckets) == 3
            report = await publisher.publish(1)
            assert report.receivers == ("doomed", "well")
            for receiver in (doomed, well):
                await assert_holds(receiver, sent_weights(actor), 1)

            actor.update(programs.make_rows(4, seed=1))
            report = await publisher.publish(2)
            assert report.receivers == ("well",)
            assert "is gone" in report.quarantined["doomed"]
            await assert_holds(well, sent_weights(actor), 2)

            actor.update(programs.make_rows(4, seed=2))
            await publisher.rejoin(fresh)
            report = await publisher.publish(3)
            assert report.receivers == ("doomed", "well")
            for receiver in (fresh, well):
                await assert_holds(receiver, sent_weights(actor), 3)
            await publisher.aclose()
            assert actor.version == 3

    asyncio.run(run())


def test_a_taken_port_is_a_clear_error_and_many_stores_bind_at_once() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(OSError, match=r"port must be free on '127\.0\.0\.1'"):
            open_store(
                "127.0.0.1", rank=0, world_size=2, timeout_s=5.0, port=taken.getsockname()[1]
            )
    stores = [open_store("127.0.0.1", rank=0, world_size=2, timeout_s=5.0) for _ in range(4)]
    assert len({store.port for store in stores}) == 4
