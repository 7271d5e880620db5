"""The publish window with receivers that only remember."""

from __future__ import annotations

import asyncio
import dataclasses
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Concatenate, ParamSpec, TypeVar

import pytest
import torch
from awrl_trainer import (
    WHOLE,
    Bucket,
    CheckpointError,
    GroupMembership,
    PublisherConfig,
    PublishError,
    SnapshotWriter,
    TensorSpec,
    WeightPublisher,
    WeightReceiver,
    WeightSender,
    WeightSource,
    tensor_checksum,
)
from awrl_trainer.weights.sender import BucketTiming, GroupRequest
from hypothesis import given
from hypothesis import strategies as st

WEIGHTS = {"a": torch.zeros(2, 3), "b": torch.ones(4), "c": torch.ones(1)}


ParamsT = ParamSpec("ParamsT")
ResultT = TypeVar("ResultT")


class RecordingSender(WeightSender):
    """Sends nothing, and remembers the order of calls in a shared log."""

    def __init__(
        self,
        log: list[str] | None = None,
        *,
        fails_at_bucket: int | None = None,
        weights: Mapping[str, torch.Tensor] = WEIGHTS,
    ) -> None:
        super().__init__(list(weights.items()), dtype=None, bucket_bytes=18)
        self.log = [] if log is None else log
        self.requests: list[GroupRequest] = []
        self.fails_at_bucket = fails_at_bucket

    def bind_group(self, request: GroupRequest) -> int:
        self.requests.append(request)
        return 1

    def join_group(self) -> None:
        self.log.append("join")

    def broadcast_bucket(self, index: int) -> BucketTiming:
        self.log.append(f"broadcast {index}")
        if index == self.fails_at_bucket:
            raise PublishError("no memory", phase="broadcast")
        return BucketTiming(gather_s=0.25, broadcast_s=0.5)

    def close_group(self, *, is_broken: bool = False) -> None:
        self.log.append("close")

    def write_snapshot(self, writer: SnapshotWriter, version: int) -> Path | None:
        self.log.append("snapshot")
        return super().write_snapshot(writer, version)


class InlineSource(WeightSource):
    """Calls the sender at once, by the name of the method: a subclass may do otherwise."""

    def __init__(self, sender: RecordingSender) -> None:
        self.sender = sender

    async def send(
        self,
        method: Callable[Concatenate[WeightSender, ParamsT], ResultT],
        *args: ParamsT.args,
        **kwargs: ParamsT.kwargs,
    ) -> ResultT:
        return getattr(self.sender, method.__name__)(*args, **kwargs)


class RecordingReceiver(WeightReceiver):
    """Answers at once, remembers each call, and raises `ConnectionError` in the methods of `fails_at`."""

    def __init__(self, name: str, *, fails_at: Sequence[str] = ()) -> None:
        self._name = name
        self.fails_at = set(fails_at)
        self.calls: list[str] = []
        self.weight_version: int | None = None

    @property
    def name(self) -> str:
        return self._name

    @property
    def num_ranks(self) -> int:
        return 1

    async def weight_index(self) -> Sequence[TensorSpec] | None:
        return None

    async def init_weights_group(self, membership: GroupMembership) -> None:
        self._record("init_weights_group")

    async def pause_generation(self) -> None:
        self._record("pause_generation")

    async def update_weights_from_distributed(
        self, bucket: Bucket, *, group_name: str, weight_version: int | None
    ) -> None:
        self._record(f"update_weights_from_distributed {bucket.index}")
        if weight_version is not None:
            self.weight_version = weight_version

    async def update_weights_from_disk(self, path: str, *, weight_version: int) -> None:
        names = [name for name in sorted(os.listdir(path)) if name.endswith(".safetensors")]
        self._record(f"update_weights_from_disk {' '.join(names)}")
        self.weight_version = weight_version

    async def continue_generation(self) -> None:
        self._record("continue_generation")

    async def destroy_weights_group(self, group_name: str) -> None:
        self._record("destroy_weights_group")

    async def weight_checksums(self, names: Sequence[str]) -> Mapping[str, str] | None:
        return None

    def _record(self, call: str) -> None:
        self.calls.append(call)
        if call.split()[0] in self.fails_at:
            raise ConnectionError(f"{self._name} refuses {call}")


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


class OneWrongFake(RecordingReceiver):
    """Holds other bytes in one of its weights."""

    def __init__(self, wrong: str) -> None:
        super().__init__("a")
        self._wrong = wrong

    async def weight_checksums(self, names: Sequence[str]) -> Mapping[str, str]:
        self._record("weight_checksums")
        right = {name: tensor_checksum(WEIGHTS[name]) for name in names}
        return right | dict.fromkeys({self._wrong} & right.keys(), "0")


class WholeFake(RecordingReceiver):
    """Gives one checksum of all that it holds, and obeys an update or only says so."""

    def __init__(self, held: bytes) -> None:
        super().__init__("a")
        self.held = held
        self.offered = held
        self.obeys = True

    async def update_weights_from_distributed(
        self, bucket: Bucket, *, group_name: str, weight_version: int | None
    ) -> None:
        self._record("update_weights_from_distributed")
        self.held = self.offered if self.obeys else self.held

    async def weight_checksums(self, names: Sequence[str]) -> Mapping[str, str]:
        self._record("weight_checksums")
        return {WHOLE: self.held.hex()}


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


