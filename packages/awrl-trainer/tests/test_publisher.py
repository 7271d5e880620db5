"""The publish window with receivers that only remember."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence

import pytest
import torch
from awrl_trainer import (
    Bucket,
    BucketTiming,
    GroupRequest,
    ManifestMismatchError,
    PublisherConfig,
    PublishError,
    PublishPlan,
    TensorSpec,
    WeightReceiver,
    XcclPublisher,
    plan_publish,
    tensor_checksum,
)
from awrl_trainer.testing import RecordingReceiver
from awrl_trainer.weights.window import WindowState

WEIGHTS = {"a": torch.zeros(2, 3), "b": torch.ones(4), "c": torch.ones(1)}


class RecordingSource:
    """Ranks that send nothing, and remember the order of calls in a shared log."""

    def __init__(self, log: list[str] | None = None, *, fails_at_bucket: int | None = None) -> None:
        self.log = [] if log is None else log
        self.plan = plan_publish(WEIGHTS.items(), dtype=None, bucket_bytes=18)
        self.requests: list[GroupRequest] = []
        self.fails_at_bucket = fails_at_bucket

    async def publish_plan(self) -> PublishPlan:
        return self.plan

    async def bind_weights_group(self, request: GroupRequest) -> int:
        self.requests.append(request)
        return 1

    async def join_weights_group(self) -> None:
        self.log.append("join")

    async def broadcast_bucket(self, index: int) -> BucketTiming:
        self.log.append(f"broadcast {index}")
        if index == self.fails_at_bucket:
            raise PublishError("no memory", phase="broadcast")
        return BucketTiming(gather_s=0.25, broadcast_s=0.5)

    async def close_weights_group(self) -> None:
        self.log.append("close")

    async def weight_checksums(self, names: Sequence[str]) -> Mapping[str, str]:
        return {name: tensor_checksum(WEIGHTS[name]) for name in names}


class LoggingReceiver(RecordingReceiver):
    """Writes its calls into a log shared with the source."""

    def __init__(self, name: str, log: list[str]) -> None:
        super().__init__(name)
        self._log = log

    def _record(self, call: str) -> None:
        self._log.append(call.replace("update_weights_from_distributed", "receive"))
        super()._record(call)


class IndexedFake(RecordingReceiver):
    """Says which weights it holds."""

    def __init__(self, index: Sequence[TensorSpec] | None) -> None:
        super().__init__("indexed")
        self._index = index

    async def weight_index(self) -> Sequence[TensorSpec] | None:
        return self._index


class CorruptFake(RecordingReceiver):
    """Holds other bytes than it was sent."""

    async def weight_checksums(self, names: Sequence[str]) -> Mapping[str, str]:
        return dict.fromkeys(names, "0")


class DrainingFake(RecordingReceiver):
    """Is paused after three polls, as a server whose abort is asynchronous."""

    num_polls = 0

    async def pause_generation(self) -> None:
        while self.num_polls < 3:
            self.num_polls += 1
            await asyncio.sleep(0)
        await super().pause_generation()


class StuckFake(RecordingReceiver):
    """Never answers one method."""

    def __init__(self, name: str, method: str) -> None:
        super().__init__(name)
        self._method = method

    async def pause_generation(self) -> None:
        if self._method == "pause":
            await asyncio.Event().wait()
        await super().pause_generation()

    async def update_weights_from_distributed(
        self, bucket: Bucket, *, group_name: str, weight_version: int | None
    ) -> None:
        if self._method == "update" and bucket.index == 1:
            await asyncio.Event().wait()
        await super().update_weights_from_distributed(
            bucket, group_name=group_name, weight_version=weight_version
        )


SHORT = PublisherConfig(
    pause_deadline_s=0.05,
    broadcast_deadline_s=0.05,
    handshake_deadline_s=0.5,
    resume_deadline_s=0.5,
)


def publisher(*receivers: WeightReceiver, source: RecordingSource | None = None) -> XcclPublisher:
    return XcclPublisher(source or RecordingSource(), receivers, SHORT)


@pytest.mark.requirement("pause-around-the-copy")
def test_the_window_pauses_first_switches_with_the_last_bucket_and_resumes_last() -> None:
    log: list[str] = []
    receiver = LoggingReceiver("a", log)
    report = asyncio.run(publisher(receiver, source=RecordingSource(log)).publish(7))
    assert log[:4] == [
        "destroy_weights_group",
        "join",
        "init_weights_group",
        "pause_generation",
    ] or (log[:4] == ["destroy_weights_group", "init_weights_group", "join", "pause_generation"])
    assert [call for call in log if call.startswith("broadcast")] == [
        "broadcast 0",
        "broadcast 1",
        "broadcast 2",
    ]
    assert log[-1] == "continue_generation"
    assert receiver.weight_version == 7
    assert report.version == 7
    assert (report.gather_s, report.broadcast_s) == (0.75, 1.5)
    assert report.window_s >= report.pause_s + report.resume_s


def test_nothing_is_gathered_before_every_receiver_is_paused() -> None:
    log: list[str] = []
    receivers = [LoggingReceiver(name, log) for name in "ab"]
    asyncio.run(publisher(*receivers, source=RecordingSource(log)).publish(1))
    last_pause = max(i for i, call in enumerate(log) if call == "pause_generation")
    assert last_pause < log.index("broadcast 0")


def test_a_formed_group_is_used_again() -> None:
    async def run() -> int:
        source = RecordingSource()
        one = publisher(RecordingReceiver("a"), source=source)
        await one.connect()
        for version in (1, 2):
            await one.publish(version)
        return len(source.requests)

    assert asyncio.run(run()) == 1


@pytest.mark.parametrize("method", ["pause_generation", "update_weights_from_distributed"])
def test_a_receiver_that_fails_is_left_out_and_the_others_are_served(method: str) -> None:
    source = RecordingSource()
    well, ill = RecordingReceiver("well"), RecordingReceiver("ill", fails_at=[method])
    report = asyncio.run(publisher(ill, well, source=source).publish(3))
    assert report.receivers == ("well",)
    assert "ConnectionError" in report.quarantined["ill"]
    assert well.weight_version == 3
    assert well.calls[-1] == "continue_generation"
    assert [request.world_size for request in source.requests] == [3, 2]
    assert len({request.group_name for request in source.requests}) == 2


@pytest.mark.parametrize("part", ["pause", "update"])
def test_a_receiver_that_never_answers_ends_in_quarantine_within_the_deadline(
    part: str,
) -> None:
    well = RecordingReceiver("well")
    report = asyncio.run(publisher(StuckFake("stuck", part), well).publish(3))
    assert report.receivers == ("well",)
    assert "TimeoutError" in report.quarantined["stuck"]


def test_when_nobody_is_left_a_named_error_says_who_and_why() -> None:
    receiver = RecordingReceiver("only", fails_at=["pause_generation"])
    with pytest.raises(PublishError, match="at least one receiver") as caught:
        asyncio.run(publisher(receiver).publish(1))
    assert caught.value.receivers == ("only",)


def test_a_receiver_that_holds_a_part_of_an_update_does_not_generate_again() -> None:
    receiver = RecordingReceiver("torn")
    one = publisher(receiver, source=RecordingSource(fails_at_bucket=1))
    with pytest.raises(PublishError, match="the trainer must broadcast"):
        asyncio.run(one.publish(1))
    assert "continue_generation" not in receiver.calls
    assert one.quarantined == {"torn": "holds a part of an update"}


def test_a_failure_before_the_first_byte_lets_receivers_generate_again() -> None:
    class NoPlanAfterPause(RecordingSource):
        async def broadcast_bucket(self, index: int) -> BucketTiming:
            raise AssertionError("not reached")

    well, ill = RecordingReceiver("well"), RecordingReceiver("ill", fails_at=["pause_generation"])
    well.fails_at = {"init_weights_group"}
    with pytest.raises(PublishError):
        asyncio.run(publisher(well, ill, source=NoPlanAfterPause()).publish(1))
    assert well.weight_version is None


def test_a_rejoined_receiver_is_paused_until_it_holds_the_newest_weights() -> None:
    async def run() -> RecordingReceiver:
        one = publisher(
            RecordingReceiver("a", fails_at=["pause_generation"]), RecordingReceiver("b")
        )
        await one.publish(1)
        fresh = RecordingReceiver("a")
        await one.rejoin(fresh)
        assert fresh.calls == ["pause_generation"]
        report = await one.publish(2)
        assert report.receivers == ("a", "b")
        assert report.quarantined == {}
        return fresh

    fresh = asyncio.run(run())
    assert fresh.weight_version == 2
    assert fresh.calls[-1] == "continue_generation"


def held(name: str, *shape: int, dtype: str = "float32") -> TensorSpec:
    return TensorSpec(name=name, dtype=dtype, shape=shape)


def test_unknown_missing_and_other_weights_are_named_before_a_byte_is_sent() -> None:
    source = RecordingSource()
    receiver = IndexedFake([held("a", 2, 3, dtype="bfloat16"), held("b", 5), held("extra", 1)])
    with pytest.raises(ManifestMismatchError) as caught:
        asyncio.run(publisher(receiver, source=source).publish(1))
    assert caught.value.unknown == ("c",)
    assert caught.value.missing == ("extra",)
    assert caught.value.different == (
        "a: float32 [2, 3], bfloat16 [2, 3]",
        "b: float32 [4], float32 [5]",
    )
    assert not [call for call in source.log if call.startswith("broadcast")]


@pytest.mark.parametrize("knows", [True, False])
def test_the_number_of_updated_weights_is_the_number_expected(knows: bool) -> None:
    index = [held(name, *value.shape) for name, value in WEIGHTS.items()]
    receiver = IndexedFake(index if knows else None)
    source = RecordingSource()
    report = asyncio.run(publisher(receiver, source=source).publish(1))
    assert report.receivers == ("indexed",)
    assert [name for bucket in source.plan.buckets for name in bucket.names] == [*WEIGHTS]


def test_other_bytes_than_sent_are_found_and_quarantined() -> None:
    report = asyncio.run(publisher(CorruptFake("corrupt"), RecordingReceiver("b")).publish(1))
    assert report.receivers == ("b",)
    assert "other bytes" in report.quarantined["corrupt"]


def test_a_pause_that_takes_polls_is_waited_for() -> None:
    receiver = DrainingFake("draining")
    report = asyncio.run(publisher(receiver).publish(1))
    assert receiver.num_polls == 3
    assert report.receivers == ("draining",)


class AnnouncingFake(RecordingReceiver):
    """Tells when it is paused."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.is_paused = asyncio.Event()

    async def pause_generation(self) -> None:
        await super().pause_generation()
        self.is_paused.set()


