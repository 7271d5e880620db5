"""The synchronous baseline, in virtual time."""

from __future__ import annotations

import asyncio

import pytest
from awrl_rollout import (
    EpisodeContext,
    EpisodeRequest,
    EpisodeResult,
    Outcome,
    SyncPool,
    VirtualClock,
)
from awrl_rollout.testing import make_group, scripted_workflow


@pytest.mark.requirement("synchronous-baseline")
def test_a_round_waits_for_its_slowest_and_pays_warm_up_and_tear_down() -> None:
    clock = VirtualClock()
    events: list[str] = []

    async def spawn(slot: int) -> None:
        await clock.sleep(2.0)
        events.append(f"spawn {slot}")

    async def tear_down(slot: int) -> None:
        events.append(f"tear down {slot}")

    pool = SyncPool(
        scripted_workflow(lambda request: 1.0 + 9.0 * request.member),
        num_slots=2,
        spawn=spawn,
        tear_down=tear_down,
        clock=clock,
    )

    async def main() -> None:
        for name in ("a", "b"):
            records = await pool.run_round(make_group(name, 2))
            assert [record.member for record in records] == [0, 1]

    clock.run(main())
    assert clock.time() == 24.0
    assert events == ["spawn 0", "spawn 1", "tear down 0", "tear down 1"] * 2
    seen = pool.statistics()
    assert (seen.busy_s, seen.alive_s) == (22.0, 48.0)
    assert seen.idle_share == pytest.approx(1 - 22 / 48)


def test_a_longer_round_reuses_slots_and_a_failed_episode_is_a_record() -> None:
    def fail(request: object) -> EpisodeResult:
        raise ValueError("x")

    clock = VirtualClock()
    pool = SyncPool(scripted_workflow(result=fail), num_slots=2, clock=clock)

    async def main() -> None:
        records = await pool.run_round(make_group("a", 5))
        assert [record.outcome for record in records] == [Outcome.FAULT] * 5

    clock.run(main())


def test_a_pool_without_slots_is_refused() -> None:
    with pytest.raises(ValueError, match="num_slots must be at least 1, got 0"):
        SyncPool(scripted_workflow(), num_slots=0)


def test_a_cancelled_error_of_a_workflow_costs_one_episode_of_a_round() -> None:
    clock = VirtualClock()

    async def workflow(item: EpisodeRequest, context: EpisodeContext) -> EpisodeResult | None:
        if item.member == 0:
            raise asyncio.CancelledError
        return EpisodeResult(is_success=True)

    pool = SyncPool(workflow, num_slots=1, clock=clock)
    records = clock.run(pool.run_round(make_group("g", 2)))
    assert [record.outcome for record in records] == [Outcome.FAULT, Outcome.SUCCESS]
