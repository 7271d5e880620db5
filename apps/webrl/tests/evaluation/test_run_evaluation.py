"""Which episodes an evaluation takes, and what it does with those that come late."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path
from typing import Any, cast

import pytest
from awrl_rollout import EpisodeRecord, EpisodeRequest
from hypothesis import given, settings
from hypothesis import strategies as st
from webrl.cluster.scheduler import WorkerHandle
from webrl.evaluation.run_evaluation import (
    EvaluationSpec,
    PolicyCheckpoint,
    run_evaluation,
    stratified,
)
from webrl.rollout.trajectory import EpisodeTask
from webrl.rollout.worker import RolloutWorker
from webrl.tasks import Task


def make_task(number: int, difficulty: str | None) -> Task:
    return Task(suite="web", name=f"{number}", url="/", goal="g", answer="a", difficulty=difficulty)


def sorted_file(num_easy: int, num_medium: int, num_hard: int) -> list[Task]:
    difficulties = ["easy"] * num_easy + ["medium"] * num_medium + ["hard"] * num_hard
    return [make_task(number, difficulty) for number, difficulty in enumerate(difficulties)]


def chosen(tasks: list[Task], num_seeds: int) -> list[EpisodeTask]:
    spec = EvaluationSpec(tasks=tuple(tasks), num_seeds=num_seeds)
    payloads = [request.payload for request in spec.requests(version=1)]
    return [payload for payload in payloads if isinstance(payload, EpisodeTask)]


@pytest.mark.parametrize("num_seeds", [3, 128, 256, 512])
def test_a_sample_of_a_sorted_file_has_its_difficulties_in_their_shares(num_seeds: int) -> None:
    tasks = sorted_file(389, 389, 389)
    found = chosen(tasks, num_seeds)
    assert len({episode.task for episode in found}) == num_seeds
    counts = Counter(episode.definition.difficulty for episode in found)
    assert all(abs(counts[name] - num_seeds / 3) <= 1 for name in ("easy", "medium", "hard"))
    numbers = [int(episode.definition.name) for episode in found if num_seeds >= 128]
    easy = [number for number in numbers if number < 389]
    assert not easy or 0.3 < sum(number < 195 for number in easy) / len(easy) < 0.7


@settings(deadline=None)
@given(
    sizes=st.tuples(*[st.integers(1, 40)] * 3),
    num_seeds=st.integers(1, 150),
    seed=st.randoms(use_true_random=False),
)
def test_the_sample_follows_from_the_tasks_and_not_from_their_order(
    sizes: tuple[int, int, int], num_seeds: int, seed: Any
) -> None:
    tasks = sorted_file(*sizes)
    found = chosen(tasks, num_seeds)
    shuffled = tasks.copy()
    seed.shuffle(shuffled)
    assert chosen(shuffled, num_seeds) == found
    assert chosen(tasks, num_seeds + 1)[:-1] == found
    assert len({(episode.task, episode.seed) for episode in found}) == num_seeds
    assert sorted(task.name for task in stratified(tasks)) == sorted(task.name for task in tasks)
    times = Counter(episode.task for episode in found)
    assert max(times.values()) - min([times[task.full_name] for task in tasks]) <= 1


class SlowWorker:
    """A worker that ends one in `share` episodes in time, and remembers what it was asked."""

    def __init__(self) -> None:
        self.deadline_s = 0.0
        self.share = 2
        self.seen: list[str] = []
        self.run_episodes = self

    async def remote(
        self, requests: list[EpisodeRequest], deadline_s: float
    ) -> list[EpisodeRecord]:
        self.deadline_s = deadline_s
        self.seen += [request.episode_id for request in requests]
        return [
            cast("EpisodeRecord", Record(request.episode_id)) for request in requests[:: self.share]
        ]


class Record:
    """Of an episode that ended in success."""

    reward = 1.0
    has_ended_well = True
    fault = None

    def __init__(self, episode_id: str) -> None:
        self.episode_id = episode_id


def test_late_episodes_stay_in_the_denominator_unless_told_otherwise() -> None:
    worker = SlowWorker()
    handle = WorkerHandle[RolloutWorker](role="test-worker", rank=0, actor=worker)

    def mean(*, is_late_failure: bool) -> float | None:
        spec = EvaluationSpec(
            tasks=tuple(sorted_file(5, 5, 0)),
            num_seeds=10,
            deadline_s=7.0,
            is_late_failure=is_late_failure,
        )
        checkpoint = PolicyCheckpoint(path=Path("p"), version=3)
        result = asyncio.run(run_evaluation([handle], spec, checkpoint))
        assert (result.num_late, result.num_faults) == (5, 0)
        return result.mean

    assert (mean(is_late_failure=True), mean(is_late_failure=False)) == (0.5, 1.0)
    assert worker.deadline_s == 7.0


def test_every_sample_of_every_task_is_run_once_by_one_of_the_workers() -> None:
    workers = [SlowWorker() for _ in range(3)]
    for worker in workers:
        worker.share = 1
    handles = [
        WorkerHandle[RolloutWorker](role="test-worker", rank=rank, actor=worker)
        for rank, worker in enumerate(workers)
    ]
    tasks = tuple(sorted_file(3, 4, 0))
    spec = EvaluationSpec(tasks=tasks, num_seeds=len(tasks), num_samples=2, is_greedy=False)
    result = asyncio.run(run_evaluation(handles, spec, PolicyCheckpoint(path=Path("p"), version=3)))
    assert sorted(len(worker.seen) for worker in workers) == [4, 5, 5]
    assert sorted(result.outcomes) == sorted(
        f"{task.full_name}#0@{sample}" for task in tasks for sample in (0, 1)
    )
    assert (result.num_episodes, result.pass_at) == (14, {"1": 1.0, "2": 1.0})
    assert {name: share.num_episodes for name, share in result.by_difficulty.items()} == {
        "easy": 6,
        "medium": 8,
    }


def test_another_subset_seed_draws_other_tasks_in_the_same_shares() -> None:
    tasks = sorted_file(50, 50, 0)
    drawn = [
        [request.payload.task for request in spec.requests(1)]  # pyright: ignore
        for spec in (
            EvaluationSpec(tasks=tuple(tasks), num_seeds=20, subset_seed=seed) for seed in (0, 1, 1)
        )
    ]
    assert drawn[1] == drawn[2]
    assert set(drawn[0]) != set(drawn[1])
    assert all(sum(int(name.rpartition("/")[2]) < 50 for name in names) == 10 for names in drawn)
