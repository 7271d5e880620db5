"""What happens to groups that a publish makes too old: dropped, enqueued again, or waited for."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from awrl_rollout import ControllerConfig, RolloutController, VirtualClock
from awrl_rollout.testing import endless_groups, make_group, settle
from awrl_staleness import StalenessConfig, StalenessManager
from rollout_doubles import ScriptedWorker

Body = Callable[[RolloutController, ScriptedWorker, VirtualClock], Awaitable[None]]


def run(
    body: Body,
    *,
    config: ControllerConfig | None = None,
    on_group_dropped: Callable[[str, str], None] | None = None,
) -> StalenessManager:
    clock, worker = VirtualClock(), ScriptedWorker(num_slots=8)
    manager = StalenessManager(
        StalenessConfig(max_concurrent=8, consumer_batch_size=2, max_off_policyness=1)
    )

    async def main() -> None:
        async with RolloutController(
            [worker],
            manager,
            source=endless_groups(1),
            config=config,
            on_group_dropped=on_group_dropped,
            clock=clock,
        ) as controller:
            await settle()
            assert list(worker.requests) == ["g0/0", "g1/0", "g2/0", "g3/0"]
            await body(controller, worker, clock)

    clock.run(main())
    return manager


async def finish(worker: ScriptedWorker, *ids: str) -> None:
    for key in ids:
        worker.succeed(key)
    await settle()


async def leave_one_behind(controller: RolloutController, worker: ScriptedWorker) -> None:
    """Publish version 1 while g0 runs on version 0, its last chance, with a full queue."""
    await finish(worker, "g1/0", "g2/0")
    await controller.prepare_batch(2)
    controller.advance(1)
    await settle()
    await finish(worker, "g3/0", "g4/0", "g5/0")


def test_under_wait_a_batch_closes_at_the_deadline_and_the_group_is_dropped_later() -> None:
    config = ControllerConfig(on_overrun="wait", overrun_deadline_s=100.0)

    async def body(
        controller: RolloutController, worker: ScriptedWorker, clock: VirtualClock
    ) -> None:
        await leave_one_behind(controller, worker)
        started_s = clock.time()
        batch = await controller.prepare_batch(2)
        assert 100.0 <= clock.time() - started_s < 102.0
        assert [group.group_id for group in batch] == ["g3", "g4"]
        controller.advance(2)
        await finish(worker, "g0/0")
        await controller.prepare_batch(1)
        assert controller.statistics().dropped_groups == {"expired": 1}

    manager = run(body, config=config)
    assert manager.statistics().wasted_by_reason["expired"] == 1


def test_a_dropped_groups_task_can_be_enqueued_again_ahead_of_the_source() -> None:
    controllers: list[RolloutController] = []

    def again(group_id: str, reason: str) -> None:
        if reason == "expired":
            controllers[0].submit(make_group(f"{group_id}-again", 1))

    async def body(
        controller: RolloutController, worker: ScriptedWorker, clock: VirtualClock
    ) -> None:
        controllers.append(controller)
        await leave_one_behind(controller, worker)
        await controller.prepare_batch(2)
        controller.advance(2)
        await settle()
        newest = list(worker.requests)[-1]
        await finish(worker, "g0/0")
        await finish(worker, newest)
        await controller.prepare_batch(1)
        await settle()
        assert "g0-again/0" in worker.requests

    run(body, on_group_dropped=again)
