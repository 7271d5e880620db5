"""Page latencies are drawn once and for all."""

from __future__ import annotations

import pytest
from webrl.rollout.latency import page_latency_s
from webrl.rollout.trajectory import EpisodeTask
from webrl.tasks import load_task

TASK = load_task("miniwob/click-test")


def test_page_latency_is_fixed_by_task_seed_and_step_and_has_the_asked_mean() -> None:
    def wait_s(seed: int, step: int) -> float:
        return page_latency_s(EpisodeTask(definition=TASK, seed=seed), step, mean_s=2.0, cv=1.0)

    assert wait_s(5, 1) == wait_s(5, 1)
    assert wait_s(5, 1) != wait_s(5, 2)
    drawn = [wait_s(seed, 0) for seed in range(4000)]
    assert sum(drawn) / len(drawn) == pytest.approx(2.0, rel=0.1)
    assert min(drawn) > 0
