"""`run_evaluation`: held-out episodes of one checkpoint, and what they say.

Invariants:
    * every episode of one evaluation runs under one version, on servers that join no broadcast;
    * which episodes these are follows from the tasks and the number of seeds alone: not from the
      order of a file, and not from the run, so that checkpoints and runs compare;
    * a fault is neither success nor failure; a late episode counts as the configuration says.
"""

from __future__ import annotations

import random
import secrets
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from awrl_rollout import EpisodeRecord, EpisodeRequest

from webrl.cluster.scheduler import WorkerHandle, call_worker
from webrl.config import WebRLConfig
from webrl.evaluation.statistics import EvaluationResult, summarise
from webrl.launch import run_tasks
from webrl.rollout.trajectory import EpisodeTask
from webrl.rollout.worker import RolloutWorker
from webrl.tasks import Task

ANSWER_S = 60.0
"""For the worker to answer after that."""


@dataclass(frozen=True, kw_only=True, slots=True)
class EvaluationSpec:
    """What is evaluated."""

    tasks: tuple[Task, ...]
    """With the limits of evaluation episodes."""
    num_seeds: int
    """Held-out seeds, spread over the tasks."""
    is_greedy: bool = True
    """Argmax instead of sampling."""
    deadline_s: float = 3600.0
    """Limit of the whole evaluation, in seconds; episodes that have not ended then are late."""
    is_late_failure: bool = True
    """Whether late episodes count as failures; else they are left out."""

    @classmethod
    def of(cls, config: WebRLConfig, num_seeds: int) -> EvaluationSpec:
        """Return what a configuration evaluates, on so many seeds."""
        return cls(
            tasks=run_tasks.test_tasks(config),
            num_seeds=num_seeds,
            is_greedy=config.test_rollout.temperature == 0,
            deadline_s=config.test_rollout.deadline_s,
            is_late_failure=config.test_rollout.late_episodes == "failure",
        )

    def requests(self, version: int) -> list[EpisodeRequest]:
        """Return the fixed episodes: seeds 0, 1, 2, ... over the tasks in turn.

        Where the tasks outnumber the seeds it is a sample of them, the same one every time.
        Their ids differ from call to call: an evaluation that failed may be tried again while
        episodes of its first try still end.
        """
        name = f"eval-{version}-{secrets.token_hex(4)}"
        tasks = stratified(self.tasks)
        groups = [f"{name}-{index}" for index in range(self.num_seeds)]
        return [
            EpisodeRequest(
                episode_id=f"{group}/0",
                group_id=group,
                site=tasks[index % len(tasks)].site,
                payload=EpisodeTask(
                    definition=tasks[index % len(tasks)],
                    seed=index // len(tasks),
                    greedy=self.is_greedy,
                ),
            )
            for index, group in enumerate(groups)
        ]


def stratified(tasks: Sequence[Task]) -> list[Task]:
    """Return the tasks in an order of which every beginning is a fair sample.

    Of each difficulty it holds the share that all tasks have, up to one task, drawn at random.
    """
    strata: dict[str, list[Task]] = {}
    for task in sorted(tasks, key=lambda task: task.full_name):
        strata.setdefault(f"{task.suite}/{task.difficulty}", []).append(task)
    places: list[tuple[float, str, Task]] = []
    for name, members in strata.items():
        random.Random(name).shuffle(members)
        places += [((i + 0.5) / len(members), name, task) for i, task in enumerate(members)]
    return [task for _, _, task in sorted(places, key=lambda place: place[:2])]


@dataclass(frozen=True, kw_only=True, slots=True)
class PolicyCheckpoint:
    """Weights to evaluate."""

    path: Path
    """Their folder, absolute."""
    version: int
    """Weight version."""


async def run_evaluation(
    worker: WorkerHandle[RolloutWorker],
    spec: EvaluationSpec,
    checkpoint: PolicyCheckpoint,
    *,
    previous: EvaluationResult | None = None,
) -> EvaluationResult:
    """Run the episodes on one worker whose servers hold the checkpoint.

    Args:
        worker: Runs them.
        checkpoint: What the servers hold.
        previous: Earlier result for the paired comparison.

    Raises:
        EngineCallError: The worker is gone.
    """
    started = time.monotonic()
    requests = spec.requests(checkpoint.version)
    records = await call_worker(
        worker,
        spec.deadline_s + ANSWER_S,
        RolloutWorker.run_episodes,
        requests,
        spec.deadline_s,
    )
    ended = {record.episode_id for record in records}
    names = {request.episode_id: _name(request) for request in requests}
    outcomes = outcomes_of(records, names)
    return summarise(
        outcomes,
        late=[name for episode_id, name in names.items() if episode_id not in ended],
        is_late_failure=spec.is_late_failure,
        version=checkpoint.version,
        checkpoint=str(checkpoint.path),
        num_faults=len(ended) - len(outcomes),
        duration_s=time.monotonic() - started,
        previous=previous,
    )


def _name(request: EpisodeRequest) -> str:
    task = request.payload
    assert isinstance(task, EpisodeTask)
    return f"{task.task}#{task.seed}"


def outcomes_of(records: Sequence[EpisodeRecord], names: Mapping[str, str]) -> dict[str, int]:
    """Return 1 or 0 for the episodes that ended well.

    Args:
        names: `task#seed` by episode id.
    """
    return {
        names[record.episode_id]: int(record.reward > 0)
        for record in records
        if record.has_ended_well and record.reward is not None
    }
