"""Requests go to one server per episode, and only to servers in the list."""

import asyncio
from contextlib import AsyncExitStack

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from awrl_rollout import GenerateRequest, ServerRefusedError, ServerUnavailableError
from webrl.rollout.latency import page_latency_s
from webrl.rollout.routing import ServerRouter
from webrl.rollout.trajectory import EpisodeTask
from webrl.tasks import load_task

TASK = load_task("miniwob/click-test")


def test_without_a_server_a_request_is_refused_for_now() -> None:
    async def ask() -> None:
        router = ServerRouter([])
        await router.generate(GenerateRequest(input_ids=[1], episode_id="1/0"))

    with pytest.raises(ServerUnavailableError, match="servers must be at least one"):
        asyncio.run(ask())


def test_an_episode_stays_on_one_server_and_its_siblings_spread() -> None:
    asked: list[int] = []

    async def server(stack: AsyncExitStack, index: int) -> str:
        async def refuse(request: web.Request) -> web.Response:
            del request
            asked.append(index)
            return web.json_response({}, status=400)

        app = web.Application()
        app.router.add_post("/generate", refuse)
        served = await stack.enter_async_context(TestServer(app))
        return str(served.make_url("")).rstrip("/")

    async def ask() -> list[int]:
        async with AsyncExitStack() as stack:
            router = ServerRouter([await server(stack, index) for index in range(4)])
            stack.push_async_callback(router.aclose)
            for episode in range(32):
                request = GenerateRequest(input_ids=[1], episode_id=f"1/{episode}")
                for _ in range(2):
                    with pytest.raises(ServerRefusedError):
                        await router.generate(request)
        return asked

    order = asyncio.run(ask())
    assert order[::2] == order[1::2]
    assert set(order) == {0, 1, 2, 3}


def test_page_latency_is_fixed_by_task_seed_and_step_and_has_the_asked_mean() -> None:
    def wait_s(seed: int, step: int) -> float:
        return page_latency_s(EpisodeTask(definition=TASK, seed=seed), step, mean_s=2.0, cv=1.0)

    assert wait_s(5, 1) == wait_s(5, 1)
    assert wait_s(5, 1) != wait_s(5, 2)
    drawn = [wait_s(seed, 0) for seed in range(4000)]
    assert sum(drawn) / len(drawn) == pytest.approx(2.0, rel=0.1)
    assert min(drawn) > 0
