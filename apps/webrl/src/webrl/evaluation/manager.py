"""``TestRolloutManager``: evaluates the newest complete checkpoint in the background.

Invariants:
    * every episode of one evaluation runs under one version, on servers that join no broadcast;
    * the same weights are never evaluated twice;
    * a fault is neither success nor failure;
    * the trainer never waits for it: it may *ask* for a checkpoint.

The one loop, ``_evaluate_loop``, lives in a daemon thread of its own: consumes complete checkpoints,
produces results; waits for a new checkpoint or the interval; unblocked by ``close``.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from awrl_rollout import EpisodeRecord, EpisodeRequest, RolloutError
from awrl_trainer import latest_complete_checkpoint

from webrl.cluster.network import LOCAL, Reach
from webrl.cluster.scheduler import WorkerHandle, call_worker
from webrl.errors import WebRLError
from webrl.evaluation.statistics import EvaluationResult, append_result, summarise
from webrl.rollout.trajectory import EpisodeTask
from webrl.tasks import Task

logger = logging.getLogger(__name__)

POLL_S = 0.5
"""Between two looks at the checkpoint folder and at finished episodes."""

CALL_DEADLINE_S = 60.0
"""A test worker that does not answer for this long is a failed evaluation."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TestRolloutSpec:
    """What is evaluated, and how often."""

    __test__ = False

    tasks: tuple[Task, ...]
    """With the limits of evaluation episodes."""
    num_seeds: int
    """Held-out seeds, spread over the tasks."""
    interval_s: float
    """Least time from the start of one evaluation to the start of the next, in seconds."""
    is_greedy: bool = True
    """Argmax instead of sampling."""
    deadline_s: float = 3600.0
    """Limit of one evaluation; episodes still running then count as faults."""
    reach: Reach = LOCAL
    """How to talk to the test servers."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Snapshot:
    """A complete policy checkpoint."""

    path: Path
    """Its folder, absolute."""
    version: int
    """Weight version."""


def evaluation_requests(spec: TestRolloutSpec, label: str) -> list[EpisodeRequest]:
    """Return the fixed episodes of one evaluation: seeds 0, 1, 2, ... over the tasks in turn.

    Args:
        spec: Tasks and number of seeds.
        label: Makes the episode ids unique.
    """
    return [
        EpisodeRequest(
            episode_id=f"{label}-{index}/0",
            group_id=f"{label}-{index}",
            payload=EpisodeTask(
                definition=spec.tasks[index % len(spec.tasks)],
                seed=index // len(spec.tasks),
                greedy=spec.is_greedy,
            ),
        )
        for index in range(spec.num_seeds)
    ]


async def run_evaluation(
    worker: WorkerHandle, requests: Sequence[EpisodeRequest], *, deadline_s: float
) -> list[EpisodeRecord]:
    """Run episodes on one test worker and return the records of those that ended in time.

    Args:
        worker: A rollout worker without callback.
        requests: The episodes.
        deadline_s: Limit in seconds; the rest is cancelled.

    Raises:
        EngineCallError: The worker is gone.
    """
    await call_worker(worker, "submit", list(requests), timeout_s=CALL_DEADLINE_S)
    records: dict[str, EpisodeRecord] = {}
    wanted = {request.episode_id for request in requests}
    deadline = time.monotonic() + deadline_s
    acknowledged: list[str] = []
    while len(records) < len(requests) and time.monotonic() < deadline:
        await asyncio.sleep(POLL_S)
        fresh: list[EpisodeRecord] = await call_worker(
            worker, "take_finished", acknowledged, timeout_s=CALL_DEADLINE_S
        )
        acknowledged = [record.episode_id for record in fresh]
        # An evaluation that was given up may have left records of its own behind.
        records.update({r.episode_id: r for r in fresh if r.episode_id in wanted})
    late = [r.episode_id for r in requests if r.episode_id not in records]
    if late:
        await call_worker(worker, "cancel", late, timeout_s=CALL_DEADLINE_S)
    await call_worker(worker, "take_finished", acknowledged, timeout_s=CALL_DEADLINE_S)
    return list(records.values())


def outcomes_of(records: Sequence[EpisodeRecord]) -> dict[str, int]:
    """Return 1 or 0 by ``task#seed`` for the episodes that ended well."""
    outcomes: dict[str, int] = {}
    for record in records:
        if record.has_ended_well and record.reward is not None:
            trajectory = record.payload
            key = f"{getattr(trajectory, 'task', '')}#{getattr(trajectory, 'seed', '')}"
            outcomes[key] = int(record.reward > 0)
    return outcomes


