from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

import msgspec
import pytest
from awrl_rollout import (
    GenerateRequest,
    GenerateResult,
    InterruptibleGenerator,
    RetryPolicy,
    ServerRefusedError,
    ServerUnavailableError,
)
from awrl_rollout.testing import settle
from hypothesis import given, settings
from hypothesis import strategies as st
from rollout_doubles import Cut, FailedAttempt, ScriptedClient

T = TypeVar("T")

IMAGES = ("aW1hZ2Ux", "aW1hZ2Uy")


def run(coroutine: Coroutine[Any, Any, T]) -> T:
    return asyncio.run(coroutine)


def request(**changes: Any) -> GenerateRequest:
    fields: dict[str, Any] = {
        "input_ids": (5, 6, 7),
        "images": IMAGES,
        "max_new_tokens": 9,
        "temperature": 0.7,
        "top_p": 0.9,
        "masked_token_ids": (3, 4),
        "episode_id": "e1",
    }
    return GenerateRequest(**{**fields, **changes})


class Sleeps:
    def __init__(self) -> None:
        self.waits: list[float] = []

    async def __call__(self, seconds: float) -> None:
        self.waits.append(seconds)
        await asyncio.sleep(0)


def uncut(wanted: GenerateRequest) -> GenerateResult:
    return run(ScriptedClient(version=1).generate(wanted))


@settings(deadline=None)
@given(
    cuts=st.lists(st.integers(0, 4), max_size=12), budget=st.integers(1, 16), start=st.integers()
)
def test_an_answer_in_pieces_equals_the_uncut_one(cuts: list[int], budget: int, start: int) -> None:
    wanted = request(input_ids=(abs(start) % 1000, 8), max_new_tokens=budget)
    script = [Cut(num_tokens=n, next_version=2 + i) for i, n in enumerate(cuts)]
    client = ScriptedClient(script, version=1)
    result = run(InterruptibleGenerator(client, sleep=Sleeps()).generate(wanted))
    whole = uncut(wanted)
    assert result.output_ids == whole.output_ids
    assert result.logprobs == whole.logprobs
    assert result.stop_reason == whole.stop_reason
    assert list(result.versions) == sorted(result.versions)


@pytest.mark.requirement("in-place-update-any-time")
@pytest.mark.parametrize("position", range(9))
def test_a_cut_at_every_position_resubmits_prompt_plus_tokens(position: int) -> None:
    wanted = request()
    client = ScriptedClient(
        [Cut(num_tokens=position, next_version=11)], version=10, end_token_id=-1
    )
    result = run(InterruptibleGenerator(client, sleep=Sleeps()).generate(wanted))
    assert result.versions == (10,) * position + (11,) * (9 - position)
    second = client.attempts[1]
    assert tuple(second.input_ids) == (5, 6, 7, *result.output_ids[:position])
    assert second.max_new_tokens == 9 - position
    assert second.images == IMAGES


@pytest.mark.requirement("in-place-update-any-time")
def test_tokens_carry_the_version_that_the_server_answered_with() -> None:
    client = ScriptedClient([Cut(num_tokens=3, next_version=11)], version=10, end_token_id=-1)
    result = run(InterruptibleGenerator(client).generate(request(max_new_tokens=5)))
    assert result.versions == (10, 10, 10, 11, 11)


def test_tokens_logprobs_and_versions_have_one_length_after_a_cut() -> None:
    client = ScriptedClient([Cut(num_tokens=3, next_version=11)], version=10, end_token_id=-1)
    result = run(InterruptibleGenerator(client).generate(request(max_new_tokens=5)))
    assert len(result.output_ids) == len(result.logprobs) == len(result.versions) == 5
    assert [version >= 11 for version in result.versions] == [False, False, False, True, True]


def test_every_attempt_carries_all_settings_and_the_request_is_unchanged() -> None:
    wanted = request()
    before = msgspec.json.encode(wanted)
    client = ScriptedClient([Cut(num_tokens=2), Cut(num_tokens=1)], end_token_id=-1)
    generator = InterruptibleGenerator(client)
    run(generator.generate(wanted))
    run(generator.generate(wanted))
    assert msgspec.json.encode(wanted) == before
    for attempt in client.attempts:
        assert attempt.temperature == 0.7
        assert attempt.top_p == 0.9
        assert attempt.masked_token_ids == (3, 4)
        assert attempt.episode_id == "e1"
    assert [attempt.max_new_tokens for attempt in client.attempts] == [9, 7, 6, 9]


