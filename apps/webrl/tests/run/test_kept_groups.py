"""Finished groups over any number of kills: what a resume trains on, runs again, and leaves alone."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from awrl_pixelstore import PixelStoreConfig, PixelStoreCore
from awrl_rollout import (
    BatchTimeoutError,
    ControllerConfig,
    EpisodeRecord,
    EpisodeRequest,
    ExecutorStatistics,
    Outcome,
    RolloutController,
    VirtualClock,
)
from awrl_rollout.testing import settle
from awrl_staleness import StalenessConfig, StalenessManager
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from webrl.rollout.batch_source import GroupFilter
from webrl.rollout.task_stream import TaskStream, TaskStreamState
from webrl.rollout.trajectory import EpisodeTask, ImageRef, Step, Trajectory
from webrl.run.kept_groups import KeptGroups
from webrl.tasks import Task
from webrl.training.step_loop import Progress

NUM_MEMBERS = 2
PICK = st.integers(0, 1000)


class Stream(TaskStream):
    """A task order that remembers which groups are over."""

    over: frozenset[int] = frozenset()

    def finish(self, group_id: str) -> None:
        super().finish(group_id)
        self.over |= {int(group_id)}


def make_stream(*, group_size: int = NUM_MEMBERS, seed: int = 0) -> Stream:
    tasks = [
        Task(suite="s", name=f"t{number}", url="/", goal="g", answer="a", start_script="SEED")
        for number in range(3)
    ]
    return Stream(tasks, num_seeds=4, group_size=group_size, seed=seed)


class Store:
    """One shard as a client has it; reads wait while the gate is closed."""

    def __init__(self, run_id: str, max_bytes: int = 2**20) -> None:
        self.core = PixelStoreCore(PixelStoreConfig(max_bytes=max_bytes), run_id=run_id)
        self.gate = asyncio.Event()
        self.gate.set()

    async def get_many_async(self, keys: Sequence[str]) -> list[Any]:
        await self.gate.wait()
        return self.core.get_many(keys)

    async def put_many_async(self, images: Sequence[bytes], *, trajectory_id: str) -> list[str]:
        return self.core.put_many(images, trajectory_id=trajectory_id)

    async def release_async(self, *trajectory_ids: str) -> int:
        return self.core.release(*trajectory_ids)


class SlotsOfTheTest:
    """A worker whose episodes end when the test says so."""

    name, num_slots = "w", 100

    def __init__(self) -> None:
        self.running: dict[str, EpisodeRequest] = {}
        self._records: dict[str, EpisodeRecord] = {}
        self._tell: Callable[[str], None] = lambda name: None

    def subscribe(self, on_completion: Callable[[str], None]) -> None:
        self._tell = on_completion

    def end(self, record: EpisodeRecord) -> None:
        del self.running[record.episode_id]
        self._records[record.episode_id] = record
        self._tell(self.name)

    async def submit(self, requests: Sequence[EpisodeRequest]) -> None:
        self.running |= {request.episode_id: request for request in requests}

    async def take_finished(self, acknowledged: Sequence[str]) -> list[EpisodeRecord]:
        for episode_id in acknowledged:
            self._records.pop(episode_id, None)
        return list(self._records.values())

    async def cancel(self, episode_ids: Sequence[str]) -> None:
        for episode_id in episode_ids:
            self.running.pop(episode_id, None)

    async def pause(self) -> None: ...

    async def resume(self) -> None: ...

    async def statistics(self) -> ExecutorStatistics:
        raise AssertionError


def screenshot(text: str) -> bytes:
    return b"\xff\xd8\xff\xe0" + text.encode().ljust(60, b".")


def record_of(
    request: EpisodeRequest, key: str, *, reward: float, versions: Sequence[int]
) -> EpisodeRecord:
    assert isinstance(request.payload, EpisodeTask)
    step = Step(
        prompt_ids=[1, 2],
        output_ids=[3] * len(versions),
        behavior_logprobs=[-0.1] * len(versions),
        versions=list(versions),
        images=[ImageRef(key=key, height=2, width=2)],
        reply="r",
        action="a",
        is_valid=True,
        events=[],
        generate_s=0.0,
        environment_s=0.0,
    )
    trajectory = Trajectory(
        task=request.payload.task,
        seed=request.payload.seed,
        goal="g",
        outcome="success" if reward else "failure",
        ending="answered",
        reward=reward,
        raw_reward=reward,
        steps=[step],
        reset_s=0.0,
    )
    return EpisodeRecord(
        episode_id=request.episode_id,
        group_id=request.group_id,
        member=request.member,
        outcome=Outcome.SUCCESS if reward else Outcome.FAILURE,
        payload=trajectory,
        reward=reward,
        oldest_version=trajectory.oldest_version,
        newest_version=trajectory.newest_version,
    )


async def at_once(function: Callable[..., object], *args: object) -> object:
    return function(*args)


@dataclass
class Checkpoint:
    """What a resume goes on from; the weights themselves are not of interest here."""

    progress: Progress = field(default_factory=Progress)
    stream: TaskStreamState | None = None
    over: frozenset[int] = frozenset()
    trained: frozenset[str] = frozenset()


class KilledRuns(RuleBasedStateMachine):
    @initialize(eta=st.integers(0, 2), batch=st.sampled_from([2, 4]))
    def begin(self, eta: int, batch: int) -> None:
        self.limits = StalenessConfig(
            max_concurrent=6, consumer_batch_size=batch, max_off_policyness=eta
        )
        self.folder = tempfile.TemporaryDirectory()
        self.lives = itertools.count()
        self.checkpoint = Checkpoint()
        self.num_incomplete = 0
        self.written: dict[str, int] = {}
        self.start()

    def start(self) -> None:
        """A process starts in the run's folder, and goes on from the newest checkpoint."""
        saved, self.clock = self.checkpoint, VirtualClock()
        self.runner = self.clock.new_runner()
        self.store = Store(f"run{next(self.lives)}")
        self.stream, self.progress = make_stream(), replace(saved.progress)
        if saved.stream is not None:
            assert self.stream.restore(saved.stream)
        self.stream.over, self.trained = saved.over, set(saved.trained)
        self.path = Path(self.folder.name) / "groups"
        self.kept = KeptGroups(self.path, self.stream, self.store, at_once)
        self.filter = GroupFilter(self.kept, on_accepted=self.accepted)
        self.worker = SlotsOfTheTest()
        self.manager = StalenessManager(self.limits, version=self.progress.version)
        self.controller = RolloutController(
            [self.worker],
            self.manager,
            source=self.kept.next_group,
            config=ControllerConfig(episode_deadline_s=None),
            accept_group=self.filter.accept,
            on_discarded=self.filter.discarded,
            on_group_dropped=self.filter.group_dropped,
            clock=self.clock,
        )
        self.unwritten: dict[str, int] = {}
        self.restore()
        self.runner.run(self.controller.__aenter__())
        self.call(self.start_writing)

    def start_writing(self) -> None:
        self.writing = asyncio.get_running_loop().create_task(self.kept.keep_writing())

    def restore(self) -> None:
        due = {
            name for name in self.written if self.stream.is_due(int(name)) and self.is_valid(name)
        }
        expected = min(len(due) * NUM_MEMBERS, self.limits.budget)
        count = self.runner.run(self.kept.restore(self.progress, self.controller))
        assert count <= expected
        assert count == expected or self.num_incomplete > 1
        # Budget, slots and leases are those of a run in which these groups wait.
        seen = self.manager.statistics()
        assert (seen.num_running, seen.num_reserved, seen.num_queued) == (0, 0, count)
        assert seen.capacity.bounds["staleness"] == self.limits.budget - count
        assert self.store.core.statistics().num_trajectories == count
        names = {path.stem for path in self.path.glob("*")}
        assert len(names) * NUM_MEMBERS == count
        assert names <= due
        self.written = {name: self.written[name] for name in names}

    def is_valid(self, name: str) -> bool:
        return self.written[name] <= self.progress.version

    def accepted(self, records: Sequence[EpisodeRecord]) -> None:
        self.kept.keep(records)
        name, newest = records[0].group_id, max(item.newest_version or 0 for item in records)
        self.written.pop(name, None)
        (self.written if self.store.gate.is_set() else self.unwritten)[name] = newest

    def call(self, function: Callable[[], object]) -> None:
        async def step() -> None:
            function()
            await settle()

        self.runner.run(step())

    # -- what may happen

    @rule(count=st.integers(1, 4), rewards=st.lists(st.booleans(), min_size=1, max_size=3))
    def end_episodes(self, count: int, rewards: list[bool]) -> None:
        for number, key in enumerate(list(self.worker.running)[:count]):
            self.end_episode(key, float(rewards[number % len(rewards)]))

    @rule(index=PICK, reward=st.booleans())
    def end_one(self, index: int, reward: bool) -> None:
        if running := list(self.worker.running):
            self.end_episode(running[index % len(running)], float(reward))

    def end_episode(self, episode_id: str, reward: float) -> None:
        request = self.worker.running[episode_id]
        image = screenshot(f"{request.group_id} {episode_id}" * (request.member % 2))
        key = self.store.core.put(image, trajectory_id=episode_id)
        versions = (request.weight_version, self.manager.version)
        record = record_of(request, key, reward=reward, versions=versions)
        self.call(lambda: self.worker.end(record))

    @rule(is_open=st.booleans())
    def gate(self, is_open: bool) -> None:
        """The disk, or the store, is slow: groups wait to be written."""
        self.call(self.store.gate.set if is_open else self.store.gate.clear)
        for name in list(self.unwritten) if is_open else ():
            # What was trained on meanwhile has no screenshots any more.
            is_there = (self.path / f"{name}.group").exists()
            assert is_there or int(name) in self.stream.over
            newest = self.unwritten.pop(name)
            self.written |= {name: newest} if is_there else {}

    @rule(ending=st.sampled_from(["published", "published", "skipped", "killed"]))
    def step(self, ending: str) -> None:
        size = self.limits.consumer_batch_size
        try:
            batch = self.runner.run(self.controller.prepare_batch(size, timeout_s=0.01))
        except BatchTimeoutError:
            return
        self.filter.taken(batch)
        for record in (record for group in batch for record in group.trainable):
            assert isinstance(record.payload, Trajectory)
            assert record.episode_id not in self.trained
            newest = record.payload.newest_version
            assert (
                newest
                <= self.manager.version
                <= record.payload.oldest_version + (self.limits.max_off_policyness)
            )
            assert not self.store.core.missing(record.payload.image_keys)
            self.trained.add(record.episode_id)
        if ending == "killed":
            self.kill()
            return
        if ending == "published":
            self.progress.version += 1
            self.controller.advance(self.progress.version)
        else:
            self.controller.release_budget()
        done = [record.episode_id for group in batch for record in group.records]
        self.store.core.release(*done, *self.filter.take_dropped())
        self.progress.num_steps += 1
        self.call(lambda: None)

    @precondition(lambda self: self.progress.version != self.kept_version)
    @rule(is_complete=st.booleans())
    def save(self, is_complete: bool) -> None:
        """A checkpoint is begun; a kill may come before it is complete."""
        saved = Checkpoint(
            progress=replace(self.progress),
            stream=self.stream.state(),
            over=self.stream.over,
            trained=frozenset(self.trained),
        )
        self.kept.note_save(self.progress.version)
        self.num_incomplete += 1
        if is_complete:
            self.checkpoint, self.num_incomplete = saved, 0

    @property
    def kept_version(self) -> int:
        return self.checkpoint.progress.version

    @rule(index=PICK, how=st.sampled_from(["cut", "flip", "remove", "partial"]))
    def damage(self, index: int, how: str) -> None:
        """A machine that goes down may leave less than was written."""
        files = sorted(self.path.glob("*.group"))
        if not files:
            return
        path = files[index % len(files)]
        data = path.read_bytes()
        if how == "partial":
            path.with_name(f".{path.name}.partial").write_bytes(data)
            return
        self.written.pop(path.stem, None)
        if how == "remove":
            path.unlink()
        else:
            cut = index % len(data)
            path.write_bytes(data[:cut] + (b"" if how == "cut" else bytes([data[cut] ^ 1])))

    @rule()
    def kill(self) -> None:
        self.stop()
        self.start()

    # -- what always holds

    @invariant()
    def no_task_is_left_out_or_twice_in_line(self) -> None:
        if hasattr(self, "stream"):
            state = self.stream.state()
            assert sorted([*self.stream.over, *state.again]) == list(range(state.next_index))

    def stop(self) -> None:
        self.writing.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            self.runner.run(asyncio.wait_for(self.writing, 1.0))
        self.runner.run(self.controller.aclose())
        self.runner.run(self.controller.__aexit__(None, None, None))
        self.runner.close()

    def teardown(self) -> None:
        if not hasattr(self, "controller"):
            return
        self.stop()
        self.folder.cleanup()


