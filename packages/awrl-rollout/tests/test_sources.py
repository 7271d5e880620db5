"""Endless and single passes over tasks."""

import pytest
from awrl_rollout import (
    DataExhaustedError,
    EpochSource,
    LocalWorker,
    RolloutController,
    VirtualClock,
    WorkflowExecutor,
)
from awrl_rollout.testing import scripted_workflow
from awrl_staleness import StalenessConfig, StalenessManager

TASKS = ["a", "b", "c"]


def payloads(source: EpochSource, count: int) -> list[object]:
    groups = [source() for _ in range(count)]
    return [group[0].payload if group else None for group in groups]


def test_each_epoch_holds_every_task_once_in_an_order_of_its_own() -> None:
    seen = payloads(EpochSource(range(50), group_size=1, seed=3), 100)
    assert sorted(map(str, seen[:50])) == sorted(map(str, range(50)))
    assert sorted(map(str, seen[50:])) == sorted(map(str, range(50)))
    assert seen[:50] != seen[50:]


def test_a_resumed_source_continues_the_same_order() -> None:
    first = EpochSource(TASKS, group_size=2, seed=7)
    before = payloads(first, 4)
    resumed = EpochSource(TASKS, group_size=2, seed=7, position=first.position)
    whole = payloads(EpochSource(TASKS, group_size=2, seed=7), 9)
    assert before + payloads(resumed, 5) == whole


def test_members_share_a_group_and_carry_its_label() -> None:
    group = EpochSource(TASKS, group_size=3, seed=None, label=str)()
    assert group is not None
    assert [(item.group_id, item.member, item.label) for item in group] == [
        ("0", 0, "a"),
        ("0", 1, "a"),
        ("0", 2, "a"),
    ]


@pytest.mark.parametrize(
    ("tasks", "size", "message"), [([], 1, "tasks must hold"), (TASKS, 0, "group_size must be")]
)
def test_a_source_that_can_give_nothing_is_refused(
    tasks: list[str], size: int, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        EpochSource(tasks, group_size=size)


@pytest.mark.parametrize("num_epochs", [None, 1])
def test_the_end_of_the_data_is_no_hang(num_epochs: int | None) -> None:
    async def main() -> int:
        manager = StalenessManager(
            StalenessConfig(max_concurrent=2, consumer_batch_size=2, max_off_policyness=0)
        )
        source = EpochSource(TASKS, group_size=1, num_epochs=num_epochs)
        delivered = 0
        async with (
            WorkflowExecutor(scripted_workflow(), num_slots=2, clock=clock) as executor,
            RolloutController(
                [LocalWorker(executor)], manager, source=source, clock=clock
            ) as controller,
        ):
            for version in range(1, 6):
                delivered += (await controller.prepare_batch(2)).num_episodes
                controller.advance(version)
                if num_epochs is not None:
                    with pytest.raises(DataExhaustedError, match="data exhausted"):
                        await controller.prepare_batch(2)
                    assert (await controller.prepare_batch(1)).num_episodes == 1
                    return 3
        return delivered

    clock = VirtualClock()
    assert clock.run(main()) == (10 if num_epochs is None else 3)
