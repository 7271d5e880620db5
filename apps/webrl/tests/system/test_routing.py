"""Requests go to one server per group, and only to servers in the list."""

import asyncio

import pytest
from awrl_rollout import GenerateRequest, ServerUnavailableError
from webrl.system.routing import ServerRouter
from webrl.system.trajectory import EpisodeTask
from webrl.system.workflow import WorkflowConfig, page_latency_s


def test_without_a_server_a_request_is_refused_for_now() -> None:
    async def ask() -> None:
        router = ServerRouter([])
        await router.generate(GenerateRequest(input_ids=[1], episode_id="1/0"))

    with pytest.raises(ServerUnavailableError, match="servers must be at least one"):
        asyncio.run(ask())


def test_page_latency_is_fixed_by_task_seed_and_step_and_has_the_asked_mean() -> None:
    config = WorkflowConfig(page_latency_s=2.0, page_latency_cv=1.0)
    payload = EpisodeTask(task="t", seed=5)
    assert page_latency_s(config, payload, 1) == page_latency_s(config, payload, 1)
    assert page_latency_s(config, payload, 1) != page_latency_s(config, payload, 2)
    drawn = [page_latency_s(config, EpisodeTask(task="t", seed=s), 0) for s in range(4000)]
    assert sum(drawn) / len(drawn) == pytest.approx(2.0, rel=0.1)
    assert min(drawn) > 0
