"""Publishing between two GPUs over nccl."""

from __future__ import annotations

import asyncio
from types import ModuleType

import pytest
import torch
from awrl_trainer import (
    ActorConfig,
    FSDPActor,
    LocalSource,
    OptimizerConfig,
    PublisherConfig,
    PublishError,
    WeightPublisher,
    collate_text,
)
from awrl_trainer.testing import ReceiverProcess, TinyPolicy

pytestmark = [
    pytest.mark.multigpu,
    pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two CUDA devices"),
]


def test_a_receiver_killed_in_an_nccl_broadcast_leaves_the_trainer_alive(
    programs: ModuleType,
) -> None:
    """Torch's own watchdog would end the trainer's process when the time-out passes."""

    async def run() -> None:
        actor = FSDPActor(
            TinyPolicy(),
            ActorConfig(optimizer=OptimizerConfig(lr=1e-2), publish_bucket_bytes=1500),
            collate=collate_text,
            device="cuda",
        )
        limits = PublisherConfig(
            backend="nccl",
            handshake_deadline_s=60,
            pause_deadline_s=60,
            broadcast_deadline_s=15,
            resume_deadline_s=60,
        )
        async with (
            ReceiverProcess("doomed", device="cuda:1", dies_at_update=4) as doomed,
            ReceiverProcess("doomed", device="cuda:1") as fresh,
        ):
            publisher = WeightPublisher(LocalSource(actor.sender), [doomed], limits)
            actor.update(programs.make_rows(4))
            assert (await publisher.publish(1)).receivers == ("doomed",)
            actor.update(programs.make_rows(4, seed=1))
            with pytest.raises(PublishError, match="at least one receiver must take"):
                await publisher.publish(2)
            assert "is gone" in publisher.quarantined["doomed"]

            actor.update(programs.make_rows(4, seed=2))
            await publisher.rejoin(fresh)
            assert (await publisher.publish(3)).receivers == ("doomed",)
            version, is_paused, weights = await fresh.weights()
            assert (version, is_paused, actor.version) == (3, False, 3)
            for name, value in actor.sender.named_full_tensors():
                assert torch.equal(weights[name], value.cpu()), name
            await publisher.aclose()

    asyncio.run(run())