def test_members_leave_a_group_together() -> None:
    """With nccl nobody has left before all members leave."""

    async def run() -> list[str]:
        together, left = asyncio.Barrier(2), list[str]()

        class LeavingSource(RecordingSource):
            async def close_weights_group(self) -> None:
                await together.wait()
                left.append("source")

        class LeavingReceiver(RecordingReceiver):
            async def destroy_weights_group(self, group_name: str) -> None:
                if "continue_generation" in self.calls:
                    await together.wait()
                    left.append("receiver")

        one = publisher(LeavingReceiver("a"), source=LeavingSource())
        await one.publish(1)
        await one.aclose()
        return left

    assert sorted(asyncio.run(run())) == ["receiver", "source"]


def test_cancelling_a_publish_resumes_untouched_receivers() -> None:
    async def run() -> RecordingReceiver:
        well = AnnouncingFake("well")
        one = XcclPublisher(RecordingSource(), [well, StuckFake("stuck", "pause")])
        async with asyncio.TaskGroup() as group:
            task = group.create_task(one.publish(1))
            await well.is_paused.wait()
            task.cancel()
        return well

    assert asyncio.run(run()).calls[-1] == "continue_generation"


def test_state_says_how_the_last_publish_ended() -> None:
    one = publisher(RecordingReceiver("a"))
    assert one.state is WindowState.IDLE
    asyncio.run(one.publish(1))
    assert one.state is WindowState.DONE


def test_receivers_need_unique_names() -> None:
    with pytest.raises(ValueError, match="receivers must have unique names"):
        publisher(RecordingReceiver("a"), RecordingReceiver("a"))


@pytest.mark.parametrize(
    ("field", "value"),
    [("backend", "mpi"), ("pause_deadline_s", 0.0), ("num_verified_tensors", -1)],
)
def test_a_config_out_of_range_is_refused_by_name(field: str, value: object) -> None:
    with pytest.raises(ValueError, match=f"{field} must be"):
        PublisherConfig(**{field: value})  # pyright: ignore[reportArgumentType]
