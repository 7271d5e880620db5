from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from aiohttp import web
from awrl_rollout import (
    GenerateRequest,
    ServerRefusedError,
    ServerUnavailableError,
    SGLangClient,
    SGLangClientConfig,
    WeightBucket,
)

Answers = Callable[["Recorder", web.Request], Awaitable[web.Response]]


class Recorder:
    """A server that records each call and answers as told."""

    def __init__(self, answers: Answers) -> None:
        self.calls: list[tuple[str, dict[str, Any]]] = []
        self.answers = answers
        self.is_over = asyncio.Event()

    async def handle(self, request: web.Request) -> web.Response:
        raw = await request.read()
        self.calls.append((request.path, json.loads(raw) if raw else {}))
        return await self.answers(self, request)

    @property
    def paths(self) -> list[str]:
        return [path for path, _ in self.calls]


async def ok(_: Recorder, __: web.Request) -> web.Response:
    return web.json_response({"success": True, "message": ""})


@asynccontextmanager
async def served(
    answers: Answers = ok, config: SGLangClientConfig | None = None
) -> AsyncGenerator[tuple[Recorder, SGLangClient]]:
    recorder = Recorder(answers)
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", recorder.handle)
    runner = web.AppRunner(app, shutdown_timeout=0)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    host, port = runner.addresses[0][:2]
    try:
        async with SGLangClient(f"http://{host}:{port}", config=config, sleep=no_wait) as client:
            yield recorder, client
    finally:
        recorder.is_over.set()
        await runner.cleanup()


async def no_wait(_: float) -> None:
    await asyncio.sleep(0)


def test_generate_returns_the_answer_and_gives_each_attempt_its_own_id() -> None:
    async def answers(_: Recorder, __: web.Request) -> web.Response:
        meta = {
            "finish_reason": {"type": "length", "length": 1},
            "weight_version": "4",
            "output_token_logprobs": [[-0.5, 9, None]],
        }
        return web.json_response({"text": "", "output_ids": [9], "meta_info": meta})

    async def scenario() -> None:
        async with served(answers) as (recorder, client):
            request = GenerateRequest(input_ids=(1,), episode_id="ep-7")
            first = await client.generate(request)
            await client.generate(request)
            assert first.output_ids == (9,)
            assert first.versions == (4,)
            rids = [body["rid"] for _, body in recorder.calls]
            assert rids[0] != rids[1]
            assert all(rid.startswith("ep-7/") for rid in rids)

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("status", "error"),
    [
        (400, ServerRefusedError),
        (413, ServerRefusedError),
        (429, ServerUnavailableError),
        (500, ServerUnavailableError),
        (503, ServerUnavailableError),
    ],
)
def test_http_errors_are_told_apart_by_whether_repeating_helps(
    status: int, error: type[Exception]
) -> None:
    async def answers(_: Recorder, __: web.Request) -> web.Response:
        return web.json_response({"error": {"message": "the reason"}}, status=status)

    async def scenario() -> None:
        async with served(answers) as (_, client):
            with pytest.raises(error, match=f"/generate answered {status}: the reason"):
                await client.generate(GenerateRequest(input_ids=(1,)))

    asyncio.run(scenario())


def test_a_server_that_is_not_there_is_unavailable_and_named() -> None:
    async def scenario() -> None:
        async with SGLangClient("http://127.0.0.1:9") as client:
            with pytest.raises(ServerUnavailableError, match=r"127.0.0.1:9/generate must be reach"):
                await client.generate(GenerateRequest(input_ids=(1,)))
            assert not await client.is_healthy()

    asyncio.run(scenario())


def test_a_server_that_does_not_answer_ends_at_the_deadline() -> None:
    async def answers(recorder: Recorder, _: web.Request) -> web.Response:
        await recorder.is_over.wait()
        return web.Response()

    async def scenario() -> None:
        config = SGLangClientConfig(generate_deadline_s=0.05, control_deadline_s=0.05)
        async with served(answers, config) as (_, client):
            with pytest.raises(ServerUnavailableError, match=r"must answer within 0.05 s"):
                await client.generate(GenerateRequest(input_ids=(1,)))
            with pytest.raises(ServerUnavailableError, match=r"must answer within 0.05 s"):
                await client.pause_generation()

    asyncio.run(scenario())


