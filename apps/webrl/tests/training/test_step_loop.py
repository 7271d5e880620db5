"""The step loop: what counts as a version, and what is done for an update that changed nothing."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import cast

import pytest
from awrl_pixelstore import PixelStoreUnavailable
from awrl_rollout import RolloutBatch
from awrl_trainer import PublishReport, TrainRow, UpdateResult
from webrl.errors import EngineCallError, RunFailedError, WorkerLostError
from webrl.training.rows import PreparedBatch
from webrl.training.step_loop import PPOTrainer, Progress, StepConfig, keep_stepping


class Engines:
    """Ranks that say which version they hold after each update; a failed one may have risen too."""

    def __init__(self, calls: list[str], versions: Sequence[int | EngineCallError]) -> None:
        self._calls = calls
        self._versions = iter(versions)
        self.held = 6

    async def update(self, rows: Sequence[TrainRow]) -> UpdateResult:
        self._calls.append(f"update of {len(rows)} row")
        outcome = next(self._versions)
        if isinstance(outcome, EngineCallError):
            raise outcome
        self.held = outcome
        return UpdateResult(version=outcome, metrics={})

    async def version(self) -> int:
        return self.held


class Source:
    """Batches without groups: the rows come from the preparation."""

    def __init__(self, calls: list[str]) -> None:
        self._calls = calls
        self.is_dry = False

    async def prepare_batch(self, num_episodes: int, *, timeout_s: float) -> RolloutBatch:
        self._calls.append("collect")
        if self.is_dry:
            await asyncio.Event().wait()
        return RolloutBatch([], batch=0, version=0, is_short=False)

    def advance(self, version: int) -> None:
        self._calls.append(f"advance to {version}")

    def release_budget(self) -> None:
        self._calls.append("release budget")

    def take_dropped(self) -> list[str]:
        return ["dropped/0"]

    def describe(self) -> str:
        return "3 episodes are ready"

    async def metrics(self, seconds: float) -> dict[str, float]:
        return {"rollout/episodes_total": 4.0}


class Preparation:
    """Has a row in every batch, or none."""

    def __init__(self, calls: list[str]) -> None:
        self._calls = calls
        self.num_rows = 1
        self.num_lost: Iterator[int] = itertools.repeat(0)

    async def prepare(self, batch: RolloutBatch) -> PreparedBatch:
        lost = next(self.num_lost)
        rows = {f"0/{row}": [cast("TrainRow", None)] for row in range(lost, self.num_rows)}
        return PreparedBatch(members=[], advantages={}, rows=rows, num_lost_rows=lost)

    async def release(self, episode_ids: Sequence[str]) -> None:
        self._calls.append(f"release {', '.join(episode_ids)}")


class Weights:
    """Servers that take every version, or none of them does."""

    def __init__(self, calls: list[str], receivers: tuple[str, ...]) -> None:
        self._calls = calls
        self._receivers = receivers
        self.lock = asyncio.Lock()

    async def publish(self, version: int) -> PublishReport:
        self._calls.append(f"publish {version}")
        seconds = (
            *("handshake_s", "pause_s", "gather_s", "broadcast_s"),
            *("switch_s", "resume_s", "window_s", "verify_s"),
        )
        return PublishReport(
            version=version,
            receivers=self._receivers,
            quarantined={} if self._receivers else {"rollout/0": "gone"},
            num_bytes=1,
            unverified=None,
            **dict.fromkeys(seconds, 0.0),
        )


class Recorder:
    """Remembers the episodes of each update."""

    def __init__(self) -> None:
        self.updates: list[tuple[list[str], int]] = []

    async def note_batch(self, batch: PreparedBatch) -> None:
        return None

    def note_update(self, rows: Mapping[str, Sequence[TrainRow]], before: Progress) -> None:
        self.updates.append((list(rows), before.version))


class Loop:
    """A step loop over fakes."""

    def __init__(
        self,
        versions: Sequence[int | EngineCallError],
        receivers: tuple[str, ...] = ("rollout/0",),
    ) -> None:
        self.calls: list[str] = []
        self.preparation = Preparation(self.calls)
        self.engines = Engines(self.calls, versions)
        self.recorder = Recorder()
        self.progress = Progress(version=6, num_steps=8)
        self.source = Source(self.calls)
        self.stop = asyncio.Event()
        self.trainer = PPOTrainer(
            rollouts=self.source,
            preparation=self.preparation,
            engines=self.engines,
            weights=Weights(self.calls, receivers),
            recorder=self.recorder,
            config=StepConfig(batch_size=4, batch_timeout_s=9.0),
            progress=self.progress,
            stop=self.stop,
        )

    def step(self) -> dict[str, float]:
        [metrics] = self.steps(1)
        return metrics

    def steps(self, count: int) -> list[dict[str, float]]:
        async def run() -> list[dict[str, float] | None]:
            return [await self.trainer.step() for _ in range(count)]

        return [metrics for metrics in asyncio.run(run()) if metrics is not None]


def test_a_step_collects_updates_publishes_and_then_advances() -> None:
    loop = Loop([7])
    metrics = loop.step()
    assert loop.calls == [
        *("collect", "update of 1 row", "publish 7", "advance to 7"),
        "release dropped/0",
    ]
    assert (loop.progress.version, loop.progress.num_steps) == (7, 9)
    assert loop.progress.num_trained_episodes == 1
    assert loop.recorder.updates == [(["0/0"], 6)]
    assert metrics["weights/version"] == 7.0
    assert metrics["rollout/trained_total"] == 1.0


def test_the_version_counts_published_updates_only() -> None:
    loop = Loop([6, 7])
    first, second = loop.steps(2)  # first a gradient that was not finite: the ranks stay at 6
    assert loop.calls[:3] == ["collect", "update of 1 row", "release budget"]
    assert (first["weights/version"], second["weights/version"]) == (6, 7)
    assert (loop.progress.version, loop.progress.num_steps) == (7, 10)


def test_a_batch_without_a_row_wakes_no_rank_and_gives_its_budget_back() -> None:
    loop = Loop([])
    loop.preparation.num_rows = 0
    loop.step()
    assert loop.calls[:2] == ["collect", "release budget"]
    assert loop.progress.version == 6


def lost_in_an_update(*versions: int | EngineCallError, lost: Sequence[int]) -> Loop:
    """Return a loop with three rows, so many of which have lost their screenshots at each look."""
    loop = Loop([EngineCallError("PixelNotFound"), *versions])
    loop.preparation.num_rows = 3
    loop.preparation.num_lost = iter(lost)
    return loop


def test_screenshots_lost_while_ranks_compute_cost_their_rows_and_not_the_run() -> None:
    loop = lost_in_an_update(EngineCallError("PixelNotFound"), 7, lost=(0, 1, 2))
    metrics = loop.step()
    assert loop.calls == [
        *("collect", "update of 3 row", "update of 2 row", "update of 1 row"),
        *("publish 7", "advance to 7", "release dropped/0"),
    ]
    assert loop.recorder.updates == [(["0/2"], 6)]
    assert metrics["rollout/lost_rows"] == 2
    assert loop.progress.num_trained_episodes == 1


def test_an_update_that_has_lost_every_screenshot_is_skipped() -> None:
    loop = lost_in_an_update(lost=(0, 3))
    loop.step()
    assert loop.calls[:3] == ["collect", "update of 3 row", "release budget"]
    assert (loop.progress.version, loop.progress.num_trained_episodes) == (6, 0)


def test_screenshots_lost_after_an_optimizer_step_send_the_run_back_to_its_checkpoint() -> None:
    loop = lost_in_an_update(7, lost=(0, 1))
    loop.engines.held = 7
    with pytest.raises(PixelStoreUnavailable, match="in the middle of an update"):
        loop.step()
    assert loop.calls == ["collect", "update of 3 row"]


def test_what_fails_with_every_screenshot_there_or_with_a_rank_is_not_tried_again() -> None:
    loop = lost_in_an_update(7, lost=(1, 1))
    with pytest.raises(EngineCallError, match="PixelNotFound"):
        loop.step()
    loop = Loop([WorkerLostError("actor/0 is gone")])
    with pytest.raises(WorkerLostError):
        loop.step()
    assert loop.calls == ["collect", "update of 1 row"]


def test_weights_that_reach_no_server_end_the_run() -> None:
    loop = Loop([7], receivers=())
    with pytest.raises(RunFailedError, match="version 7 reached no rollout server"):
        loop.step()


def test_a_batch_that_is_awaited_is_given_up_at_once_when_the_run_ends() -> None:
    loop = Loop([7])
    loop.source.is_dry = True

    async def main() -> None:
        async with asyncio.TaskGroup() as group:
            step = group.create_task(loop.trainer.step())
            await asyncio.sleep(0.01)
            assert loop.trainer.describe() == "waiting for a batch: 3 episodes are ready"
            loop.stop.set()
        assert step.result() is None

    asyncio.run(main())
    assert loop.calls == ["collect"]
    assert (loop.progress.version, loop.progress.num_steps) == (6, 8)
    assert loop.progress.train_s > 0


def test_a_batch_that_is_there_is_trained_on_and_published_before_the_run_ends() -> None:
    loop = Loop([7])
    loop.stop.set()

    async def main() -> None:
        over: list[bool] = []
        await keep_stepping(
            loop.trainer, is_over=lambda: bool(over), after_step=partial(_note, over)
        )

    asyncio.run(main())
    assert loop.calls[:4] == ["collect", "update of 1 row", "publish 7", "advance to 7"]
    assert loop.progress.version == 7


async def _note(over: list[bool], metrics: dict[str, float]) -> None:
    over.append(bool(metrics))


def test_the_trained_share_is_of_all_episodes_of_the_run() -> None:
    assert Progress().trained_share == 0
    totals = {"rollout/episodes_total": 400.0}
    assert Progress(num_trained_episodes=96, totals=totals).trained_share == 0.24