TestKilledRuns = pytest.mark.requirement("bounded-staleness")(KilledRuns.TestCase)
TestKilledRuns.settings = settings(max_examples=30, stateful_step_count=40, deadline=None)


def resumed(
    folder: Path, stream: TaskStream, store: Store, *, num_steps: int = 0
) -> tuple[int, int]:
    """Return how many episodes a run takes over, and how many of them its totals lack."""
    limits = StalenessConfig(max_concurrent=6, consumer_batch_size=4, max_off_policyness=1)
    controller = RolloutController([], StalenessManager(limits), source=stream.next_group)
    kept, late = KeptGroups(folder, stream, store, at_once), list[int]()
    progress = Progress(num_steps=num_steps)
    return asyncio.run(kept.restore(progress, controller, late.append)), sum(late)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Hold two groups of two episodes with two screenshots, finished before the first update."""

    async def write() -> None:
        stream, store = make_stream(), Store("before")
        kept = KeptGroups(tmp_path, stream, store)
        for _ in range(2):
            requests = stream.next_group()
            keys = [
                store.core.put(screenshot(item.episode_id), trajectory_id=item.episode_id)
                for item in requests
            ]
            kept.keep(
                [
                    record_of(item, key, reward=float(item.member), versions=[0])
                    for item, key in zip(requests, keys, strict=True)
                ]
            )
        kept.close()
        await kept.keep_writing()

    asyncio.run(write())
    return tmp_path


def test_finished_groups_go_on_with_their_screenshots_in_the_new_store(folder: Path) -> None:
    store = Store("after")
    assert resumed(folder, make_stream(), store) == (4, 4)
    assert store.core.statistics().num_entries == 4
    assert resumed(folder, make_stream(), Store("again"), num_steps=1) == (4, 0)


@pytest.mark.parametrize(
    ("stream", "max_bytes", "expected"),
    [
        (make_stream(group_size=3), 2**20, 0),
        (make_stream(seed=1), 2**20, 0),
        (make_stream(), 130, 2),
    ],
    ids=["another group size", "another order of tasks", "a store that is full"],
)
def test_a_group_that_does_not_fit_runs_again_and_holds_nothing(
    folder: Path, stream: Stream, max_bytes: int, expected: int
) -> None:
    store = Store("after", max_bytes)
    assert resumed(folder, stream, store)[0] == expected
    assert store.core.statistics().num_trajectories == expected
    assert stream.next_group()[0].group_id == str(expected // 2)
    assert len(list(folder.iterdir())) == expected // 2


def test_a_damaged_file_is_a_warning(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    (folder / "1.group").write_bytes((folder / "1.group").read_bytes()[:-1])
    (folder / "7.group").mkdir()
    stream = make_stream()
    assert resumed(folder, stream, Store("after"))[0] == 2
    assert "1.group is no finished group, its tasks run again: its bytes are not" in caplog.text
    assert stream.next_group()[0].group_id == "1"


def test_a_disk_that_refuses_costs_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "groups").write_text("a file")
    store, stream = Store("run"), make_stream()
    requests = stream.next_group()
    key = store.core.put(screenshot("s"), trajectory_id=requests[0].episode_id)
    kept = KeptGroups(tmp_path / "groups", stream, store)
    kept.keep([record_of(requests[0], key, reward=1.0, versions=[0])])
    kept.close()
    asyncio.run(kept.keep_writing())
    assert "group 0 is not kept" in caplog.text
    kept.finish("0")