def test_wait_until_healthy_polls_until_the_server_says_so() -> None:
    async def answers(recorder: Recorder, _: web.Request) -> web.Response:
        return web.Response(status=503 if len(recorder.calls) < 4 else 200)

    async def scenario() -> None:
        async with served(answers) as (recorder, client):
            await client.wait_until_healthy(deadline_s=30)
            assert recorder.paths == ["/health"] * 4

    asyncio.run(scenario())


def test_wait_until_healthy_gives_up_at_its_deadline() -> None:
    async def answers(_: Recorder, __: web.Request) -> web.Response:
        return web.Response(status=503)

    async def scenario() -> None:
        async with served(answers) as (_, client):
            with pytest.raises(ServerUnavailableError, match=r"must answer /health within 0.05 s"):
                await client.wait_until_healthy(deadline_s=0.05)

    asyncio.run(scenario())


def test_calls_that_may_happen_twice_are_repeated_and_others_are_sent_once() -> None:
    async def answers(_: Recorder, __: web.Request) -> web.Response:
        return web.Response(status=503)

    async def scenario() -> None:
        bucket = WeightBucket(names=["a"], dtypes=["float32"], shapes=[[1]])
        async with served(answers, SGLangClientConfig()) as (recorder, client):
            twice = [
                client.pause_generation,
                client.continue_generation,
                client.flush_cache,
                client.server_info,
                client.model_info,
                client.weights.checksums,
                lambda: client.weights.set_version(3),
            ]
            once = [
                client.abort_all,
                lambda: client.generate(GenerateRequest(input_ids=(1,))),
                lambda: client.weights.leave("g"),
                lambda: client.weights.receive(bucket, group_name="g"),
                lambda: client.weights.load("/folder"),
            ]
            for calls, num_sent in ((twice, 3), (once, 1)):
                for call in calls:
                    recorder.calls.clear()
                    with pytest.raises(ServerUnavailableError, match="answered 503"):
                        await call()
                    assert len(recorder.calls) == num_sent, recorder.paths

    asyncio.run(scenario())


def test_a_refusal_is_not_repeated_and_a_passing_error_is_forgotten() -> None:
    async def answers(recorder: Recorder, request: web.Request) -> web.Response:
        if request.path == "/continue_generation":
            return web.Response(status=400)
        return web.Response(status=200 if len(recorder.calls) == 2 else 502)

    async def scenario() -> None:
        async with served(answers) as (recorder, client):
            await client.pause_generation()
            assert recorder.paths == ["/pause_generation"] * 2
            recorder.calls.clear()
            with pytest.raises(ServerRefusedError):
                await client.continue_generation()
            assert len(recorder.calls) == 1

    asyncio.run(scenario())


def test_an_update_that_keeps_requests_never_asks_for_an_abort() -> None:
    async def scenario() -> None:
        async with served() as (recorder, client):
            bucket = WeightBucket(names=["a"], dtypes=["float32"], shapes=[[2, 3]])
            await client.pause_generation("in_place")
            await client.weights.receive(bucket, group_name="g", weight_version=5)
            await client.weights.load("/some/folder", weight_version=6)
            await client.weights.set_version(7)
            await client.continue_generation()
            assert "/abort_request" not in recorder.paths
            bodies = dict(recorder.calls)
            assert bodies["/pause_generation"] == {"mode": "in_place"}
            assert bodies["/update_weight_version"] == {
                "new_version": "7",
                "abort_all_requests": False,
            }
            for path in ("/update_weights_from_distributed", "/update_weights_from_disk"):
                assert bodies[path]["abort_all_requests"] is False
                assert bodies[path]["flush_cache"] is False

    asyncio.run(scenario())