def publisher(*receivers: WeightReceiver, sender: RecordingSender | None = None) -> WeightPublisher:
    return WeightPublisher(InlineSource(sender or RecordingSender()), receivers, SHORT)


@pytest.mark.requirement("pause-around-the-copy")
def test_the_window_pauses_first_switches_with_the_last_bucket_and_resumes_last() -> None:
    log: list[str] = []
    receiver = LoggingReceiver("a", log)
    report = asyncio.run(publisher(receiver, sender=RecordingSender(log)).publish(7))
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
    asyncio.run(publisher(*receivers, sender=RecordingSender(log)).publish(1))
    last_pause = max(i for i, call in enumerate(log) if call == "pause_generation")
    assert last_pause < log.index("broadcast 0")


def test_a_formed_group_is_used_again() -> None:
    async def run() -> int:
        sender = RecordingSender()
        one = publisher(RecordingReceiver("a"), sender=sender)
        await one.connect()
        for version in (1, 2):
            await one.publish(version)
        return len(sender.requests)

    assert asyncio.run(run()) == 1


@pytest.mark.parametrize("method", ["pause_generation", "update_weights_from_distributed"])
def test_a_receiver_that_fails_is_left_out_and_the_others_are_served(method: str) -> None:
    sender = RecordingSender()
    well, ill = RecordingReceiver("well"), RecordingReceiver("ill", fails_at=[method])
    report = asyncio.run(publisher(ill, well, sender=sender).publish(3))
    assert report.receivers == ("well",)
    assert "ConnectionError" in report.quarantined["ill"]
    assert well.weight_version == 3
    assert well.calls[-1] == "continue_generation"
    assert [request.world_size for request in sender.requests] == [3, 2]
    assert len({request.group_name for request in sender.requests}) == 2


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
    receiver = RecordingReceiver("half")
    one = publisher(receiver, sender=RecordingSender(fails_at_bucket=1))
    with pytest.raises(PublishError, match="the trainer must broadcast"):
        asyncio.run(one.publish(1))
    assert "continue_generation" not in receiver.calls
    assert one.quarantined == {"half": "holds a part of an update"}


def test_a_failure_before_the_first_byte_lets_receivers_generate_again() -> None:
    class NoBroadcast(RecordingSender):
        def broadcast_bucket(self, index: int) -> BucketTiming:
            raise AssertionError("not reached")

    well, ill = RecordingReceiver("well"), RecordingReceiver("ill", fails_at=["pause_generation"])
    well.fails_at = {"init_weights_group"}
    with pytest.raises(PublishError):
        asyncio.run(publisher(well, ill, sender=NoBroadcast()).publish(1))
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
    sender = RecordingSender()
    receiver = IndexedFake([held("a", 2, 3, dtype="bfloat16"), held("b", 5), held("extra", 1)])
    with pytest.raises(PublishError) as caught:
        asyncio.run(publisher(receiver, sender=sender).publish(1))
    assert (
        "unknown to the receiver: 'c'; not sent: 'extra'; other dtype or shape:"
        " 'a: float32 [2, 3], bfloat16 [2, 3]', 'b: float32 [4], float32 [5]'"
    ) in str(caught.value)
    assert caught.value.receivers == ("indexed",)
    assert not [call for call in sender.log if call.startswith("broadcast")]


@pytest.mark.parametrize("knows", [True, False])
def test_the_number_of_updated_weights_is_the_number_expected(knows: bool) -> None:
    index = [held(name, *value.shape) for name, value in WEIGHTS.items()]
    receiver = IndexedFake(index if knows else None)
    sender = RecordingSender()
    report = asyncio.run(publisher(receiver, sender=sender).publish(1))
    assert report.receivers == ("indexed",)
    assert [name for bucket in sender.plan.buckets for name in bucket.names] == [*WEIGHTS]


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

        class LeavingSource(InlineSource):
            async def send(
                self,
                method: Callable[Concatenate[WeightSender, ParamsT], ResultT],
                *args: ParamsT.args,
                **kwargs: ParamsT.kwargs,
            ) -> ResultT:
                if method.__name__ == "close_group":
                    await together.wait()
                    left.append("source")
                return await super().send(method, *args, **kwargs)

        class LeavingReceiver(RecordingReceiver):
            async def destroy_weights_group(self, group_name: str) -> None:
                if "continue_generation" in self.calls:
                    await together.wait()
                    left.append("receiver")

        source = LeavingSource(RecordingSender())
        one = WeightPublisher(source, [LeavingReceiver("a")], SHORT)
        await one.publish(1)
        await one.aclose()
        return left

    assert sorted(asyncio.run(run())) == ["receiver", "source"]


