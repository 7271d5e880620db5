"""The sentence that says who waits for whom."""

from __future__ import annotations

import asyncio
import logging

import pytest
from awrl_rollout import (
    ControllerConfig,
    EpisodeContext,
    EpisodeRequest,
    EpisodeResult,
    LocalWorker,
    RolloutController,
    VirtualClock,
    WorkflowExecutor,
)
from awrl_rollout.controller.reporting import describe_wait
from awrl_rollout.executor import SlotView
from awrl_rollout.testing import endless_groups
from awrl_staleness import StalenessConfig, StalenessManager


def view(stage: str, site: str, for_s: float) -> SlotView:
    return SlotView(slot=0, episode_id="e", stage=stage, site=site, for_s=for_s)


def sentence(*views: SlotView) -> str:
    return describe_wait(
        num_missing=3,
        waiting_s=140.2,
        num_slots=32,
        views=views,
        stuck_after_s=120.0,
        situation="2 groups are open",
    )


def test_the_most_frequent_stage_and_site_are_named() -> None:
    said = sentence(*[view("navigate", "x.org", 130.0)] * 31, view("generate", "", 500.0))
    assert said == (
        "trainer waits for 3 episodes since 140 s; 31 of 32 slots are in `navigate` at site x.org, "
        "1 of 32 slots are in `generate` for more than 120 s"
    )


def test_without_a_stuck_slot_the_situation_is_told() -> None:
    assert sentence(view("navigate", "x.org", 1.0)) == (
        "trainer waits for 3 episodes since 140 s; no slot is stuck: 2 groups are open"
    )


def test_a_waiting_trainer_gets_the_sentence_into_the_log(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def slow(request: EpisodeRequest, context: EpisodeContext) -> EpisodeResult:
        context.enter("navigate", site="x.org")
        await context.clock.sleep(300.0)
        return EpisodeResult(is_success=True)

    async def main() -> None:
        manager = StalenessManager(
            StalenessConfig(max_concurrent=4, consumer_batch_size=4, max_off_policyness=0)
        )
        async with (
            WorkflowExecutor(slow, num_slots=4, clock=clock) as executor,
            RolloutController(
                [LocalWorker(executor)],
                manager,
                source=endless_groups(2),
                config=ControllerConfig(watchdog_interval_s=120.0),
                clock=clock,
            ) as controller,
        ):
            await controller.prepare_batch(4)
            assert "waits for 0 episodes" in await controller.report()

    clock = VirtualClock()
    with caplog.at_level(logging.WARNING):
        clock.run(main())
    assert "4 of 4 slots are in `navigate` at site x.org for more than 120 s" in caplog.text
    assert "trainer waits for 4 episodes" in caplog.text


def test_a_batch_that_was_forgotten_is_named_where_the_next_one_waits(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def workflow(request: EpisodeRequest, context: EpisodeContext) -> EpisodeResult:
        return EpisodeResult(is_success=True)

    async def main() -> None:
        manager = StalenessManager(
            StalenessConfig(max_concurrent=4, consumer_batch_size=4, max_off_policyness=0)
        )
        async with (
            WorkflowExecutor(workflow, num_slots=4, clock=clock) as executor,
            RolloutController(
                [LocalWorker(executor)], manager, source=endless_groups(2), clock=clock
            ) as controller,
        ):
            assert "budget of batches" not in controller.describe()
            await controller.prepare_batch(4)
            async with asyncio.TaskGroup() as group:
                waiting = group.create_task(controller.prepare_batch(4))
                await clock.sleep(200.0)
                assert not waiting.done()
                controller.release_budget()
            assert waiting.result().num_episodes == 4

    clock = VirtualClock()
    with caplog.at_level(logging.WARNING):
        clock.run(main())
    said = [text for text in caplog.messages if "cannot fill yet" in text]
    assert len(said) == 1
    assert "the budget of batches 0 waits for advance or release_budget" in said[0]