def test_weight_calls_send_sglang_s_fields() -> None:
    async def scenario() -> None:
        async with served() as (recorder, client):
            await client.weights.join(
                master_address="127.0.0.1",
                master_port=29500,
                rank_offset=1,
                world_size=2,
                group_name="g",
                backend="gloo",
            )
            flat = WeightBucket(names=["a", "b"], dtypes=["float32"] * 2, shapes=[[2], [3, 4]])
            await client.weights.receive(flat, group_name="g", weight_version=3)
            plain = WeightBucket(names=["a"], dtypes=["bfloat16"], shapes=[[2]], is_flattened=False)
            await client.weights.receive(plain, group_name="g")
            await client.weights.leave("g")
            (_, init), (_, first), (_, second), (_, destroy) = recorder.calls
            assert init == {
                "master_address": "127.0.0.1",
                "master_port": 29500,
                "rank_offset": 1,
                "world_size": 2,
                "group_name": "g",
                "backend": "gloo",
            }
            assert first["load_format"] == "flattened_bucket"
            assert first["weight_version"] == "3"
            assert first["shapes"] == [[2], [3, 4]]
            assert "load_format" not in second
            assert "weight_version" not in second
            assert destroy == {"group_name": "g"}

    asyncio.run(scenario())


def test_flush_waits_for_the_server_to_be_idle() -> None:
    async def answers(recorder: Recorder, _: web.Request) -> web.Response:
        is_idle = len(recorder.calls) > 3
        return web.Response(status=200 if is_idle else 400, text="busy")

    async def scenario() -> None:
        async with served(answers) as (recorder, client):
            await client.flush_cache(deadline_s=30)
            assert recorder.paths == ["/flush_cache"] * 4

    asyncio.run(scenario())


def test_flush_of_a_server_that_stays_busy_ends_with_a_clear_error() -> None:
    async def answers(_: Recorder, __: web.Request) -> web.Response:
        return web.Response(status=400, text="busy")

    async def scenario() -> None:
        async with served(answers) as (_, client):
            with pytest.raises(ServerUnavailableError, match=r"must be idle within 0.05 s"):
                await client.flush_cache(deadline_s=0.05)

    asyncio.run(scenario())


def test_abort_names_one_episode_or_all_but_never_nothing() -> None:
    async def scenario() -> None:
        async with served() as (recorder, client):
            await client.abort_request("ep-7/")
            await client.abort_all()
            with pytest.raises(ValueError, match="rid_prefix must not be empty"):
                await client.abort_request("")
            assert [body for _, body in recorder.calls] == [
                {"rid": "ep-7/", "abort_all": False},
                {"rid": "", "abort_all": True},
            ]

    asyncio.run(scenario())


def test_a_hub_id_is_refused_before_it_is_sent() -> None:
    async def scenario() -> None:
        async with served() as (recorder, client):
            with pytest.raises(ValueError, match="absolute folder, got 'org/model'"):
                await client.weights.load("org/model")
            assert recorder.calls == []

    asyncio.run(scenario())


def test_the_weight_version_is_a_number() -> None:
    async def answers(recorder: Recorder, _: web.Request) -> web.Response:
        label = "default" if len(recorder.calls) == 1 else "12"
        return web.json_response({"weight_version": label})

    async def scenario() -> None:
        async with served(answers) as (_, client):
            assert await client.weights.version() == 0
            assert await client.weights.version() == 12

    asyncio.run(scenario())


def test_close_twice_is_harmless() -> None:
    async def scenario() -> None:
        async with served() as (_, client):
            await client.continue_generation()
            await client.aclose()
            await client.aclose()

    asyncio.run(scenario())


def test_an_address_without_scheme_is_refused() -> None:
    with pytest.raises(ValueError, match="base_url must start with http://"):
        SGLangClient("localhost:30000")


def test_a_deadline_of_zero_is_refused() -> None:
    with pytest.raises(ValueError, match="control_deadline_s must be > 0, got 0"):
        SGLangClientConfig(control_deadline_s=0)
