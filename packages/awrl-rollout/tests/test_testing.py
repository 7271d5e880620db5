"""The fakes that are shipped: one workflow over a scripted server and a scripted session."""

from __future__ import annotations

import pytest
from awrl_rollout import (
    EpisodeContext,
    EpisodeFaultError,
    EpisodeRecord,
    EpisodeRequest,
    EpisodeResult,
    FaultKind,
    GenerateRequest,
    InterruptibleGenerator,
    Outcome,
    SyncPool,
    VirtualClock,
    WorkflowExecutor,
)
from awrl_rollout.testing import lognormal_durations, make_group
from rollout_doubles import ScriptedClient

STEPS_S = [2.0, 3.0]


async def workflow(request: EpisodeRequest, context: EpisodeContext) -> EpisodeResult:
    """Ask the policy, act, look; the third member's browser dies."""
    generator = InterruptibleGenerator(ScriptedClient())
    seen: list[object] = []
    for step, duration_s in enumerate(STEPS_S):
        prompt = (request.member, step)
        answer = await generator.generate(GenerateRequest(input_ids=prompt, max_new_tokens=4))
        await context.clock.sleep(duration_s)
        if request.member == 2 and step == 1:
            raise EpisodeFaultError(FaultKind.BROWSER_LOST, "as scripted", boundary="session")
        seen.append(answer.output_ids)
    return EpisodeResult(is_success=True, payload=seen, reward=1.0)


def test_pool_and_executor_run_the_same_workflow_and_sessions_to_the_same_records() -> None:
    clock = VirtualClock()

    async def main() -> tuple[list[EpisodeRecord], list[EpisodeRecord]]:
        pool = SyncPool(workflow, num_slots=4, clock=clock)
        synchronous = await pool.run_round(make_group("g", 4))
        async with WorkflowExecutor(workflow, num_slots=4, clock=clock) as executor:
            return synchronous, await executor.rollout_batch(make_group("g", 4))

    synchronous, everlasting = clock.run(main())
    assert clock.time() == 10.0
    assert [record.outcome for record in synchronous].count(Outcome.FAULT) == 1
    assert [(item.member, item.outcome, item.payload, item.fault) for item in synchronous] == [
        (item.member, item.outcome, item.payload, item.fault) for item in everlasting
    ]


def test_durations_are_fixed_by_episode_and_seed_and_have_the_asked_mean_and_spread() -> None:
    draw, again = (lognormal_durations(mean_s=60.0, cv=1.0, seed=3) for _ in range(2))
    other = lognormal_durations(mean_s=60.0, cv=1.0, seed=4)
    items = make_group("g", 20_000)
    drawn = [draw(item) for item in items]
    assert drawn[:5] == [again(item) for item in items[:5]]
    assert drawn[:5] != [other(item) for item in items[:5]]
    mean = sum(drawn) / len(drawn)
    spread = (sum((value - mean) ** 2 for value in drawn) / len(drawn)) ** 0.5
    assert mean == pytest.approx(60.0, rel=0.03)
    assert spread / mean == pytest.approx(1.0, rel=0.1)
