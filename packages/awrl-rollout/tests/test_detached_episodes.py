"""Episodes that gave up their slot and wait for something, such as a verdict."""

from __future__ import annotations

import asyncio

import pytest
from awrl_rollout import (
    EpisodeContext,
    EpisodeFaultError,
    EpisodeRequest,
    EpisodeResult,
    FaultKind,
    Outcome,
    RetryPolicy,
    WorkflowExecutor,
)
from awrl_rollout.testing import settle


class Judged:
    """A workflow that plays at once and then waits for `verdicts`."""

    def __init__(self, error: Exception | None = None) -> None:
        self.verdicts = asyncio.Event()
        self.played: list[tuple[str, int]] = []
        self.released: list[bool] = []
        self._error = error

    async def __call__(
        self, request: EpisodeRequest, context: EpisodeContext
    ) -> EpisodeResult | None:
        self.played.append((request.episode_id, context.slot))
        self.released.append(context.release_slot())
        await self.verdicts.wait()
        if self._error is not None:
            raise self._error
        return EpisodeResult(is_success=True, reward=1.0)


def _requests(count: int) -> list[EpisodeRequest]:
    return [EpisodeRequest(episode_id=f"e{n}", group_id=f"e{n}") for n in range(count)]


def test_slots_play_on_while_episodes_wait_and_only_so_many_may() -> None:
    async def main() -> None:
        workflow = Judged()
        async with WorkflowExecutor(workflow, num_slots=2, max_detached=3) as executor:
            executor.submit(_requests(8))
            await settle()
            # Three wait without a slot, two more in the slots; three have not begun.
            assert len(workflow.played) == 5
            assert sorted(workflow.released) == [False, False, True, True, True]
            seen = executor.statistics()
            assert (seen.num_running, seen.num_detached, seen.num_waiting) == (2, 3, 3)
            assert {slot for _, slot in workflow.played} == {0, 1}
            assert len(seen.slots) == 2
            workflow.verdicts.set()
            records = await executor.wait([f"e{n}" for n in range(8)], timeout_s=10)
            assert all(record.outcome is Outcome.SUCCESS for record in records)
            seen = executor.statistics()
            assert (seen.num_running, seen.num_detached) == (0, 0)
            workflow.verdicts.clear()
            executor.submit([EpisodeRequest(episode_id="late", group_id="late")])
            await settle()
            assert workflow.released[-1]
            workflow.verdicts.set()

    asyncio.run(main())


@pytest.mark.parametrize("max_detached", [0, 1])
def test_who_waits_has_no_deadline(max_detached: int) -> None:
    async def main() -> None:
        workflow = Judged()
        executor = WorkflowExecutor(
            workflow, num_slots=1, deadline_s=0.01, max_detached=max_detached
        )
        async with executor:
            executor.submit(_requests(1))
            passed = asyncio.Event()
            asyncio.get_running_loop().call_later(0.05, passed.set)
            await passed.wait()
            workflow.verdicts.set()
            (record,) = await executor.wait(["e0"], timeout_s=10)
            assert record.outcome is Outcome.SUCCESS

    asyncio.run(main())


def test_what_breaks_without_a_slot_is_not_run_again() -> None:
    async def main() -> None:
        workflow = Judged(EpisodeFaultError(FaultKind.BROWSER_LOST, "gone", boundary="browser"))
        workflow.verdicts.set()
        retry = RetryPolicy(max_retries=3, base_delay_s=0.0)
        async with WorkflowExecutor(workflow, num_slots=1, max_detached=1, retry=retry) as executor:
            (record,) = await executor.rollout_batch(_requests(1), timeout_s=10)
            assert record.outcome is Outcome.FAULT
            assert record.num_attempts == len(workflow.played) == 1

    asyncio.run(main())


def test_who_waits_can_be_cancelled_and_is_recorded_when_the_executor_closes() -> None:
    async def main() -> None:
        workflow = Judged()
        async with WorkflowExecutor(workflow, num_slots=1, max_detached=2) as executor:
            executor.submit(_requests(3))
            await settle()
            executor.cancel(["e0"])
            (first,) = await executor.wait(["e0"], timeout_s=10)
            assert first.fault is not None
            assert first.fault.kind is FaultKind.CANCELLED
        records = executor.take_finished()
        assert {r.episode_id for r in records if r.fault is not None} == {"e1", "e2"}

    asyncio.run(main())
