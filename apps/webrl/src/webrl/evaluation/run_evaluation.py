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

from awrl_rollout import EpisodeRecord, EpisodeRequest, UnwrappedTaskGroup

from webrl.cluster.scheduler import WorkerHandle, call_worker
from webrl.config import WebRLConfig
from webrl.evaluation.breakdown import EvaluationItem, faults_by_kind, site_faults
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
    num_samples: int = 1
    """Times that each episode is run."""
    subset_seed: int = 0
    """Which tasks are taken where they outnumber the seeds."""
    is_greedy: bool = True
    """Argmax instead of sampling."""
    deadline_s: float = 3600.0
    """Limit of the whole evaluation, in seconds; episodes that have not ended then are late."""
    is_late_failure: bool = True
    """Whether late episodes count as failures; else they are left out."""

    @classmethod
    def of(cls, config: WebRLConfig, num_seeds: int) -> EvaluationSpec:
        """Return what a configuration evaluates, on so many seeds; on every task once with 0."""
        tasks = run_tasks.test_tasks(config)
        return cls(
            tasks=tasks,
            num_seeds=len(tasks) if config.test_rollout.every_task else num_seeds or len(tasks),
            num_samples=config.test_rollout.n_samples,
            subset_seed=config.test_rollout.subset_seed,
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
        tasks = stratified(self.tasks, self.subset_seed)
        return [
            EpisodeRequest(
                episode_id=f"{name}-{index}/{sample}",
                group_id=f"{name}-{index}",
                member=sample,
                group_size=self.num_samples,
                payload=EpisodeTask(
                    definition=tasks[index % len(tasks)],
                    seed=index // len(tasks),
                    greedy=self.is_greedy,
                ),
                site=tasks[index % len(tasks)].site,
            )
            for index in range(self.num_seeds)
            for sample in range(self.num_samples)
        ]

    def item(self, request: EpisodeRequest) -> EvaluationItem:
        """Return what a request of this evaluation runs."""
        episode = request.payload
        assert isinstance(episode, EpisodeTask)
        return EvaluationItem(
            task=episode.task,
            seed=episode.seed,
            sample=request.member if self.num_samples > 1 else None,
            difficulty=episode.definition.difficulty,
            site=episode.definition.site,
        )


def stratified(tasks: Sequence[Task], seed: int = 0) -> list[Task]:
    """Return the tasks in an order of which every beginning is a fair sample.

    Of each difficulty it holds the share that all tasks have, up to one task, drawn at random.

    Args:
        seed: Of the draw.
    """
    strata: dict[str, list[Task]] = {}
    for task in sorted(tasks, key=lambda task: task.full_name):
        strata.setdefault(f"{task.suite}/{task.difficulty}", []).append(task)
    places: list[tuple[float, str, Task]] = []
    for name, members in strata.items():
        random.Random(f"{name}/{seed}" if seed else name).shuffle(members)
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
    workers: Sequence[WorkerHandle[RolloutWorker]],
    spec: EvaluationSpec,
    checkpoint: PolicyCheckpoint,
    *,
    previous: EvaluationResult | None = None,
) -> EvaluationResult:
    """Run the episodes on workers whose servers hold the checkpoint.

    Args:
        workers: Run them, each its share.
        checkpoint: What the servers hold.
        previous: Earlier result for the paired comparison.

    Raises:
        EngineCallError: A worker is gone.
    """
    started = time.monotonic()
    requests = spec.requests(checkpoint.version)
    async with UnwrappedTaskGroup() as group:
        shares = [
            group.create_task(
                call_worker(
                    worker,
                    spec.deadline_s + ANSWER_S,
                    RolloutWorker.run_episodes,
                    requests[number :: len(workers)],
                    spec.deadline_s,
                )
            )
            for number, worker in enumerate(workers)
        ]
    records = [record for share in shares for record in share.result()]
    items = {request.episode_id: spec.item(request) for request in requests}
    keys = {episode_id: item.key for episode_id, item in items.items()}
    outcomes = outcomes_of(records, keys)
    ended = {record.episode_id for record in records}
    return summarise(
        outcomes,
        late=[key for episode_id, key in keys.items() if episode_id not in ended],
        is_late_failure=spec.is_late_failure,
        version=checkpoint.version,
        checkpoint=str(checkpoint.path),
        num_faults=len(ended) - len(outcomes),
        duration_s=time.monotonic() - started,
        previous=previous,
        items={item.key: item for item in items.values()},
        num_samples=spec.num_samples,
        faults=faults_by_kind(records),
        by_lost_site=site_faults(
            records, {episode_id: item.site or item.task for episode_id, item in items.items()}
        ),
    )


def outcomes_of(records: Sequence[EpisodeRecord], names: Mapping[str, str]) -> dict[str, int]:
    """Return 1 or 0 for the episodes that ended well.

    Args:
        names: `task#seed` by episode id, with `@sample` where there are several.
    """
    return {
        names[record.episode_id]: int(record.reward > 0)
        for record in records
        if record.has_ended_well and record.reward is not None
    }
