"""`EvaluationManager`: evaluates the newest complete checkpoint of a run, in the background.

Invariants:
    * the same weights are never evaluated twice on the same seeds;
    * training never waits for it: it may *ask* for a checkpoint.

Its loop lives in a daemon thread of its own: consumes complete checkpoints, produces results; waits
for a new checkpoint or the interval; unblocked by `close`.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Awaitable, Callable, Coroutine
from pathlib import Path
from typing import Any

from awrl_rollout import UnwrappedTaskGroup
from awrl_trainer import latest_complete_checkpoint

from webrl.cluster.scheduler import WorkerHandle, call_worker
from webrl.config import WebRLConfig
from webrl.errors import WorkerLostError
from webrl.evaluation.run_evaluation import EvaluationSpec, PolicyCheckpoint, run_evaluation
from webrl.evaluation.statistics import EvaluationResult, append_result
from webrl.launch.system import (
    System,
    start_evaluation_worker,
    start_evaluation_workers,
    stop_each,
)
from webrl.records.run_folder import RunFolders
from webrl.rollout.worker import RolloutWorker

logger = logging.getLogger(__name__)

POLL_S = 0.5
"""Between two looks at the checkpoint folder."""

ROUTE_DEADLINE_S = 60.0
"""Giving the worker the addresses of restarted servers."""

STOP_S = 3.0
"""The thread ends within one poll; its worker is killed otherwise."""


class EvaluationManager:
    """The scheduler role `test-rollout` of a run: its workers, its servers and their thread.

    Args:
        folders: Where checkpoints and results lie.
        on_result: Called with each result, in the thread.
    """

    def __init__(
        self,
        config: WebRLConfig,
        folders: RunFolders,
        system: System,
        on_result: Callable[[EvaluationResult], None],
    ) -> None:
        self._config = config
        self._folders = folders
        self._system = system
        self._on_result = on_result
        self._spec = EvaluationSpec.of(config, config.test_rollout.num_seeds)
        self._previous: EvaluationResult | None = None
        self._workers: list[WorkerHandle[RolloutWorker]] = []
        self._is_closed = threading.Event()
        self._wants_checkpoint = threading.Event()
        self._thread = threading.Thread(  # noqa: TID251 - evaluation must not share the trainer's loop
            target=lambda: asyncio.run(self._until_closed()), name="evaluation", daemon=True
        )

    async def start(self) -> None:
        """Start the workers and the thread.

        Raises:
            EngineCallError: A worker did not start.
        """
        system = self._system
        self._workers = await start_evaluation_workers(
            self._config, system.scheduler, system.server_spec, system.evaluation_urls
        )
        self._thread.start()

    def takes_checkpoint(self) -> bool:
        """Return whether a fresh checkpoint would be evaluated at once, and forget the wish."""
        is_wanted = self._wants_checkpoint.is_set()
        self._wants_checkpoint.clear()
        return is_wanted

    async def evaluate_last(self, version: int) -> None:
        """Evaluate the newest checkpoint on the final seeds, once training is over.

        Raises:
            RolloutError: The server refused the checkpoint, or gave no answer.
            EngineCallError: A worker is gone.
        """
        num_seeds = self._config.test_rollout.num_final_seeds
        path = latest_complete_checkpoint(self._folders.policies)
        await asyncio.to_thread(self._end_thread)
        if not num_seeds or path is None:
            return
        await self._restart()
        spec = EvaluationSpec.of(self._config, num_seeds)
        await self._evaluate(spec, PolicyCheckpoint(path=path, version=version), previous=None)

    async def aclose(self) -> None:
        """End the thread and the workers."""
        await asyncio.to_thread(self._end_thread)
        await stop_each(self._workers, RolloutWorker.stop)

    def _end_thread(self) -> None:
        self._is_closed.set()
        if self._thread.is_alive():
            self._thread.join(STOP_S)

    async def _until_closed(self) -> None:
        async with UnwrappedTaskGroup() as group:
            loop = group.create_task(
                keep_evaluating(
                    self._folders.policies,
                    self._evaluate_next,
                    self._restart,
                    interval_s=self._config.test_rollout.interval_s,
                    on_nothing_new=self._wants_checkpoint.set,
                )
            )
            while not self._is_closed.is_set():  # noqa: ASYNC110 - another thread sets it
                await asyncio.sleep(POLL_S)
            loop.cancel()

    async def _evaluate_next(self, checkpoint: PolicyCheckpoint) -> None:
        self._previous = await self._evaluate(self._spec, checkpoint, previous=self._previous)

    async def _evaluate(
        self,
        spec: EvaluationSpec,
        checkpoint: PolicyCheckpoint,
        *,
        previous: EvaluationResult | None,
    ) -> EvaluationResult:
        """Load a checkpoint into every server of the role, evaluate it, and keep the result."""
        for url in self._system.evaluation_urls:
            async with self._system.network.client(url) as client:
                await client.weights.load(
                    str(checkpoint.path), weight_version=checkpoint.version, flush_cache=True
                )
        result = await run_evaluation(self._workers, spec, checkpoint, previous=previous)
        append_result(self._folders.evaluations, result)
        self._on_result(result)
        return result

    async def _restart(self) -> None:
        """Restart what is dead of the role, and route the workers to its servers.

        Raises:
            EngineCallError: A part did not start.
        """
        system = self._system
        urls = await system.restart_evaluation_servers()
        for index, worker in enumerate(self._workers):
            try:
                await call_worker(worker, ROUTE_DEADLINE_S, RolloutWorker.set_servers, urls)
            except WorkerLostError:
                system.scheduler.forget(worker)
                self._workers[index] = await start_evaluation_worker(
                    self._config, system.scheduler, system.server_spec, urls, worker.rank
                )


async def keep_evaluating(
    root: Path,
    evaluate: Callable[[PolicyCheckpoint], Coroutine[Any, Any, None]],
    repair: Callable[[], Coroutine[Any, Any, None]],
    *,
    interval_s: float,
    on_nothing_new: Callable[[], None],
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
) -> None:
    """Evaluate the newest complete checkpoint, each version once, until cancelled.

    Training must not stop for an evaluation, nor evaluations for one that failed: whatever it raised,
    the role is repaired, and that version or a newer one is tried after the interval.

    Args:
        root: Folder of the checkpoints.
        repair: Starts again what is dead after a failure.
        interval_s: From the start of one evaluation to that of the next.
        on_nothing_new: Called when an evaluation is due and no checkpoint is new.
    """
    last_start, done = clock() - interval_s, set[int]()
    while True:
        await sleep(POLL_S)
        if clock() - last_start < interval_s:
            continue
        path = latest_complete_checkpoint(root)
        version = -1 if path is None else int(path.name.rpartition("_")[2])
        if path is None or version in done:
            on_nothing_new()
            continue
        last_start = clock()
        checkpoint = PolicyCheckpoint(path=path, version=version)
        if await _has_succeeded(evaluate(checkpoint), f"the evaluation of version {version}"):
            done.add(version)
        else:
            await _has_succeeded(repair(), "the restart of the role test-rollout")


async def _has_succeeded(step: Coroutine[Any, Any, None], what: str) -> bool:
    """Return whether a step raised nothing; the named boundary of the thread."""
    try:
        async with UnwrappedTaskGroup() as group:
            group.create_task(step)
    except Exception as error:  # noqa: BLE001 - see above
        logger.warning("%s failed: %s: %s", what, type(error).__name__, error)
        return False
    return True
