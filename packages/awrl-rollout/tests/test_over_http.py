"""Public reports that need several parts at once: a server over HTTP, two clients, a whole group."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from aiohttp import web
from awrl_rollout import (
    EpisodeContext,
    EpisodeRequest,
    EpisodeResult,
    GenerateRequest,
    GenerateResult,
    InterruptibleGenerator,
    LocalWorker,
    RetryPolicy,
    RolloutController,
    SGLangClient,
    SGLangClientConfig,
    VirtualClock,
    WeightBucket,
    WorkflowExecutor,
)
from awrl_rollout.concurrency import Signal
from awrl_rollout.testing import endless_groups, settle
from awrl_staleness import StalenessConfig, StalenessManager
from rollout_doubles import ScriptedClient


class HeldServer:
    """A server over HTTP that answers a generation when the test says so, all else at once."""

    def __init__(self) -> None:
        self.bodies: list[tuple[str, dict[str, Any]]] = []
        self.changed = Signal()
        self._replies: list[asyncio.Future[dict[str, Any]]] = []

    async def arrived(self, count: int) -> None:
        """Return once this many generations have arrived."""
        await self.changed.wait_for(lambda: len(self._replies) >= count, timeout_s=30)

    def answer(self, index: int, token: int, *, version: str = "0") -> None:
        """Answer one generation with one token."""
        meta = {
            "finish_reason": {"type": "length", "length": 1},
            "weight_version": version,
            "output_token_logprobs": [[-0.5, token, None]],
        }
        reply = {"text": "", "output_ids": [token], "meta_info": meta}
        self._replies[index].set_result(reply)

    async def handle(self, request: web.Request) -> web.Response:
        self.bodies.append((request.path, await request.json()))
        if request.path != "/generate":
            return web.json_response({"success": True, "message": ""})
        reply: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
        self._replies.append(reply)
        self.changed.notify()
        return web.json_response(await asyncio.shield(reply))


def with_server(body: Callable[[HeldServer, str], Awaitable[None]]) -> None:
    async def main() -> None:
        server = HeldServer()
        app = web.Application()
        app.router.add_post("/{path:.*}", server.handle)
        runner = web.AppRunner(app, shutdown_timeout=0)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        host, port = runner.addresses[0][:2]
        try:
            await body(server, f"http://{host}:{port}")
        finally:
            await runner.cleanup()

    asyncio.run(main())


def test_a_group_delivers_seven_siblings_and_names_the_error_of_the_eighth() -> None:
    heard: list[str] = []

    async def workflow(request: EpisodeRequest, context: EpisodeContext) -> EpisodeResult:
        if request.episode_id.startswith("g0/5"):
            raise ValueError("x")
        return EpisodeResult(is_success=True, reward=1.0)

    async def main() -> None:
        manager = StalenessManager(
            StalenessConfig(max_concurrent=16, consumer_batch_size=16, max_off_policyness=0)
        )
        async with (
            WorkflowExecutor(workflow, num_slots=16, clock=clock) as executor,
            RolloutController(
                [LocalWorker(executor)],
                manager,
                source=endless_groups(8),
                on_discarded=lambda records, reason: heard.append(reason),
                clock=clock,
            ) as controller,
        ):
            first, second = await controller.prepare_batch(16)
            assert [record.member for record in first.records] == [0, 1, 2, 3, 4, 6, 7]
            assert (first.num_lost, len(second.records), second.num_lost) == (1, 8, 0)
            assert manager.statistics().wasted_by_reason == {"faulted: workflow_error": 3}
            assert controller.statistics().num_smaller_groups == 1

    clock = VirtualClock()
    clock.run(main())
    assert heard == ["workflow_error at workflow: ValueError: x"] * 3


def test_sixteen_requests_in_flight_outlive_an_update_that_keeps_them() -> None:
    async def body(server: HeldServer, url: str) -> None:
        async with SGLangClient(url) as client, asyncio.TaskGroup() as group:
            generator = InterruptibleGenerator(client)
            request = GenerateRequest(input_ids=(1,), max_new_tokens=1)
            tasks = [group.create_task(generator.generate(request)) for _ in range(16)]
            await server.arrived(16)
            bucket = WeightBucket(names=["a"], dtypes=["float32"], shapes=[[2]])
            await client.pause_generation("in_place")
            await client.weights.receive(bucket, group_name="g", weight_version=1)
            await client.weights.set_version(1)
            await client.continue_generation()
            for index in range(16):
                server.answer(index, 9)
        assert [task.result().stop_reason for task in tasks] == ["length"] * 16
        assert sum(path == "/generate" for path, _ in server.bodies) == 16
        assert all(path != "/abort_request" for path, _ in server.bodies)
        assert not any(item.get("abort_all_requests", False) for _, item in server.bodies)

    with_server(body)


@pytest.mark.parametrize("is_broken", [False, True])
def test_no_client_sends_between_the_first_pause_and_the_last_resume(is_broken: bool) -> None:
    """Two kinds of clients share one server: training episodes and evaluation."""
    log: list[str] = []
    clock = VirtualClock()
    server = ScriptedClient(on_attempt=lambda request: log.append(request.episode_id))

    def worker(kind: str, group: asyncio.TaskGroup) -> LocalWorker:
        generator = InterruptibleGenerator(server)

        async def workflow(request: EpisodeRequest, context: EpisodeContext) -> EpisodeResult:
            for _ in range(100):
                await generator.generate(GenerateRequest(input_ids=(1,), episode_id=kind))
                await context.clock.sleep(1.0)
            return EpisodeResult(is_success=True)

        executor = WorkflowExecutor(workflow, num_slots=2, name=kind, clock=clock)
        group.create_task(executor.serve())
        executor.submit([EpisodeRequest(episode_id=f"{kind}{i}", group_id=kind) for i in range(2)])
        return LocalWorker(executor, generation=generator)

    async def update(controller: RolloutController) -> None:
        await controller.pause_generation()
        log.append("paused")
        try:
            await clock.sleep(10.0)
            if is_broken:
                raise OSError("the broadcast failed")
        finally:
            log.append("resumed")
            await controller.resume_generation()

    async def main() -> None:
        manager = StalenessManager(
            StalenessConfig(max_concurrent=4, consumer_batch_size=4, max_off_policyness=0)
        )
        async with asyncio.TaskGroup() as group:
            workers = [worker("train", group), worker("eval", group)]
            async with RolloutController(workers, manager, clock=clock) as controller:
                await clock.sleep(5.0)
                if is_broken:
                    with pytest.raises(OSError, match="broadcast"):
                        await update(controller)
                else:
                    await update(controller)
                await clock.sleep(5.0)
            raise _Over

    with pytest.raises(ExceptionGroup) as caught:
        clock.run(main())
    assert caught.group_contains(_Over)
    paused, resumed = log.index("paused"), log.index("resumed")
    assert resumed == paused + 1
    assert {"train", "eval"} == set(log[:paused]) == set(log[resumed + 1 :])


class _Over(Exception):
    """Ends the block that serves for ever."""


class InTurn:
    """Sends each attempt through the next client."""

    def __init__(self, clients: list[SGLangClient]) -> None:
        self.clients = clients

    async def generate(self, request: GenerateRequest) -> GenerateResult:
        return await self.clients.pop(0).generate(request)


def test_a_turn_whose_first_reply_comes_late_is_there_once_and_the_delivered_one_wins() -> None:
    async def body(server: HeldServer, url: str) -> None:
        impatient = SGLangClientConfig(generate_deadline_s=1.0)
        async with SGLangClient(url, config=impatient) as first, SGLangClient(url) as second:
            client = InTurn([first, second])
            generator = InterruptibleGenerator(
                client, retry=RetryPolicy(max_retries=1, base_delay_s=0.0)
            )
            request = GenerateRequest(input_ids=(1,), max_new_tokens=1, episode_id="e")
            turns: list[int] = []
            async with asyncio.TaskGroup() as group:
                turn = group.create_task(generator.generate(request))
                await server.arrived(2)
                server.answer(1, 22, version="4")
                result = await turn
                turns += result.output_ids
                server.answer(0, 11, version="3")
                await settle()
        assert (turns, result.versions) == ([22], (4,))
        early, late = [item for path, item in server.bodies if path == "/generate"]
        assert early.pop("rid") != late.pop("rid")
        assert early == late

    with_server(body)