def test_cancelling_a_publish_resumes_untouched_receivers() -> None:
    async def run() -> RecordingReceiver:
        well = AnnouncingFake("well")
        one = WeightPublisher(InlineSource(RecordingSender()), [well, StuckFake("stuck", "pause")])
        async with asyncio.TaskGroup() as group:
            task = group.create_task(one.publish(1))
            await well.is_paused.wait()
            task.cancel()
        return well

    assert asyncio.run(run()).calls[-1] == "continue_generation"


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


def on_disk(root: Path, *receivers: WeightReceiver, sender: RecordingSender) -> WeightPublisher:
    writer = SnapshotWriter(root, keep=1, shard_bytes=30)
    config = dataclasses.replace(SHORT, snapshots=writer)
    return WeightPublisher(InlineSource(sender), receivers, config)


def test_a_snapshot_of_several_files_is_loaded_in_a_pause_that_its_writing_does_not_lengthen(
    tmp_path: Path,
) -> None:
    log: list[str] = []
    receiver = LoggingReceiver("a", log)
    report = asyncio.run(on_disk(tmp_path, receiver, sender=RecordingSender(log)).publish(7))
    files = "model-00001-of-00002.safetensors model-00002-of-00002.safetensors"
    assert log == [
        "snapshot",
        "pause_generation",
        f"update_weights_from_disk {files}",
        "continue_generation",
    ]
    assert (receiver.weight_version, report.receivers) == (7, ("a",))
    assert report.num_bytes == 4 * 11


def test_a_server_that_refuses_a_snapshot_stays_paused_and_the_others_load_it_once(
    tmp_path: Path,
) -> None:
    ill = RecordingReceiver("ill", fails_at=["update_weights_from_disk"])
    well, fresh = RecordingReceiver("well"), RecordingReceiver("ill")

    async def run() -> None:
        one = on_disk(tmp_path, ill, well, sender=RecordingSender())
        report = await one.publish(1)
        assert report.receivers == ("well",)
        assert "ConnectionError" in report.quarantined["ill"]
        await one.rejoin(fresh)
        assert (await one.publish(2)).receivers == ("ill", "well")

    asyncio.run(run())
    assert ill.calls[-1].startswith("update_weights_from_disk")
    loads = [call for call in well.calls if call.startswith("update_weights_from_disk")]
    assert len(loads) == 2
    assert fresh.calls[-1] == "continue_generation"


def test_a_server_with_other_bytes_than_the_snapshot_is_noticed(tmp_path: Path) -> None:
    one = on_disk(tmp_path, CorruptFake("corrupt"), sender=RecordingSender())
    assert "other bytes" in asyncio.run(one.publish(1)).quarantined["corrupt"]


def test_a_disk_that_refuses_the_snapshot_pauses_nobody(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    receiver = RecordingReceiver("a")
    with pytest.raises(CheckpointError, match="snapshot of version 1 must be writable"):
        asyncio.run(on_disk(tmp_path / "file", receiver, sender=RecordingSender()).publish(1))
    assert receiver.calls == []


def test_a_trainer_that_gives_no_checksums_has_published_all_the_same() -> None:
    class Silent(RecordingSender):
        def checksums(self, names: Sequence[str]) -> dict[str, str]:
            raise TimeoutError

    report = asyncio.run(publisher(CorruptFake("a"), sender=Silent()).publish(1))
    assert report.receivers == ("a",)
    assert report.unverified == "TimeoutError()"


@pytest.mark.parametrize("wrong", sorted(WEIGHTS))
def test_a_receiver_with_one_wrong_weight_generates_nothing_under_the_new_version(
    wrong: str,
) -> None:
    receiver = OneWrongFake(wrong)
    report = asyncio.run(publisher(receiver).publish(1))
    assert report.quarantined == {"a": f"verify: other bytes of ['{wrong}']"}
    assert receiver.calls[-1] == "weight_checksums"


def test_right_weights_are_verified_before_generation_goes_on() -> None:
    receiver = OneWrongFake("none of them")
    assert asyncio.run(publisher(receiver).publish(1)).receivers == ("a",)
    assert receiver.calls[-2:] == ["weight_checksums", "continue_generation"]


@given(st.lists(st.tuples(st.integers(0, 2), st.booleans()), max_size=8))
def test_an_update_that_a_server_only_says_it_took_is_noticed(
    publishes: list[tuple[int, bool]],
) -> None:
    """Each publish has new or earlier weights; a server is restarted with the first ones."""

    async def run() -> None:
        weight = torch.zeros(3)
        sender = RecordingSender(weights={"a": weight})
        first = weight.numpy().tobytes()
        receiver = WholeFake(first)
        one = publisher(receiver, sender=sender)
        await one.connect()
        for version, (value, obeys) in enumerate(publishes, start=1):
            weight.fill_(value)
            receiver.obeys, receiver.offered = obeys, weight.numpy().tobytes()
            report = await one.publish(version)
            is_right = receiver.held == receiver.offered
            assert (report.receivers == ("a",)) == is_right
            assert (receiver.calls[-1] == "continue_generation") == is_right
            if not is_right:
                receiver = WholeFake(first)
                await one.rejoin(receiver)

    asyncio.run(run())
