"""The everlasting executor, in virtual time."""

from __future__ import annotations

import asyncio
import logging
import pickle
import random
from collections.abc import Sequence
from typing import Any

import pytest
from awrl_rollout import (
    BatchTimeoutError,
    EpisodeContext,
    EpisodeFaultError,
    EpisodeRecord,
    EpisodeRequest,
    EpisodeResult,
    FaultKind,
    Outcome,
    RetryPolicy,
    RolloutError,
    ServerUnavailableError,
    VirtualClock,
    WorkflowExecutor,
)
from awrl_rollout.executor import Workflow
from awrl_rollout.testing import settle


def request(name: str, payload: object = None) -> EpisodeRequest:
    return EpisodeRequest(episode_id=name, group_id=name, payload=payload)


def requests(*names: str) -> list[EpisodeRequest]:
    return [request(name, name) for name in names]


async def by_payload(item: EpisodeRequest, context: EpisodeContext) -> EpisodeResult | None:
    """Do what the payload's first word says."""
    word = str(item.payload)
    if word.startswith("raise"):
        raise ValueError("x")
    if word.startswith("none"):
        return None
    if word.startswith("hang"):
        context.enter("navigate", site="x.org")
        await asyncio.get_running_loop().create_future()
    if word.startswith("lost"):
        raise EpisodeFaultError(FaultKind.BROWSER_LOST, "gone", boundary="browser")
    if isinstance(item.payload, float):
        await context.clock.sleep(item.payload)
    return EpisodeResult(is_success=True, payload=item.payload, reward=1.0)


def outcomes(records: list[EpisodeRecord]) -> list[Outcome]:
    return [record.outcome for record in records]


@pytest.mark.parametrize("bad", ["none", "raise"])
def test_a_batch_with_filtered_or_failed_members_returns_promptly(bad: str) -> None:
    async def main() -> None:
        async with WorkflowExecutor(by_payload, num_slots=2, clock=clock) as executor:
            items = requests("a", f"{bad}1", "b", f"{bad}2")
            records = await executor.rollout_batch(items, timeout_s=1)
            assert [r.payload for r in records if r.has_ended_well] == ["a", "b"]
            assert sum(not r.has_ended_well for r in records) == 2
            assert executor.statistics().num_running == 0

    clock = VirtualClock()
    clock.run(main())
    assert clock.time() == 0.0


def test_a_hanging_and_a_raising_task_free_their_slots_with_reasons() -> None:
    async def main() -> None:
        async with WorkflowExecutor(
            by_payload, num_slots=2, deadline_s=0.2, clock=clock
        ) as executor:
            hung, raised, normal = await executor.rollout_batch(
                requests("hang", "raise", "normal"), timeout_s=1
            )
            assert hung.fault is not None
            assert hung.fault.kind is FaultKind.TIMEOUT
            assert "'navigate'" in hung.fault.message
            assert raised.fault is not None
            assert normal.outcome is Outcome.SUCCESS
            assert executor.statistics().num_running == 0
            assert outcomes(await executor.rollout_batch(requests("fourth"))) == [Outcome.SUCCESS]
            executor.submit(requests("hang again"))
            with pytest.raises(BatchTimeoutError, match="got 1 still live"):
                await executor.wait(["hang again"], timeout_s=0.1)

    clock = VirtualClock()
    clock.run(main())


def test_one_failed_member_harms_no_sibling_and_keeps_its_error() -> None:
    async def main() -> None:
        async with WorkflowExecutor(by_payload, num_slots=8) as executor:
            names = [f"raise{i}" if i == 5 else f"ok{i}" for i in range(8)]
            records = await executor.rollout_batch(requests(*names))
            assert outcomes(records).count(Outcome.SUCCESS) == 7
            fault = records[5].fault
            assert fault is not None
            assert (fault.error_type, fault.message) == ("ValueError", "x")
            assert executor.statistics().num_faults == 1

    VirtualClock().run(main())


