"""The controller against scripted workers."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence

import pytest
from awrl_rollout import (
    BatchTimeoutError,
    ControllerConfig,
    EpisodeRecord,
    EpisodeRequest,
    Outcome,
    RolloutController,
    RolloutError,
    StarvedError,
    VirtualClock,
)
from awrl_rollout.controller.config import TaskSource
from awrl_rollout.testing import endless_groups, make_group, settle
from awrl_staleness import StalenessConfig, StalenessError, StalenessManager
from rollout_doubles import ScriptedWorker


class Rig:
    """A controller with its parts, inside virtual time."""

    def __init__(
        self,
        *,
        eta: int = 0,
        batch: int = 4,
        concurrent: int = 100,
        slots: Sequence[int] = (8,),
        version: int = 0,
        source: TaskSource | None = None,
        config: ControllerConfig | None = None,
        accept: Callable[[Sequence[EpisodeRecord]], str | None] | None = None,
        bounds: Callable[[], dict[str, int]] | None = None,
    ) -> None:
        self.clock = VirtualClock()
        self.manager = StalenessManager(
            StalenessConfig(
                max_concurrent=concurrent, consumer_batch_size=batch, max_off_policyness=eta
            ),
            version=version,
        )
        self.workers = [
            ScriptedWorker(f"w{index}", num_slots=count) for index, count in enumerate(slots)
        ]
        self.lost: list[str] = []
        self.controller = RolloutController(
            self.workers,
            self.manager,
            source=source,
            config=config,
            accept_group=accept,
            extra_bounds=bounds,
            on_worker_lost=self.lost.append,
            clock=self.clock,
        )

    def run(self, body: Callable[[], Awaitable[None]]) -> None:
        async def main() -> None:
            async with self.controller:
                await settle()
                await body()

        self.clock.run(main())

    def running(self) -> list[str]:
        return [key for worker in self.workers for key in worker.requests]

    async def finish(self, *ids: str, reward: float = 1.0) -> None:
        for key in ids:
            worker = next(w for w in self.workers if key in w.requests)
            worker.succeed(key, reward=reward)
        await settle()


@pytest.mark.requirement("pending-results-queue")
def test_complete_groups_reach_the_trainer_and_publishing_admits_the_next() -> None:
    rig = Rig(source=endless_groups(2))

    async def body() -> None:
        assert rig.running() == ["g0/0", "g0/1", "g1/0", "g1/1"]
        await rig.finish("g1/0", "g0/0", "g0/1", "g1/1")
        assert rig.running() == []
        batch = await rig.controller.prepare_batch(4)
        assert [group.group_id for group in batch] == ["g0", "g1"]
        assert [r.member for r in batch[0].records] == [0, 1]
        await settle()
        assert rig.running() == []
        rig.controller.advance(1)
        await settle()
        assert len(rig.running()) == 4

    rig.run(body)


def test_a_lost_member_is_refilled_before_any_new_group() -> None:
    rig = Rig(source=endless_groups(2), eta=3, concurrent=2)

    async def body() -> None:
        rig.workers[0].fail("g0/1")
        await settle()
        assert rig.running() == ["g0/0", "g1/0"]  # while the refill waits, its slot does not
        await rig.clock.sleep(1.0)
        await settle()
        await rig.finish("g0/0")
        assert rig.running() == ["g1/0", "g0/1~1"]
        await rig.finish("g0/1~1")
        assert rig.running() == ["g1/0", "g1/1"]
        stats = rig.controller.statistics()
        assert (stats.num_refills, stats.num_faults, stats.num_ready_groups) == (1, 1, 1)

    rig.run(body)


@pytest.mark.parametrize("policy", ["deliver", "drop"])
def test_after_the_last_refill_the_group_is_smaller_or_dropped(policy: str) -> None:
    config = ControllerConfig(
        max_refills=1, refill_delay_s=0.0, when_incomplete="drop" if policy == "drop" else "deliver"
    )
    rig = Rig(source=endless_groups(2), batch=2, config=config)

    async def body() -> None:
        rig.workers[0].fail("g0/1")
        await settle()
        rig.workers[0].fail("g0/1~1")
        await rig.finish("g0/0")
        stats = rig.controller.statistics()
        if policy == "drop":
            assert stats.dropped_groups == {"incomplete": 1}
            assert rig.running() == ["g1/0", "g1/1"]
        else:
            batch = await rig.controller.prepare_batch(2)
            assert (batch.num_episodes, batch[0].num_lost, batch.is_short) == (1, 1, False)
            assert rig.controller.advance(1) == 1
        await settle()
        assert len(rig.running()) == 2

    rig.run(body)


def test_a_rejected_group_returns_its_budget() -> None:
    rig = Rig(
        source=endless_groups(2),
        batch=2,
        accept=lambda records: "zero variance" if len({r.reward for r in records}) == 1 else None,
    )

    async def body() -> None:
        await rig.finish("g0/0", "g0/1")
        assert rig.running() == ["g1/0", "g1/1"]
        assert rig.controller.statistics().dropped_groups == {"zero variance": 1}
        await rig.finish("g1/0")
        await rig.finish("g1/1", reward=0.0)
        batch = await rig.controller.prepare_batch(2)
        assert [r.outcome for r in batch[0].records] == [Outcome.SUCCESS, Outcome.FAILURE]

    rig.run(body)


def test_a_wait_for_a_batch_that_cannot_fill_raises_with_the_reason() -> None:
    rig = Rig(source=endless_groups(4))

    async def body() -> None:
        with pytest.raises(BatchTimeoutError, match="4 episodes in flight on 1 workers"):
            await rig.controller.prepare_batch(4, timeout_s=5)

    rig.run(body)


@pytest.mark.requirement("pending-results-queue")
def test_ready_groups_leave_oldest_first_and_none_is_lost() -> None:
    rig = Rig(source=endless_groups(1, limit=10), batch=10, slots=(10,))

    async def body() -> None:
        await rig.finish(*reversed([f"g{i}/0" for i in range(10)]))
        first = await rig.controller.prepare_batch(4)
        second = await rig.controller.prepare_batch(4)
        with pytest.raises(StarvedError):
            await rig.controller.prepare_batch(4)
        third = await rig.controller.prepare_batch(2)
        ids = [group.group_id for batch in (first, second, third) for group in batch]
        assert ids == [f"g{i}" for i in range(10)]

    rig.run(body)


def test_a_worker_that_raises_is_dead_and_its_episodes_fly_elsewhere() -> None:
    rig = Rig(source=endless_groups(2), slots=(8, 8))

    async def body() -> None:
        lost = list(rig.workers[0].requests)
        assert lost == ["g0/0", "g0/1"]
        rig.workers[0].die()
        await rig.clock.sleep(2.0)
        assert rig.lost == ["w0"]
        assert list(rig.workers[1].requests) == ["g1/0", "g1/1", "g0/1~1", "g0/0~1"]
        stats = rig.controller.statistics()
        assert (stats.num_worker_deaths, stats.num_refills) == (1, len(lost))

    rig.run(body)


def test_a_worker_that_hangs_is_dead_after_its_deadline_and_can_be_replaced() -> None:
    rig = Rig(source=endless_groups(4), config=ControllerConfig(worker_call_deadline_s=5.0))

    async def body() -> None:
        rig.workers[0].hang.add("take_finished")
        await rig.clock.sleep(7.0)
        assert rig.lost == ["w0"]
        fresh = ScriptedWorker("w0", num_slots=8)
        rig.workers[0] = fresh
        rig.controller.add_worker(fresh)
        await settle()
        assert len(fresh.requests) == 4

    rig.run(body)


@pytest.mark.requirement("http-callback")
def test_a_lost_callback_costs_a_poll_interval_and_a_repeated_one_nothing() -> None:
    rig = Rig(source=endless_groups(1), batch=1)

    async def body() -> None:
        rig.workers[0].is_silent = True
        await rig.finish("g0/0")
        assert rig.controller.statistics().num_ready_groups == 0
        await rig.clock.sleep(1.5)
        assert rig.controller.statistics().num_ready_groups == 1
        rig.controller.notify("w0")
        rig.controller.notify("nobody")
        await settle()
        assert rig.controller.statistics().num_completed == 1

    rig.run(body)


def test_an_episode_without_a_record_is_a_fault_after_its_deadline() -> None:
    rig = Rig(source=endless_groups(1), batch=1, config=ControllerConfig(episode_deadline_s=30.0))

    async def body() -> None:
        forgotten = rig.workers[0].requests.pop("g0/0")
        await rig.clock.sleep(32.0)
        assert rig.running() == ["g0/0~1"]
        rig.workers[0].requests["g0/0"] = forgotten
        await rig.finish("g0/0")
        assert rig.controller.statistics().num_duplicates == 1

    rig.run(body)


@pytest.mark.requirement("stale-dropped-at-collection")
def test_stale_members_are_marked_and_stale_groups_dropped() -> None:
    rig = Rig(source=endless_groups(2), batch=2, eta=1)

    async def body() -> None:
        await rig.finish("g0/0", "g0/1")
        await rig.finish("g1/0")
        rig.controller.advance(1)
        rig.workers[0].succeed("g1/1", oldest_version=1)
        await settle()
        rig.controller.advance(2)
        batch = await rig.controller.prepare_batch(2)
        assert (batch[0].group_id, batch[0].expired) == ("g1", {"g1/0"})
        assert [r.episode_id for r in batch[0].trainable] == ["g1/1"]
        assert len(batch[0].records) == 2
        assert rig.controller.statistics().dropped_groups == {"expired": 1}

    rig.run(body)


def test_a_batch_closes_short_when_no_further_group_fits() -> None:
    rig = Rig(source=endless_groups(3), batch=4)

    async def body() -> None:
        await rig.finish("g0/0", "g0/1", "g0/2")
        batch = await rig.controller.prepare_batch(4)
        assert (batch.is_short, batch.num_episodes) == (True, 3)

    rig.run(body)


def test_a_batch_closes_short_when_slots_seem_to_bind_but_the_budget_refuses() -> None:
    rig = Rig(source=endless_groups(3), batch=5, concurrent=1)

    async def body() -> None:
        await rig.finish("g0/0")
        await rig.finish("g0/1")
        await rig.finish("g0/2")
        assert rig.manager.capacity().binding == "concurrency"
        batch = await rig.controller.prepare_batch(5)
        assert (batch.is_short, batch.num_episodes) == (True, 3)

    rig.run(body)


def test_a_batch_that_can_never_fill_is_an_error_that_names_the_bound() -> None:
    rig = Rig(source=endless_groups(2), bounds=lambda: {"store": 0})

    async def body() -> None:
        with pytest.raises(StarvedError, match="refused by store"):
            await rig.controller.prepare_batch(4)

    rig.run(body)


def test_pausing_admission_starts_nothing_and_resuming_does() -> None:
    rig = Rig(source=endless_groups(1))

    async def body() -> None:
        rig.controller.pause_admission()
        await rig.finish("g0/0", "g1/0", "g2/0", "g3/0")
        await rig.controller.prepare_batch(4)
        rig.controller.advance(1)
        await settle()
        assert rig.running() == []
        rig.controller.resume_admission()
        await settle()
        assert len(rig.running()) == 4

    rig.run(body)


def test_closing_returns_every_unit_and_refuses_further_calls() -> None:
    rig = Rig(source=endless_groups(2), batch=4)

    async def body() -> None:
        await rig.finish("g0/0")
        rig.workers[0].hang.add("cancel")
        await rig.controller.aclose(timeout_s=2)
        await rig.controller.aclose(timeout_s=2)
        assert rig.clock.time() == 2.0
        seen = rig.manager.statistics()
        assert (seen.num_running, seen.num_reserved, seen.num_queued) == (0, 0, 0)
        assert seen.capacity.value == 4
        with pytest.raises(RolloutError):
            await rig.controller.prepare_batch(1)

    rig.run(body)


def test_submitted_groups_go_ahead_of_the_source() -> None:
    rig = Rig(source=endless_groups(2), batch=2)

    async def body() -> None:
        rig.controller.submit(make_group("mine", 2))
        await rig.finish("g0/0", "g0/1")
        await rig.controller.prepare_batch(2)
        rig.controller.advance(1)
        await settle()
        assert rig.running() == ["mine/0", "mine/1"]
        with pytest.raises(ValueError, match="distinct members"):
            rig.controller.submit([*make_group("x", 1), *make_group("x", 1)])

    rig.run(body)


def test_overrun_wait_takes_the_old_group_into_this_batch() -> None:
    rig = Rig(
        source=endless_groups(1),
        batch=2,
        eta=1,
        config=ControllerConfig(on_overrun="wait", overrun_deadline_s=100.0),
    )

    async def body() -> None:
        await rig.finish("g1/0", "g2/0")
        await rig.controller.prepare_batch(2)
        rig.controller.advance(1)
        await settle()
        await rig.finish("g3/0", "g4/0", "g5/0")

        async def late() -> None:
            await rig.clock.sleep(50.0)
            await rig.finish("g0/0")

        async with asyncio.TaskGroup() as group:
            group.create_task(late())
            batch = await rig.controller.prepare_batch(2)
        assert [item.group_id for item in batch] == ["g0", "g3"]

    rig.run(body)


@pytest.mark.parametrize("method", ["take_finished", "submit"])
def test_a_worker_that_raises_cancelled_error_of_its_own_is_dead(method: str) -> None:
    rig = Rig(source=endless_groups(2))
    rig.workers[0].cancels.add(method)

    async def body() -> None:
        await rig.clock.sleep(300.0)
        assert rig.lost == ["w0"]

    rig.run(body)


def malformed(group_id: str) -> list[EpisodeRequest]:
    return [EpisodeRequest(episode_id=f"{group_id}/{i}", group_id=group_id) for i in range(2)]


@pytest.mark.parametrize(
    ("requests", "message"),
    [
        pytest.param([*make_group("x", 2), *malformed("h")], "distinct members", id="malformed"),
        pytest.param(make_group("open", 2), "must be new", id="group that is open"),
        pytest.param(make_group("line", 2), "must be new", id="group in line"),
        pytest.param(
            [EpisodeRequest(episode_id="x", group_id="y", member=i) for i in range(2)],
            "must be new",
            id="one episode id twice",
        ),
        pytest.param(
            [EpisodeRequest(episode_id="open/0", group_id="other")],
            "must be new",
            id="live episode",
        ),
        pytest.param(make_group("big", 9), "9", id="group above the whole budget"),
    ],
)
def test_a_submit_that_cannot_run_is_refused_and_accepts_nothing(
    requests: list[EpisodeRequest], message: str
) -> None:
    rig = Rig(batch=2)

    async def body() -> None:
        rig.controller.submit([*make_group("open", 2), *make_group("line", 2)])
        await settle()
        with pytest.raises(ValueError, match=message):
            rig.controller.submit(requests)
        await rig.clock.sleep(5.0)
        assert rig.running() == ["open/0", "open/1"]

    rig.run(body)


def test_a_worker_that_joins_while_generation_is_paused_is_paused() -> None:
    rig = Rig()

    async def body() -> None:
        await rig.controller.pause_generation()
        worker = ScriptedWorker("late")
        rig.controller.add_worker(worker)
        await settle()
        assert worker.calls == ["pause"]
        await rig.controller.resume_generation()
        assert worker.calls == ["pause", "resume"]

    rig.run(body)


def test_a_starved_trainer_hears_what_the_last_worker_died_of() -> None:
    rig = Rig(source=endless_groups(1))

    async def body() -> None:
        rig.workers[0].die(RuntimeError("out of shared memory"))
        with pytest.raises(StarvedError, match="'w0' died of RuntimeError: out of shared memory"):
            await rig.controller.prepare_batch(4)

    rig.run(body)


def test_a_trainer_in_a_task_of_its_own_hears_what_ended_the_loops() -> None:
    def broken(records: Sequence[EpisodeRecord]) -> str | None:
        raise ZeroDivisionError("hook")

    rig, heard = Rig(source=endless_groups(1), accept=broken), list[RolloutError]()

    async def train() -> None:
        with pytest.raises(RolloutError, match="ended with ZeroDivisionError") as caught:
            await rig.controller.prepare_batch(4)
        heard.append(caught.value)

    async def main() -> None:
        async with asyncio.TaskGroup() as group, rig.controller:
            group.create_task(train())
            await settle()
            rig.workers[0].succeed("g0/0")
            await rig.clock.sleep(1000.0)

    with pytest.raises(ExceptionGroup):
        rig.clock.run(main())
    assert isinstance(heard[0].__cause__, ZeroDivisionError)


def test_two_cancellations_leave_neither_loop_nor_listener_behind() -> None:
    rig = Rig(source=endless_groups(2))

    async def own() -> None:
        async with rig.controller:
            await rig.clock.sleep(1000.0)

    async def main() -> None:
        num_tasks = len(asyncio.all_tasks())
        async with asyncio.TaskGroup() as group:
            owner = group.create_task(own())
            await settle()
            rig.workers[0].hang.add("cancel")
            owner.cancel()
            await settle()
            owner.cancel()
        assert len(asyncio.all_tasks()) == num_tasks
        rig.manager.try_admit("x")  # an ending tells every listener
        rig.manager.finish("x")

    rig.clock.run(main())
    seen = rig.manager.statistics()
    assert (seen.num_running, seen.num_reserved) == (0, 0)


def test_a_hook_that_raises_while_closing_is_told_and_everything_else_is_closed() -> None:
    def again(group_id: str, reason: str) -> None:
        controller.submit(make_group(f"{group_id}-again", 2))

    clock, worker = VirtualClock(), ScriptedWorker(num_slots=8)
    manager = StalenessManager(
        StalenessConfig(max_concurrent=8, consumer_batch_size=4, max_off_policyness=1)
    )
    controller = RolloutController(
        [worker], manager, source=endless_groups(2), on_group_dropped=again, clock=clock
    )

    async def main() -> None:
        with pytest.raises(RolloutError, match="a closed one"):
            async with controller:
                await settle()
        assert len(asyncio.all_tasks()) == 1

    clock.run(main())
    seen = manager.statistics()
    assert (seen.num_running, seen.num_reserved, seen.num_enqueued) == (0, 0, 0)


@pytest.mark.requirement("bounded-staleness")
def test_what_finished_before_a_resume_is_trained_on_within_budget_and_bound() -> None:
    rig = Rig(eta=1, batch=4, source=endless_groups(2), version=5)

    def kept(name: str, oldest: int, newest: int) -> bool:
        requests = make_group(name, 2)
        records = [
            EpisodeRecord(
                episode_id=item.episode_id,
                group_id=name,
                member=item.member,
                outcome=Outcome.SUCCESS,
                oldest_version=oldest,
                newest_version=newest,
            )
            for item in requests
        ]
        return rig.controller.restore(requests, records)

    verdicts = [kept("old", 3, 5), kept("lost", 5, 6), kept("b", 5, 5), kept("a", 4, 5)]
    assert verdicts == [False, False, True, True]
    with pytest.raises(StalenessError, match="must be new"):
        kept("a", 4, 5)
    with pytest.raises(ValueError, match="of distinct members of group 'x' that ended well"):
        rig.controller.restore(make_group("x", 2), [])

    async def body() -> None:
        assert rig.running() == ["g0/0", "g0/1", "g1/0", "g1/1"]  # (1 + 1) * 4 with the restored
        batch = await rig.controller.prepare_batch(4, timeout_s=1.0)
        assert [group.group_id for group in batch] == ["a", "b"]
        assert rig.controller.statistics().metrics()["rollout/restored_episodes"] == 4.0
        rig.controller.advance(6)
        await settle()
        assert rig.running()[4:] == ["g2/0", "g2/1", "g3/0", "g3/1"]

    rig.run(body)
