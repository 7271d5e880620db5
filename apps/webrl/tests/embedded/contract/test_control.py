"""Contract of control: abort, the pause modes, and clients that go away."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Literal

import pytest
import torch
from awrl_rollout import (
    GenerateRequest,
    InterruptibleGenerator,
    ServerUnavailableError,
    SGLangClient,
    SGLangClientConfig,
)
from serving import ServerUnderTest, num_running, run_bounded, until_running
from webrl.embedded.parity import largest_difference, page_png, page_request
from webrl.policy import PolicyProcessor

LONG = 1500
"""Tokens of an answer that no server ends before the test cuts it."""


def long_request(processor: PolicyProcessor, seed: int = 1, **changes: object) -> GenerateRequest:
    fields: dict[str, object] = {"max_new_tokens": LONG, "episode_id": f"long-{seed}"}
    return page_request(processor, [page_png(seed)], **{**fields, **changes})


@asynccontextmanager
async def client_of(server: ServerUnderTest) -> AsyncGenerator[SGLangClient]:
    async with SGLangClient(server.url) as client:
        try:
            yield client
        finally:
            await client.continue_generation()
            await client.abort_all()


def test_abort_of_one_request_keeps_its_tokens_and_leaves_the_others(
    server: ServerUnderTest, processor: PolicyProcessor, reference: torch.nn.Module
) -> None:
    async def scenario() -> None:
        async with client_of(server) as client, asyncio.TaskGroup() as group:
            doomed = group.create_task(client.generate(long_request(processor, 1)))
            other = group.create_task(client.generate(long_request(processor, 2)))
            await until_running(client, server, 2)
            await client.abort_request("long-1/")
            result = await doomed
            assert not other.done()
            await client.abort_all()
            assert (await other).stop_reason == "abort"
        assert result.stop_reason == "abort"
        assert 0 < len(result.output_ids) < LONG
        assert (
            largest_difference(
                reference, processor, long_request(processor, 1), [page_png(1)], result
            )
            < server.tolerance
        )

    run_bounded(scenario)


def test_requests_held_back_and_cut_leave_nothing_in_flight_and_go_on(
    server: ServerUnderTest, processor: PolicyProcessor
) -> None:
    """What a run does before it pauses SGLang, whose pause sleeps a second when it finds some."""

    async def scenario() -> None:
        async with client_of(server) as client, asyncio.TaskGroup() as group:
            generator = InterruptibleGenerator(client)
            answer = group.create_task(
                generator.generate(long_request(processor, max_new_tokens=300))
            )
            await until_running(client, server, 1)
            generator.pause()
            await client.abort_all()
            assert await generator.drained(deadline_s=20)
            while await num_running(client, server):
                pass  # it counts a moment later; the scenario is bounded
            await client.pause_generation("abort")
            await client.continue_generation()
            assert not answer.done()
            generator.resume()
        assert len(answer.result().output_ids) == 300
        assert generator.num_interrupted == 1

    run_bounded(scenario)


def test_pause_with_abort_answers_everything_and_later_requests_wait(
    server: ServerUnderTest, processor: PolicyProcessor
) -> None:
    async def scenario() -> None:
        async with client_of(server) as client, asyncio.TaskGroup() as group:
            tasks = [
                group.create_task(client.generate(long_request(processor, seed)))
                for seed in range(1, 5)
            ]
            await until_running(client, server, 4)
            await client.pause_generation("abort")
            for task in tasks:
                assert (await task).stop_reason == "abort"
            late = group.create_task(client.generate(long_request(processor, 9, max_new_tokens=3)))
            assert await client.is_healthy()
            await client.model_info()
            assert not late.done()
            await client.continue_generation()
            assert len((await late).output_ids) == 3

    run_bounded(scenario)


@pytest.mark.requirement("pause-around-the-copy")
@pytest.mark.parametrize("mode", ["in_place", "retract"])
def test_pause_that_keeps_requests_goes_on_where_it_was(
    server: ServerUnderTest,
    processor: PolicyProcessor,
    reference: torch.nn.Module,
    mode: Literal["abort", "in_place", "retract"],
) -> None:
    async def scenario() -> None:
        request = long_request(processor, 1, max_new_tokens=120)
        async with client_of(server) as client, asyncio.TaskGroup() as group:
            task = group.create_task(client.generate(request))
            await until_running(client, server, 1)
            await client.pause_generation(mode)
            for _ in range(3):
                await client.model_info()
            assert not task.done()
            await client.continue_generation()
            result = await task
        assert result.stop_reason == "length"
        assert len(result.output_ids) == 120
        assert (
            largest_difference(reference, processor, request, [page_png(1)], result)
            < server.tolerance
        )

    run_bounded(scenario)


def test_continue_without_pause_and_pause_twice_are_harmless(
    server: ServerUnderTest, processor: PolicyProcessor
) -> None:
    async def scenario() -> None:
        async with client_of(server) as client:
            await client.continue_generation()
            await client.pause_generation()
            await client.pause_generation()
            await client.continue_generation()
            result = await client.generate(long_request(processor, 1, max_new_tokens=2))
            assert len(result.output_ids) == 2

    run_bounded(scenario)


def test_an_interrupted_answer_is_finished_by_resubmission_with_the_trainer_s_logprobs(
    server: ServerUnderTest, processor: PolicyProcessor, reference: torch.nn.Module
) -> None:
    async def scenario() -> None:
        request = long_request(processor, 1, max_new_tokens=200)
        async with client_of(server) as client, asyncio.TaskGroup() as group:
            generator = InterruptibleGenerator(client)
            task = group.create_task(generator.generate(request))
            for _ in range(2):
                await until_running(client, server, 1)
                await client.pause_generation()
                await client.continue_generation()
            result = await task
        assert generator.num_interrupted == 2
        assert len(result.output_ids) == 200
        assert (
            largest_difference(reference, processor, request, [page_png(1)], result)
            < server.tolerance
        )

    run_bounded(scenario)


def test_a_client_that_goes_away_takes_its_request_with_it(
    server: ServerUnderTest, processor: PolicyProcessor
) -> None:
    async def scenario() -> None:
        config = SGLangClientConfig(generate_deadline_s=0.3)
        async with client_of(server) as client:
            async with SGLangClient(server.url, config=config) as impatient:
                with pytest.raises(ServerUnavailableError, match=r"within 0.3 s"):
                    await impatient.generate(long_request(processor, 1))
            while await num_running(client, server) > 0:
                pass

    run_bounded(scenario)


def test_flush_is_refused_while_requests_run_and_done_when_idle(
    server: ServerUnderTest, processor: PolicyProcessor
) -> None:
    async def scenario() -> None:
        async with client_of(server) as client, asyncio.TaskGroup() as group:
            task = group.create_task(client.generate(long_request(processor, 1)))
            await until_running(client, server, 1)
            with pytest.raises(ServerUnavailableError, match="must be idle within"):
                await client.flush_cache(deadline_s=0.3)
            await client.abort_all()
            await task
            await client.flush_cache()

    run_bounded(scenario)


def test_an_abort_of_an_unknown_request_does_nothing(
    server: ServerUnderTest, processor: PolicyProcessor
) -> None:
    async def scenario() -> None:
        async with client_of(server) as client:
            await client.abort_request("nobody/")
            assert await client.is_healthy()

    run_bounded(scenario)


def test_many_clients_at_once_each_get_their_answer(
    server: ServerUnderTest, processor: PolicyProcessor
) -> None:
    async def scenario() -> None:
        async with client_of(server) as client, asyncio.TaskGroup() as group:
            tasks = [
                group.create_task(
                    client.generate(long_request(processor, seed % 9, max_new_tokens=3))
                )
                for seed in range(96)
            ]
        assert all(len(task.result().output_ids) == 3 for task in tasks)

    run_bounded(scenario)
