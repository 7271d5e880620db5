"""Stopping a whole run and starting it again."""

import pickle

from awrl_rollout import ControllerSnapshot, EpochSource, RolloutController, VirtualClock
from awrl_rollout.testing import ScriptedWorker, settle
from awrl_staleness import StalenessConfig, StalenessManager

LIMITS = StalenessConfig(max_concurrent=100, consumer_batch_size=4, max_off_policyness=1)
TASKS = list("abcdefgh")


async def first_run(clock: VirtualClock) -> tuple[bytes, int]:
    """Leave g0 in training, g1 ready, g2 half done, g3 running, g4 in line."""
    worker = ScriptedWorker(num_slots=8)
    source = EpochSource(TASKS, group_size=2, seed=None)
    manager = StalenessManager(LIMITS)
    async with RolloutController([worker], manager, source=source, clock=clock) as controller:
        await settle()
        for key in ("0/0", "0/1", "1/0", "1/1", "2/0"):
            worker.succeed(key)
        await settle()
        await controller.prepare_batch(2)
        snapshot = controller.snapshot()
        saved = pickle.dumps((snapshot, source.position))
    return saved, manager.version


def resumed(saved: bytes, version: int) -> tuple[ControllerSnapshot, StalenessManager, EpochSource]:
    snapshot, position = pickle.loads(saved)
    manager, _ = StalenessManager.restore(
        LIMITS, snapshot.ledger, persisted=snapshot.persisted, version=version
    )
    return snapshot, manager, EpochSource(TASKS, group_size=2, seed=None, position=position)


def test_saved_groups_are_queued_and_the_rest_runs_again_in_order() -> None:
    clock = VirtualClock()
    saved, version = clock.run(first_run(clock))
    snapshot, manager, source = resumed(saved, version)
    assert [group.group_id for group in snapshot.ready] == ["0", "1"]
    assert [group[0].group_id for group in snapshot.again] == ["2", "3", "4"]
    assert manager.capacity().value == 4

    async def main() -> None:
        worker = ScriptedWorker("new", num_slots=8)
        async with RolloutController(
            [worker], manager, source=source, resume_from=snapshot, clock=clock
        ) as controller:
            await settle()
            assert list(worker.requests) == ["2/0", "2/1", "3/0", "3/1"]
            batch = await controller.prepare_batch(4)
            assert [group.group_id for group in batch] == ["0", "1"]
            controller.advance(1)
            await settle()
            assert list(worker.requests)[4:] == ["4/0", "4/1", "5/0", "5/1"]

    clock.run(main())


def test_groups_of_weights_that_are_gone_run_again_first() -> None:
    clock = VirtualClock()

    async def ahead() -> bytes:
        worker = ScriptedWorker(num_slots=8)
        manager = StalenessManager(LIMITS, version=3)
        source = EpochSource(TASKS, group_size=2, seed=None)
        async with RolloutController([worker], manager, source=source, clock=clock) as controller:
            await settle()
            worker.succeed("0/0", oldest_version=2)
            worker.succeed("0/1", oldest_version=3)
            await settle()
            return pickle.dumps((controller.snapshot(), source.position))

    snapshot, manager, source = resumed(clock.run(ahead()), version=2)

    async def main() -> None:
        worker = ScriptedWorker("new", num_slots=8)
        async with RolloutController(
            [worker], manager, source=source, resume_from=snapshot, clock=clock
        ) as controller:
            await settle()
            assert list(worker.requests)[:4] == ["0/0", "0/1", "1/0", "1/1"]
            assert controller.statistics().num_ready_groups == 0
            assert manager.statistics().num_queued == 0

    clock.run(main())
