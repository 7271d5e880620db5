"""The step loop: what counts as a version, and what is done for an update that changed nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, cast

import pytest
from awrl_rollout import RolloutBatch
from awrl_trainer import PublishReport, UpdateResult
from webrl.cluster.scheduler import RayScheduler, WorkerHandle
from webrl.errors import RunFailedError
from webrl.rollout.batch_source import GroupFilter
from webrl.rollout.task_stream import TaskStream
from webrl.tasks import load_task
from webrl.training.step_loop import PPOTrainer, Progress, StepConfig


class Ranks:
    """A scheduler whose ranks say which version they hold after each update."""

    def __init__(self, calls: list[str], versions: Sequence[int]) -> None:
        self._calls = calls
        self._versions = iter(versions)

    async def async_call_engine(
        self, workers: Sequence[WorkerHandle], method: str, *args: object, timeout_s: float
    ) -> list[UpdateResult]:
        self._calls.append(method)
        return [UpdateResult(version=next(self._versions), metrics={})]


class Source:
    """Batches without groups: the rows come from a test."""

    def __init__(self, calls: list[str]) -> None:
        self._calls = calls

    async def prepare_batch(self, num_episodes: int, *, timeout_s: float) -> RolloutBatch:
        self._calls.append("collect")
        return RolloutBatch([], batch=0, version=0, is_short=False)

    def advance(self, version: int) -> None:
        self._calls.append(f"advanced to {version}")

    def release_budget(self) -> None:
        self._calls.append("budget released")

    async def metrics(self) -> dict[str, float]:
        return {}


class Pixels:
    """A store that misses nothing."""

    async def missing_async(self, keys: Sequence[str]) -> list[str]:
        return []

    async def release_many_async(self, episode_ids: Sequence[str]) -> None:
        return None


class TrainerOfRows(PPOTrainer):
    """Has a row in every batch, or none."""

    has_rows = True

    async def _rows(self, batch: Any, members: Any, advantages: Any) -> tuple[list[Any], int]:
        return ([Row()] if self.has_rows else []), 0


class Row:
    """All that the loop looks at."""

    row_id = "0/0#0"


def trainer_of(
    calls: list[str], versions: Sequence[int], receivers: tuple[str, ...] = ("rollout/0",)
) -> TrainerOfRows:
    async def publish(version: int) -> PublishReport:
        calls.append(f"publish {version}")
        return PublishReport(
            version=version,
            receivers=receivers,
            quarantined={} if receivers else {"rollout/0": "gone"},
            num_bytes=1,
            **dict.fromkeys(
                (
                    *("handshake_s", "pause_s", "gather_s", "broadcast_s"),
                    *("switch_s", "resume_s", "window_s", "verify_s"),
                ),
                0.0,
            ),
        )

    stream = TaskStream([load_task("miniwob/click-test")], num_seeds=9, group_size=4, seed=0)
    return TrainerOfRows(
        scheduler=cast("RayScheduler", Ranks(calls, versions)),
        ranks=[WorkerHandle(role="actor", rank=0, actor=None)],
        rollouts=Source(calls),
        filter_=GroupFilter(stream),
        publish=publish,
        weights_lock=asyncio.Lock(),
        pixels=cast("Any", Pixels()),
        processor=cast("Any", None),
        config=StepConfig(batch_size=4, batch_timeout_s=9.0),
        progress=Progress(version=6, num_steps=8),
    )


def test_a_step_collects_updates_publishes_and_then_advances() -> None:
    calls: list[str] = []
    trainer = trainer_of(calls, [7])
    metrics = asyncio.run(trainer.step())
    assert calls == ["collect", "update", "publish 7", "advanced to 7"]
    assert (trainer.progress.version, trainer.progress.num_steps) == (7, 9)
    assert metrics["weights/version"] == 7.0


def test_the_version_counts_published_updates_only() -> None:
    calls: list[str] = []
    trainer = trainer_of(calls, [6, 7])
    asyncio.run(trainer.step())  # a gradient that was not finite: the ranks stay at 6
    assert calls == ["collect", "update", "budget released"]
    assert (trainer.progress.version, trainer.progress.num_steps) == (6, 9)
    asyncio.run(trainer.step())
    assert (trainer.progress.version, trainer.progress.num_steps) == (7, 10)


def test_a_batch_without_a_row_wakes_no_rank_and_gives_its_budget_back() -> None:
    calls: list[str] = []
    trainer = trainer_of(calls, [])
    trainer.has_rows = False
    asyncio.run(trainer.step())
    assert calls == ["collect", "budget released"]
    assert trainer.progress.version == 6


def test_weights_that_reach_no_server_end_the_run() -> None:
    trainer = trainer_of([], [7], receivers=())
    with pytest.raises(RunFailedError, match="version 7 reached no rollout server"):
        asyncio.run(trainer.step())