def test_a_lost_reply_adds_nothing_and_the_delivered_one_wins() -> None:
    client = ScriptedClient([Cut(num_tokens=2), FailedAttempt()], end_token_id=-1)
    result = run(InterruptibleGenerator(client, sleep=Sleeps()).generate(request()))
    assert result.output_ids == run(ScriptedClient(end_token_id=-1).generate(request())).output_ids
    assert client.attempts[1] == client.attempts[2]


def test_failures_in_a_row_are_bounded_and_the_last_error_is_told() -> None:
    client = ScriptedClient([FailedAttempt(message=f"failure {i}") for i in range(10)])
    sleeps = Sleeps()
    retry = RetryPolicy(max_retries=3, base_delay_s=0.5, max_delay_s=1.0, jitter=0.0)
    generator = InterruptibleGenerator(client, retry=retry, sleep=sleeps)
    with pytest.raises(ServerUnavailableError, match=r"4 attempts in a row, got none.*failure 3"):
        run(generator.generate(request()))
    assert len(client.attempts) == 4
    assert sleeps.waits == [0.5, 1.0, 1.0]


def test_an_answer_between_failures_resets_their_count() -> None:
    script = [FailedAttempt(), Cut(num_tokens=1), FailedAttempt(), Cut(num_tokens=1)]
    client = ScriptedClient(script, end_token_id=-1)
    retry = RetryPolicy(max_retries=1, base_delay_s=0.0)
    result = run(InterruptibleGenerator(client, retry=retry, sleep=Sleeps()).generate(request()))
    assert len(result.output_ids) == 9


def test_a_refused_request_is_not_repeated() -> None:
    class Refusing:
        num_calls = 0

        async def generate(self, request: GenerateRequest) -> GenerateResult:
            self.num_calls += 1
            raise ServerRefusedError("too long")

    client = Refusing()
    with pytest.raises(ServerRefusedError, match="too long"):
        run(InterruptibleGenerator(client).generate(request()))
    assert client.num_calls == 1


def test_cuts_without_a_token_are_spaced_after_the_first() -> None:
    client = ScriptedClient([Cut() for _ in range(5)], end_token_id=-1)
    sleeps = Sleeps()
    run(InterruptibleGenerator(client, sleep=sleeps).generate(request()))
    assert sleeps.waits == [0.05, 0.1, 0.2, 0.4]


def test_a_cut_that_used_up_the_budget_ends_with_length() -> None:
    client = ScriptedClient([Cut(num_tokens=9)], end_token_id=-1)
    result = run(InterruptibleGenerator(client).generate(request()))
    assert result.stop_reason == "length"
    assert len(client.attempts) == 1


def test_a_server_that_stays_silent_ends_at_the_deadline() -> None:
    class Silent:
        async def generate(self, request: GenerateRequest) -> GenerateResult:
            await asyncio.Event().wait()
            raise AssertionError

    generator = InterruptibleGenerator(Silent())
    with pytest.raises(ServerUnavailableError, match=r"within 0.01 s, got 0 of 9 tokens"):
        run(generator.generate(request(), deadline_s=0.01))
    assert run(generator.drained(deadline_s=0.01))


@pytest.mark.requirement("pause-around-the-copy")
def test_no_attempt_is_sent_between_pause_and_resume() -> None:
    async def scenario() -> None:
        client = ScriptedClient()
        generator = InterruptibleGenerator(client)
        generator.pause()
        async with asyncio.TaskGroup() as group:
            task = group.create_task(generator.generate(request()))
            await settle()
            assert client.attempts == []
            assert generator.is_paused
            generator.resume()
        assert len(task.result().output_ids) > 0

    run(scenario())