class TestRolloutManager:
    """Owns the evaluation thread."""

    __test__ = False

    def __init__(
        self,
        *,
        spec: TestRolloutSpec,
        checkpoints: Path,
        results: Path,
        server_urls: Sequence[str],
        worker: WorkerHandle,
        on_result: Callable[[EvaluationResult], None],
        revive: Callable[[], Awaitable[tuple[WorkerHandle, Sequence[str]]]],
    ) -> None:
        """Prepare the thread; ``start`` starts it.

        Args:
            spec: What is evaluated.
            checkpoints: Folder of the policy snapshots.
            results: JSON-lines file that results are appended to.
            server_urls: Servers of the test role.
            worker: Its rollout worker.
            on_result: Called in the thread with each result.
            revive: Awaited in the thread after a failed evaluation: starts anew what is dead of the
                role, and returns its worker and the addresses of its servers.
        """
        self._spec = spec
        self._checkpoints = checkpoints
        self._results = results
        self._server_urls = tuple(server_urls)
        self._worker = worker
        self._on_result = on_result
        self._start_again = revive
        self._stop = threading.Event()
        self._wants_checkpoint = threading.Event()
        self._previous: EvaluationResult | None = None
        self._thread = threading.Thread(  # noqa: TID251 - evaluation must not share the trainer's loop
            target=self._run, name="test-rollout", daemon=True
        )

    def takes_checkpoint(self) -> bool:
        """Return whether a fresh checkpoint would be evaluated at once, and forget the wish."""
        is_wanted = self._wants_checkpoint.is_set()
        self._wants_checkpoint.clear()
        return is_wanted

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def close(self, timeout_s: float) -> bool:
        """Ask the thread to end after at most the episode poll; return whether it did.

        Args:
            timeout_s: How long to wait for it.
        """
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def _run(self) -> None:
        asyncio.run(self._evaluate_loop())

    async def _evaluate_loop(self) -> None:
        last_start = -self._spec.interval_s
        done: set[int] = set()
        while not self._stop.is_set():
            await asyncio.sleep(POLL_S)
            if time.monotonic() - last_start < self._spec.interval_s:
                continue
            path = latest_complete_checkpoint(self._checkpoints)
            version = _version_of(path)
            if path is None or version in done:
                self._wants_checkpoint.set()
                continue
            last_start = time.monotonic()
            try:
                await self._until_stopped(self._evaluate(path, version))
            except (WebRLError, RolloutError, OSError) as error:
                # The trainer must not stop for an evaluation: say it and try a later checkpoint.
                logger.warning("evaluation of version %d failed: %s", version, error)
                await self._until_stopped(self._revive())
            done.add(version)

    async def _revive(self) -> None:
        """Start anew what is dead, so that a later checkpoint can be evaluated."""
        try:
            self._worker, urls = await self._start_again()
            self._server_urls = tuple(urls)
        except WebRLError as error:
            logger.warning("the test role did not start again: %s", error)

    async def _until_stopped(self, work: Awaitable[None]) -> None:
        """Run work, cancelled when the manager is closed."""
        async with asyncio.TaskGroup() as group:
            task = group.create_task(_as_coroutine(work))
            while not task.done():
                await asyncio.sleep(POLL_S)
                if self._stop.is_set():
                    task.cancel()

    async def _evaluate(self, path: Path, version: int) -> None:
        result = await evaluate_snapshot(
            self._spec,
            self._worker,
            self._server_urls,
            Snapshot(path=path, version=version),
            previous=self._previous,
        )
        self._previous = result
        append_result(self._results, result)
        self._on_result(result)


async def evaluate_snapshot(
    spec: TestRolloutSpec,
    worker: WorkerHandle,
    server_urls: Sequence[str],
    snapshot: Snapshot,
    *,
    previous: EvaluationResult | None,
) -> EvaluationResult:
    """Load one checkpoint into every test server and evaluate it.

    Args:
        spec: What is evaluated.
        worker: Runs the episodes.
        server_urls: Servers of the test role.
        snapshot: The checkpoint.
        previous: Earlier result for the paired comparison.

    Raises:
        RolloutError: A server refused the checkpoint, or gave no answer.
        EngineCallError: The worker is gone.
    """
    started = time.monotonic()
    for url in server_urls:
        async with spec.reach.client(url) as client:
            await client.weights.load(
                str(snapshot.path), weight_version=snapshot.version, flush_cache=True
            )
    requests = evaluation_requests(spec, f"eval-{snapshot.version}-{spec.num_seeds}")
    records = await run_evaluation(worker, requests, deadline_s=spec.deadline_s)
    outcomes = outcomes_of(records)
    return summarise(
        outcomes,
        version=snapshot.version,
        checkpoint=str(snapshot.path),
        num_faults=spec.num_seeds - len(outcomes),
        duration_s=time.monotonic() - started,
        previous=previous,
    )


async def _as_coroutine(work: Awaitable[None]) -> None:
    await work


def _version_of(path: Path | None) -> int:
    return int(path.name.rpartition("_")[2]) if path is not None else -1