def test_closing_over_a_task_that_never_finishes_is_bounded_and_repeatable() -> None:
    async def main() -> None:
        async with WorkflowExecutor(by_payload, num_slots=1) as executor:
            executor.submit(requests("hang", "queued"))
            await settle()
            await executor.aclose(timeout_s=1)
            await executor.aclose(timeout_s=1)
            records = executor.take_finished()
            assert {record.episode_id for record in records} == {"hang", "queued"}
            assert {r.fault.kind for r in records if r.fault} == {FaultKind.CANCELLED}
            with pytest.raises(RolloutError):
                executor.submit(requests("late"))

    VirtualClock().run(main())


def test_a_workflow_that_refuses_to_be_cancelled_is_left_behind_with_a_warning(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def stubborn(item: EpisodeRequest, context: EpisodeContext) -> EpisodeResult:
        while True:
            try:
                await context.clock.sleep(50.0)
                return EpisodeResult(is_success=True)
            except asyncio.CancelledError:
                continue

    async def main() -> None:
        async with WorkflowExecutor(stubborn, num_slots=1, clock=clock) as executor:
            executor.submit(requests("a"))
            await settle()
            await executor.aclose(timeout_s=3)
            assert clock.time() == 3.0
            assert outcomes(executor.take_finished()) == [Outcome.FAULT]
        assert executor.take_finished() == []

    clock = VirtualClock()
    with caplog.at_level(logging.WARNING):
        clock.run(main())
    assert "refuse to be cancelled" in caplog.text


def test_an_always_failing_workflow_runs_exactly_the_allowed_attempts() -> None:
    async def main() -> None:
        retry = RetryPolicy(max_retries=3, base_delay_s=1.0, jitter=0.0)
        async with WorkflowExecutor(
            by_payload, num_slots=1, retry=retry, clock=clock, rng=random.Random(1)
        ) as executor:
            (record,) = await executor.rollout_batch(requests("raise"))
            assert record.num_attempts == 4
            assert record.fault is not None
            assert record.fault.num_attempts == 4
            assert record.fault.message == "x"
            assert executor.statistics().num_running == 0

    clock = VirtualClock()
    clock.run(main())
    assert clock.time() == 1.0 + 2.0 + 4.0


@pytest.mark.requirement("everlasting-slots")
def test_a_slot_starts_the_next_episode_at_once() -> None:
    async def main() -> None:
        async with WorkflowExecutor(by_payload, num_slots=2, clock=clock) as executor:
            items = [request(f"e{i}", float(1 + i % 3)) for i in range(30)]
            await executor.rollout_batch(items)
            assert executor.statistics().idle_share < 0.05

    clock = VirtualClock()
    clock.run(main())


def test_a_typed_fault_keeps_kind_and_boundary() -> None:
    async def main() -> None:
        async with WorkflowExecutor(by_payload, num_slots=1) as executor:
            (record,) = await executor.rollout_batch(requests("lost"))
            assert record.fault is not None
            assert (record.fault.kind, record.fault.boundary) == (
                FaultKind.BROWSER_LOST,
                "browser",
            )
            assert record.reward is None

    VirtualClock().run(main())


def test_pausing_admission_holds_requests_and_keeps_their_order() -> None:
    async def main() -> None:
        async with WorkflowExecutor(by_payload, num_slots=1) as executor:
            executor.pause_admission()
            executor.submit(requests("a", "b"))
            await settle()
            assert executor.statistics().num_waiting == 2
            executor.resume_admission()
            await settle()
            assert [record.episode_id for record in executor.take_finished()] == ["a", "b"]

    VirtualClock().run(main())


def test_cancelling_frees_the_slot_and_ignores_unknown_ids() -> None:
    async def main() -> None:
        async with WorkflowExecutor(by_payload, num_slots=1) as executor:
            executor.submit(requests("hang", "hang2", "ok"))
            await settle()
            executor.cancel(["hang", "hang2", "nobody"])
            records = await executor.wait(["hang", "hang2", "ok"])
            assert outcomes(records) == [Outcome.FAULT, Outcome.FAULT, Outcome.SUCCESS]

    VirtualClock().run(main())


def test_records_are_kept_until_they_are_acknowledged() -> None:
    async def main() -> None:
        async with WorkflowExecutor(by_payload, num_slots=2) as executor:
            executor.submit(requests("a", "b"))
            await settle()
            assert len(executor.take_finished([])) == 2
            assert [r.episode_id for r in executor.take_finished(["a"])] == ["b"]
            with pytest.raises(ValueError, match="must be new"):
                executor.submit(requests("b"))
            with pytest.raises(LookupError, match="'a'"):
                await executor.wait(["a"])

    VirtualClock().run(main())


def test_a_failing_hook_costs_nothing_but_a_log_line(caplog: pytest.LogCaptureFixture) -> None:
    async def hook(records: object) -> None:
        raise OSError("no route")

    async def main() -> None:
        async with WorkflowExecutor(by_payload, num_slots=1, on_finished=hook) as executor:
            await executor.rollout_batch(requests("a", "b"))
            await settle()

    VirtualClock().run(main())
    assert "on_finished failed" in caplog.text


def test_serve_returns_after_a_close() -> None:
    async def main() -> None:
        executor = WorkflowExecutor(by_payload, num_slots=1)
        async with asyncio.TaskGroup() as group:
            group.create_task(executor.serve())
            await settle()
            await executor.rollout_batch(requests("a"))
            await executor.aclose()

    VirtualClock().run(main())


def test_statistics_show_what_each_busy_slot_does() -> None:
    async def main() -> None:
        async with WorkflowExecutor(by_payload, num_slots=2, clock=clock) as executor:
            executor.submit(requests("hang"))
            await clock.sleep(5.0)
            (view,) = executor.statistics().slots
            assert (view.stage, view.site, view.for_s) == ("navigate", "x.org", 5.0)

    clock = VirtualClock()
    clock.run(main())


# -- what user code may not break


async def run_both(
    executor: WorkflowExecutor, *, bad: str = "bad", good: str = "good"
) -> list[EpisodeRecord]:
    return await executor.rollout_batch(requests(bad, good), timeout_s=30.0)


class _UnprintableError(Exception):
    def __str__(self) -> str:
        raise ValueError("no text")


def raising(error: type[BaseException]) -> Workflow:
    async def workflow(item: EpisodeRequest, context: EpisodeContext) -> EpisodeResult | None:
        await context.clock.sleep(1.0)
        if item.episode_id == "bad":
            raise error
        return EpisodeResult(is_success=True)

    return workflow


@pytest.mark.parametrize("error", [asyncio.CancelledError, _UnprintableError])
@pytest.mark.parametrize("num_slots", [1, 2])
def test_an_odd_error_of_a_workflow_costs_one_episode_and_no_slot(
    error: type[BaseException], num_slots: int
) -> None:
    clock = VirtualClock()

    async def main() -> None:
        async with WorkflowExecutor(raising(error), num_slots=num_slots, clock=clock) as executor:
            bad, good = await run_both(executor)
            assert bad.fault is not None
            assert bad.fault.kind is FaultKind.WORKFLOW_ERROR
            assert good.outcome is Outcome.SUCCESS

    clock.run(main())


def test_an_answer_of_a_wrong_type_costs_one_episode() -> None:
    clock = VirtualClock()

    async def workflow(item: EpisodeRequest, context: EpisodeContext) -> EpisodeResult | None:
        answer: Any = True
        return answer if item.episode_id == "bad" else EpisodeResult(is_success=True)

    async def main() -> None:
        async with WorkflowExecutor(workflow, num_slots=1, clock=clock) as executor:
            bad, good = await run_both(executor)
            assert bad.fault is not None
            assert "must return an EpisodeResult or None, got bool" in bad.fault.message
            assert good.outcome is Outcome.SUCCESS

    clock.run(main())


@pytest.mark.parametrize(
    ("deadline_s", "kind"), [(None, FaultKind.CANCELLED), (5.0, FaultKind.TIMEOUT)]
)
def test_a_clean_up_that_fails_hides_neither_a_cancellation_nor_a_deadline(
    deadline_s: float | None, kind: FaultKind
) -> None:
    clock, runs = VirtualClock(), list[float]()

    async def workflow(item: EpisodeRequest, context: EpisodeContext) -> EpisodeResult | None:
        runs.append(clock.time())
        try:
            await context.clock.sleep(1000.0)
        finally:
            raise RuntimeError("page.close: target closed")

    async def main() -> None:
        retry = RetryPolicy(max_retries=2)
        async with WorkflowExecutor(
            workflow, num_slots=1, deadline_s=deadline_s, retry=retry, clock=clock
        ) as executor:
            executor.submit(requests("a"))
            await clock.sleep(4.0)
            if deadline_s is None:
                executor.cancel(["a"])
            (record,) = await executor.wait(["a"])
            assert record.fault is not None
            assert (record.fault.kind, record.num_attempts) == (kind, 1)

    clock.run(main())
    assert runs == [0.0]
    assert clock.time() < 6.0


def test_a_server_that_gives_no_answer_is_a_fault_of_generation() -> None:
    clock = VirtualClock()

    async def main() -> None:
        workflow = raising(ServerUnavailableError)
        async with WorkflowExecutor(workflow, num_slots=1, clock=clock) as executor:
            bad, _ = await run_both(executor)
            assert bad.fault is not None
            assert bad.fault.kind is FaultKind.GENERATION_ERROR

    clock.run(main())


def test_a_hook_that_raises_cancelled_error_is_told_of_the_next_record_too() -> None:
    clock, told = VirtualClock(), list[str]()

    async def hook(records: Sequence[EpisodeRecord]) -> None:
        told.extend(record.episode_id for record in records)
        raise asyncio.CancelledError

    async def main() -> None:
        async with WorkflowExecutor(
            by_payload, num_slots=1, on_finished=hook, clock=clock
        ) as executor:
            for name in "ab":
                await executor.rollout_batch([request(name)])
                await settle()

    clock.run(main())
    assert told == ["a", "b"]


def test_a_close_that_was_interrupted_is_finished_by_whoever_serves() -> None:
    clock = VirtualClock()

    async def workflow(item: EpisodeRequest, context: EpisodeContext) -> EpisodeResult | None:
        try:
            await context.clock.sleep(1000.0)
        finally:
            await context.clock.sleep(5.0)
        return None

    async def main() -> None:
        executor = WorkflowExecutor(workflow, num_slots=1, clock=clock)
        async with asyncio.TaskGroup() as group:
            group.create_task(executor.serve())
            await settle()
            executor.submit(requests("a"))
            await clock.sleep(1.0)
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(1.0):
                    await executor.aclose()
            await executor.aclose()

    clock.run(main())
    assert clock.time() < 10.0


def test_an_id_that_is_used_again_runs_its_new_request() -> None:
    clock = VirtualClock()

    async def workflow(item: EpisodeRequest, context: EpisodeContext) -> EpisodeResult | None:
        return EpisodeResult(is_success=True, payload=item.payload)

    async def main() -> None:
        async with WorkflowExecutor(workflow, num_slots=1, clock=clock) as executor:
            executor.pause_admission()
            executor.submit([request("a", "first")])
            executor.cancel(["a"])
            executor.take_finished()
            executor.submit([request("a", "second")])
            executor.resume_admission()
            (record,) = await executor.wait(["a"], timeout_s=9.0)
            assert record.payload == "second"

    clock.run(main())


def test_a_record_taken_under_a_waiter_is_said_to_be_gone() -> None:
    clock = VirtualClock()

    async def main() -> None:
        async with WorkflowExecutor(by_payload, num_slots=1, clock=clock) as executor:
            executor.submit(requests("a"))
            executor.subscribe(lambda: executor.take_finished().clear())
            with pytest.raises(LookupError, match="taken by take_finished meanwhile"):
                await executor.wait(["a"], timeout_s=1000.0)

    clock.run(main())


def test_a_typed_fault_survives_pickling() -> None:
    error = EpisodeFaultError(FaultKind.BROWSER_LOST, "gone", boundary="browser")
    again = pickle.loads(pickle.dumps(error))
    assert (again.kind, again.boundary, str(again)) == (error.kind, "browser", "gone")
