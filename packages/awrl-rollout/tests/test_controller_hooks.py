"""What the controller tells its caller: discards, drops, breaker, bounds, generation."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from awrl_rollout import (
    BatchTimeoutError,
    ControllerConfig,
    EpisodeRecord,
    FaultKind,
    LocalWorker,
    RolloutController,
    StarvedError,
    VirtualClock,
    WorkflowExecutor,
)
from awrl_rollout.testing import (
    endless_groups,
    make_group,
    scripted_workflow,
    settle,
)
from awrl_staleness import StalenessConfig, StalenessManager
from rollout_doubles import ScriptedWorker


def limits(batch: int = 2, eta: int = 0) -> StalenessManager:
    return StalenessManager(
        StalenessConfig(max_concurrent=100, consumer_batch_size=batch, max_off_policyness=eta)
    )


class HookLog:
    """Remembers every call of the hooks."""

    def __init__(self) -> None:
        self.discarded: list[tuple[str, str]] = []
        self.dropped: list[tuple[str, str]] = []

    def hear_records(self, records: Sequence[EpisodeRecord], reason: str) -> None:
        self.discarded += [(record.episode_id, reason.split(":")[0]) for record in records]

    def hear_group(self, group_id: str, reason: str) -> None:
        self.dropped.append((group_id, reason))


def test_each_record_that_no_batch_will_hold_is_told_once_with_its_reason() -> None:
    hook_log, worker, clock = HookLog(), ScriptedWorker(num_slots=8), VirtualClock()

    async def main() -> None:
        async with RolloutController(
            [worker],
            limits(),
            source=endless_groups(2),
            config=ControllerConfig(max_refills=0, when_incomplete="drop", episode_deadline_s=50.0),
            accept_group=lambda records: "zero variance" if records[0].group_id == "g1" else None,
            on_discarded=hook_log.hear_records,
            on_group_dropped=hook_log.hear_group,
            clock=clock,
        ) as controller:
            await settle()
            worker.fail("g0/0")
            worker.succeed("g0/1")
            await settle()
            worker.succeed("g1/0")
            worker.succeed("g1/1")
            await settle()
            late = worker.requests["g2/0"]
            worker.forget("g2/0")
            await clock.sleep(60.0)
            worker.requests["g2/0"] = late
            worker.succeed("g2/0")
            await settle()
            # Its sibling ran into the deadline too, and answered when it was cancelled.
            assert controller.statistics().num_duplicates == 2

    clock.run(main())
    assert hook_log.discarded[:4] == [
        ("g0/0", "browser_lost at script"),
        ("g0/1", "incomplete"),
        ("g1/0", "zero variance"),
        ("g1/1", "zero variance"),
    ]
    assert ("g2/0", "timeout at controller") in hook_log.discarded
    assert ("g2/0", "late") in hook_log.discarded
    assert hook_log.dropped[:2] == [("g0", "incomplete"), ("g1", "zero variance")]


def test_closing_tells_of_everything_that_was_open() -> None:
    hook_log, worker, clock = HookLog(), ScriptedWorker(num_slots=8), VirtualClock()

    async def main() -> None:
        async with RolloutController(
            [worker],
            limits(batch=4),
            source=endless_groups(2),
            on_discarded=hook_log.hear_records,
            on_group_dropped=hook_log.hear_group,
            clock=clock,
        ):
            await settle()
            worker.succeed("g0/0")
            await settle()

    clock.run(main())
    told = [key for key, reason in hook_log.discarded if reason != "late"]
    assert sorted(told) == ["g0/0", "g0/1", "g1/0", "g1/1"]
    assert hook_log.dropped == [
        ("g0", "the controller was closed"),
        ("g1", "the controller was closed"),
    ]


def test_the_breaker_stops_admission_and_the_trainer() -> None:
    worker, clock = ScriptedWorker(num_slots=8), VirtualClock()

    async def main() -> None:
        async with RolloutController(
            [worker],
            limits(),
            source=endless_groups(1),
            config=ControllerConfig(max_fault_share=0.5, fault_window=4, outage_patience_s=9.0),
            clock=clock,
        ) as controller:
            await settle()
            for _ in range(4):
                worker.fail(next(iter(worker.requests)), FaultKind.SITE_BLOCKED)
                await settle()
            assert controller.statistics().is_on_trial
            await clock.sleep(16.0)
            worker.fail(next(iter(worker.requests)), FaultKind.SITE_BLOCKED)
            await settle()
            with pytest.raises(StarvedError, match="site_blocked 4"):
                await controller.prepare_batch(2)
            num_seen = len(worker.seen)
            await clock.sleep(60.0)
            assert len(worker.seen) == num_seen

    clock.run(main())


def test_no_entry_point_starts_training_without_capacity() -> None:
    worker, clock = ScriptedWorker(num_slots=8), VirtualClock()

    async def main() -> None:
        manager = limits()
        async with RolloutController(
            [worker], manager, source=endless_groups(2), clock=clock
        ) as controller:
            await settle()
            assert len(worker.requests) == 2
            controller.submit(make_group("mine", 2))
            controller.resume_admission()
            controller.notify("worker")
            controller.add_worker(ScriptedWorker("second", num_slots=8))
            await settle()
            assert len(worker.seen) == 2
            manager.enqueue("by hand")
            assert not manager.try_start("by hand")

    clock.run(main())


def test_eleven_hundred_finished_episodes_wait_for_a_late_consumer() -> None:
    clock = VirtualClock()

    async def main() -> None:
        async with (
            WorkflowExecutor(scripted_workflow(), num_slots=50, clock=clock) as executor,
            RolloutController(
                [LocalWorker(executor)], limits(1100), source=endless_groups(1), clock=clock
            ) as controller,
        ):
            await clock.sleep(100.0)
            assert controller.statistics().num_ready_groups == 1100
            batch = await controller.prepare_batch(1100)
            assert batch.num_episodes == len({group.group_id for group in batch}) == 1100

    clock.run(main())


class Generation:
    """A generation client that says when it is paused."""

    def __init__(self, name: str, log: list[str]) -> None:
        self.name = name
        self.log = log

    def pause(self) -> None:
        self.log.append(f"pause {self.name}")

    def resume(self) -> None:
        self.log.append(f"resume {self.name}")


def test_all_clients_pause_before_the_weights_and_resume_after_an_error() -> None:
    log: list[str] = []
    clock = VirtualClock()

    async def main() -> None:
        executors = [WorkflowExecutor(scripted_workflow(), num_slots=1, name=name) for name in "ab"]
        workers = [
            LocalWorker(executor, generation=Generation(executor.name, log))
            for executor in executors
        ]
        async with RolloutController(workers, limits(), clock=clock) as controller:
            with pytest.raises(OSError, match="broadcast"):
                await update(controller, log)

    clock.run(main())
    assert sorted(log[:2]) == ["pause a", "pause b"]
    assert log[2] == "weights"
    assert sorted(log[3:]) == ["resume a", "resume b"]


async def update(controller: RolloutController, log: list[str]) -> None:
    await controller.pause_generation()
    try:
        log.append("weights")
        raise OSError("the broadcast failed")
    finally:
        await controller.resume_generation()


def test_without_any_worker_the_trainer_hhook_log_of_it() -> None:
    worker, clock = ScriptedWorker(), VirtualClock()

    async def main() -> None:
        async with RolloutController(
            [worker], limits(), source=endless_groups(2), clock=clock
        ) as controller:
            await settle()
            worker.die()
            with pytest.raises(StarvedError, match="0 episodes in flight on 0 workers"):
                await controller.prepare_batch(2)

    clock.run(main())


def test_an_error_of_the_body_leaves_the_block_as_itself() -> None:
    clock = VirtualClock()

    async def main() -> None:
        async with RolloutController([ScriptedWorker()], limits(), clock=clock):
            raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        clock.run(main())


def test_a_broken_hook_ends_the_run_loudly() -> None:
    worker, clock = ScriptedWorker(), VirtualClock()

    def broken(records: Sequence[EpisodeRecord]) -> str | None:
        raise ZeroDivisionError("hook")

    async def main() -> None:
        async with RolloutController(
            [worker], limits(), source=endless_groups(1), accept_group=broken, clock=clock
        ) as controller:
            await settle()
            worker.succeed("g0/0")
            with pytest.raises(BatchTimeoutError):
                await controller.prepare_batch(2, timeout_s=1000)

    with pytest.raises(ZeroDivisionError, match="hook"):
        clock.run(main())


def test_every_kind_of_end_is_told_to_the_ledger() -> None:
    worker, clock, manager = ScriptedWorker(), VirtualClock(), limits(1)

    async def main() -> None:
        async with RolloutController([worker], manager, source=endless_groups(1), clock=clock):
            await settle()
            worker.fail("g0/0", FaultKind.NAVIGATION_ERROR)
            await clock.sleep(1.0)
            await settle()
            worker.filter_out("g0/0~1")
            await settle()
            wasted = manager.statistics().wasted_by_reason
            assert wasted == {
                "faulted: navigation_error": 1,
                "rejected: filtered by the workflow": 1,
            }
            assert list(worker.requests) == ["g1/0"]

    clock.run(main())
