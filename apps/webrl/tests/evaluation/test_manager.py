"""The loop of the evaluation thread outlives whatever an evaluation or a restart raises."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from awrl_pixelstore import PixelNotFound
from awrl_rollout import RolloutError, ServerUnavailableError
from webrl.errors import EngineCallError, WorkerLostError
from webrl.evaluation.manager import keep_evaluating
from webrl.evaluation.run_evaluation import PolicyCheckpoint

FAILURES = [
    RolloutError("refused"),
    ServerUnavailableError("gone"),
    EngineCallError("hangs"),
    WorkerLostError("died"),
    PixelNotFound("an image", found={}),
    OSError("disk"),
    TimeoutError("late"),
    KeyError("a bug"),
    StopAsyncIteration(),
    ExceptionGroup("several", [EngineCallError("hangs"), KeyError("a bug")]),
    asyncio.CancelledError("a future that somebody else cancelled"),
]


def complete(root: Path, version: int) -> None:
    folder = root / f"version_{version}"
    folder.mkdir()
    (folder / ".save_complete").write_text('{"files": {}}')


class Role:
    """An evaluation role that fails as told, with a clock that moves when it is slept on."""

    def __init__(self, failures: list[BaseException], repairs: list[BaseException]) -> None:
        self.failures = failures
        self.repairs = repairs
        self.tried: list[int] = []
        self.evaluated: list[int] = []
        self.now = 0.0
        self.num_idle = 0

    async def evaluate(self, checkpoint: PolicyCheckpoint) -> None:
        self.tried.append(checkpoint.version)
        if self.failures:
            raise self.failures.pop(0)
        self.evaluated.append(checkpoint.version)

    async def repair(self) -> None:
        if self.repairs:
            raise self.repairs.pop(0)

    async def sleep(self, seconds: float) -> None:
        self.now += seconds
        await asyncio.sleep(0)

    def note_idle(self) -> None:
        self.num_idle += 1

    async def run(self, root: Path, *, until_idle: int) -> None:
        async with asyncio.TaskGroup() as group:
            loop = group.create_task(
                keep_evaluating(
                    root,
                    self.evaluate,
                    self.repair,
                    interval_s=3.0,
                    on_nothing_new=self.note_idle,
                    clock=lambda: self.now,
                    sleep=self.sleep,
                )
            )
            while self.num_idle < until_idle:
                assert not loop.done()
                await asyncio.sleep(0)
            loop.cancel()


@pytest.mark.parametrize("failure", FAILURES, ids=lambda error: type(error).__name__)
def test_a_version_whose_evaluation_failed_is_tried_again(
    failure: BaseException, tmp_path: Path
) -> None:
    complete(tmp_path, 7)
    role = Role([failure, failure], [failure])
    asyncio.run(role.run(tmp_path, until_idle=3))
    assert role.tried == [7, 7, 7]
    assert role.evaluated == [7]


def test_evaluations_keep_their_interval_also_after_a_failure(tmp_path: Path) -> None:
    complete(tmp_path, 7)
    role = Role([OSError("disk")], [])
    asyncio.run(role.run(tmp_path, until_idle=1))
    assert role.now >= 2 * 3.0
