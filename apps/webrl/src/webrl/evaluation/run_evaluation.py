"""`run_evaluation`: held-out episodes of one checkpoint, and what they say.

Invariants:
    * every episode of one evaluation runs under one version, on servers that join no broadcast;
    * a fault is neither success nor failure.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from awrl_rollout import EpisodeRecord, EpisodeRequest

from webrl.cluster.scheduler import WorkerHandle, call_worker
from webrl.config import WebRLConfig
from webrl.evaluation.statistics import EvaluationResult, summarise
from webrl.launch import component_configs
from webrl.rollout.trajectory import EpisodeTask, Trajectory
from webrl.rollout.worker import RolloutWorker
from webrl.tasks import Task

EVALUATION_DEADLINE_S = 3600.0
"""Limit of one evaluation; episodes that are still running then count as faults."""

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

    @classmethod
    def of(cls, config: WebRLConfig, num_seeds: int) -> EvaluationSpec:
        """Return what a configuration evaluates, on so many seeds."""
        return cls(
            tasks=component_configs.test_tasks(config),
            num_seeds=num_seeds,
            is_greedy=config.test_rollout.temperature == 0,
        )

    def requests(self, version: int) -> list[EpisodeRequest]:
        """Return the fixed episodes: seeds 0, 1, 2, ... over the tasks in turn.

        Their ids differ from call to call: an evaluation that failed may be tried again while
        episodes of its first try still end.
        """
        name = f"eval-{version}-{secrets.token_hex(4)}"
        groups = [f"{name}-{index}" for index in range(self.num_seeds)]
        return [
            EpisodeRequest(
                episode_id=f"{group}/0",
                group_id=group,
                payload=EpisodeTask(
                    definition=self.tasks[index % len(self.tasks)],
                    seed=index // len(self.tasks),
                    greedy=self.is_greedy,
                ),
            )
            for index, group in enumerate(groups)
        ]


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
    records = await call_worker(
        worker,
        EVALUATION_DEADLINE_S + ANSWER_S,
        RolloutWorker.run_episodes,
        spec.requests(checkpoint.version),
        EVALUATION_DEADLINE_S,
    )
    outcomes = outcomes_of(records)
    return summarise(
        outcomes,
        version=checkpoint.version,
        checkpoint=str(checkpoint.path),
        num_faults=spec.num_seeds - len(outcomes),
        duration_s=time.monotonic() - started,
        previous=previous,
    )


def outcomes_of(records: Sequence[EpisodeRecord]) -> dict[str, int]:
    """Return 1 or 0 by `task#seed` for the episodes that ended well."""
    outcomes: dict[str, int] = {}
    for record in records:
        if record.has_ended_well and record.reward is not None:
            trajectory = record.payload
            assert isinstance(trajectory, Trajectory)
            outcomes[f"{trajectory.task}#{trajectory.seed}"] = int(record.reward > 0)
    return outcomes