def test_a_cut_during_a_pause_is_resubmitted_after_resume() -> None:
    async def scenario() -> None:
        def pause_once(_: GenerateRequest) -> None:
            if len(client.attempts) == 1:
                generator.pause()

        client = ScriptedClient([Cut(num_tokens=2)], end_token_id=-1, on_attempt=pause_once)
        generator = InterruptibleGenerator(client)
        async with asyncio.TaskGroup() as group:
            task = group.create_task(generator.generate(request()))
            await settle()
            assert len(client.attempts) == 1
            generator.resume()
        assert len(task.result().output_ids) == 9

    run(scenario())


def test_a_paused_generator_is_drained_when_the_last_attempt_is_back() -> None:
    async def scenario() -> None:
        answered = asyncio.Event()

        class Slow:
            async def generate(self, request: GenerateRequest) -> GenerateResult:
                await answered.wait()
                return GenerateResult(
                    output_ids=(5,), logprobs=(-1.0,), versions=(0,), stop_reason="abort"
                )

        generator = InterruptibleGenerator(Slow())
        assert await generator.drained(deadline_s=0.01)
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(generator.generate(request())) for _ in range(2)]
            await settle()
            generator.pause()
            assert not await generator.drained(deadline_s=0.01)
            answered.set()
            # Both wait at the gate with what they have; nothing of them is at the server.
            assert await generator.drained(deadline_s=5)
            assert not any(task.done() for task in tasks)
            generator.resume()

    run(scenario())


def test_a_server_that_ignores_the_budget_is_refused() -> None:
    class Generous:
        async def generate(self, request: GenerateRequest) -> GenerateResult:
            count = request.max_new_tokens + 1
            return GenerateResult(
                output_ids=(1,) * count,
                logprobs=(-1.0,) * count,
                versions=(0,) * count,
                stop_reason="length",
            )

    with pytest.raises(ServerRefusedError, match="at most 9 tokens, got 10"):
        run(InterruptibleGenerator(Generous()).generate(request()))


def test_a_cancelled_request_leaves_nothing_at_the_server() -> None:
    async def scenario() -> None:
        class Silent:
            async def generate(self, request: GenerateRequest) -> GenerateResult:
                await asyncio.Event().wait()
                raise AssertionError

        generator = InterruptibleGenerator(Silent())
        async with asyncio.TaskGroup() as group:
            task = group.create_task(generator.generate(request()))
            await settle()
            assert not await generator.drained(deadline_s=0.01)
            task.cancel()
        assert await generator.drained(deadline_s=0.01)

    run(scenario())


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"input_ids": ()}, "input_ids must hold at least one token"),
        ({"max_new_tokens": 0}, "max_new_tokens must be >= 1, got 0"),
        ({"temperature": -0.1}, "temperature must be >= 0"),
        ({"temperature": float("nan")}, "temperature must be >= 0"),
        ({"top_p": 0.0}, r"top_p must be in \(0, 1\], got 0.0"),
    ],
)
def test_a_wrong_request_is_refused_by_name(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        request(**changes)


def test_a_result_of_unequal_lengths_is_refused() -> None:
    with pytest.raises(ValueError, match="must have one length, got 2, 1 and 2"):
        GenerateResult(output_ids=(1, 2), logprobs=(-0.1,), versions=(0, 0), stop_reason="length")


def test_a_deadline_of_zero_is_refused() -> None:
    with pytest.raises(ValueError, match="deadline_s must be > 0, got 0"):
        InterruptibleGenerator(ScriptedClient(), deadline_s=0)


@pytest.mark.parametrize("value", [float("nan"), float("-inf"), True])
def test_a_logprob_that_is_not_a_finite_number_is_refused(value: float) -> None:
    with pytest.raises(ValueError, match="logprobs must be finite numbers"):
        GenerateResult(output_ids=(1,), logprobs=(value,), versions=(0,), stop_reason="stop")


@pytest.mark.parametrize("reason", ["stop", "length"])
def test_an_answer_without_a_token_is_refused_unless_it_was_cut(reason: Any) -> None:
    with pytest.raises(ValueError, match="must hold a token, got none"):
        GenerateResult(output_ids=(), logprobs=(), versions=(), stop_reason=reason)
    GenerateResult(output_ids=(), logprobs=(), versions=(), stop_reason="abort")
