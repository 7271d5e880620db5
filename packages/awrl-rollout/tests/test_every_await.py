"""Whatever user code raises, at whichever await: no slot, task, budget or listener is left behind."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence

import pytest
from awrl_rollout import (
    ControllerConfig,
    EpisodeContext,
    EpisodeRecord,
    EpisodeRequest,
    EpisodeResult,
    LocalWorker,
    RetryPolicy,
    RolloutController,
    RolloutError,
    SyncPool,
    VirtualClock,
    WorkflowExecutor,
)
from awrl_rollout.clock import RealClock
from awrl_rollout.testing import endless_groups, make_group, settle
from awrl_staleness import StalenessConfig, StalenessManager
from hypothesis import given, settings
from hypothesis import strategies as st
from rollout_doubles import ScriptedWorker


class Unprintable(Exception):
    """Cannot say what it is."""

    def __str__(self) -> str:
        """Raise."""
        raise ValueError("no text")

    __repr__ = __str__


class OutsideOfException(BaseException):
    """What some extension modules raise for a panic."""


sleep = RealClock().sleep  # virtual time, within the loop of a virtual clock
ERRORS: dict[str, Callable[[], BaseException]] = {
    "error": lambda: OSError("boom"),
    "own cancellation": asyncio.CancelledError,
    "time": TimeoutError,
    "no text": Unprintable,
    "panic": OutsideOfException,
    "group": lambda: BaseExceptionGroup("several", [asyncio.CancelledError(), OSError("boom")]),
}
ERROR = st.sampled_from(sorted(ERRORS))
SOME = settings(max_examples=60, deadline=None)


class Steps:
    """Counts awaits of user code, and raises at chosen ones; its clean-up can fail too."""

    def __init__(self, faults: dict[int, str], clean_up: str | None = None) -> None:
        self._faults = faults
        self._clean_up = clean_up
        self._num_steps = 0

    def check(self) -> None:
        """Raise when it is time to."""
        self._num_steps += 1
        if (kind := self._faults.get(self._num_steps)) is not None:
            raise ERRORS[kind]()

    async def step(self) -> None:
        """Wait, then perhaps raise."""
        try:
            await sleep(1.0)
        except asyncio.CancelledError:
            if self._clean_up is not None:
                raise ERRORS[self._clean_up]() from None
            raise
        self.check()


FAULTS = st.dictionaries(st.integers(1, 30), ERROR, max_size=8)


def requests(num_episodes: int) -> list[EpisodeRequest]:
    return [
        EpisodeRequest(episode_id=f"e{number}", group_id=f"g{number}")
        for number in range(num_episodes)
    ]


async def until_done(task: asyncio.Task[None], limit_s: float) -> None:
    """Return once a task has ended, however, or at the limit."""
    await asyncio.wait([task], timeout=limit_s)  # noqa: TID251 - its error is looked at by the caller


def workflow_of(
    steps: Steps,
) -> Callable[[EpisodeRequest, EpisodeContext], Awaitable[EpisodeResult]]:
    async def workflow(request: EpisodeRequest, context: EpisodeContext) -> EpisodeResult:
        for _ in range(3):
            await steps.step()
        return EpisodeResult(is_success=True)

    return workflow


@SOME
@given(
    faults=FAULTS,
    hook_faults=FAULTS,
    clean_up=st.none() | ERROR,
    closed_after_s=st.integers(0, 12),
    is_interrupted=st.booleans(),
    deadline_s=st.sampled_from([None, 2.5]),
)
def test_an_executor_records_every_episode_once_and_leaves_nothing_behind(
    faults: dict[int, str],
    hook_faults: dict[int, str],
    clean_up: str | None,
    closed_after_s: int,
    is_interrupted: bool,
    deadline_s: float | None,
) -> None:
    hook_steps = Steps(hook_faults, clean_up)

    async def hook(records: Sequence[EpisodeRecord]) -> None:
        await hook_steps.step()

    async def main() -> None:
        executor = WorkflowExecutor(
            workflow_of(Steps(faults, clean_up)),
            num_slots=2,
            deadline_s=deadline_s,
            on_finished=hook,
            retry=RetryPolicy(max_retries=1, jitter=0.0),
        )
        executor.subscribe(hook_steps.check if hook_faults.get(1) == "error" else lambda: None)
        serving = asyncio.create_task(executor.serve())  # noqa: TID251 - it is cancelled twice
        await settle()
        executor.submit(requests(6))
        await sleep(closed_after_s + 0.5)
        if is_interrupted:
            serving.cancel()
            await settle()
            serving.cancel()
        else:
            await executor.aclose()
        await until_done(serving, 1000.0)
        await settle()
        assert asyncio.all_tasks() == {asyncio.current_task()}
        assert len(executor.take_finished()) == 6
        assert executor.statistics().num_running == executor.statistics().num_waiting == 0

    clock = VirtualClock()
    clock.run(main())
    assert clock.time() < 40.0  # no episode ran again while the executor closed


@SOME
@given(
    faults=FAULTS,
    hook_faults=st.dictionaries(st.integers(1, 12), ERROR, max_size=2),
    clean_up=st.none() | ERROR,
    closed_after_s=st.integers(0, 12),
    num_interrupts=st.integers(0, 2),
    hooked=st.sets(st.sampled_from(["accept", "discarded", "dropped", "lost", "source"])),
)
def test_a_controller_returns_every_unit_and_leaves_nothing_behind(
    faults: dict[int, str],
    hook_faults: dict[int, str],
    clean_up: str | None,
    closed_after_s: int,
    num_interrupts: int,
    hooked: set[str],
) -> None:
    manager = StalenessManager(
        StalenessConfig(max_concurrent=4, consumer_batch_size=4, max_off_policyness=1)
    )
    hooks, groups = Steps(hook_faults), endless_groups(2)

    def hook(name: str) -> Callable[..., None]:
        return lambda *_: hooks.check() if name in hooked else None

    def source() -> Sequence[EpisodeRequest] | None:
        hook("source")()
        return groups()

    async def run(executor: WorkflowExecutor, worker: BreakingWorker) -> None:
        async with RolloutController(
            [LocalWorker(executor), worker],
            manager,
            source=source,
            config=ControllerConfig(max_refills=1, max_fault_share=None, episode_deadline_s=8.0),
            accept_group=hook("accept"),
            on_discarded=hook("discarded"),
            on_group_dropped=hook("dropped"),
            on_worker_lost=hook("lost"),
        ) as controller:
            for version in range(1, 10):
                await controller.prepare_batch(2, timeout_s=20.0)
                controller.advance(version)
                await controller.report()

    async def main() -> None:
        worker = BreakingWorker(Steps(faults, clean_up))
        async with WorkflowExecutor(
            workflow_of(Steps(faults, clean_up)), num_slots=2, name="local"
        ) as executor:
            running = asyncio.create_task(run(executor, worker))  # noqa: TID251 - it is cancelled
            await until_done(running, closed_after_s + 0.5)
            for _ in range(num_interrupts):
                running.cancel()
                await settle()
            await until_done(running, 1000.0)
            assert running.done()
            if not running.cancelled():
                running.exception()
            elif not num_interrupts:
                raise AssertionError("a cancellation that nobody asked for reached the trainer")
        await settle()
        assert asyncio.all_tasks() == {asyncio.current_task()}
        assert not manager._listeners  # pyright: ignore[reportPrivateUsage]
        seen = manager.statistics()
        assert (seen.num_running, seen.num_enqueued, seen.num_reserved) == (0, 0, 0)

    VirtualClock().run(main())


class BreakingWorker(ScriptedWorker):
    """Fails at chosen calls, before anything is awaited or in mid of it."""

    def __init__(self, steps: Steps) -> None:
        super().__init__(name="breaking", num_slots=2)
        self._steps = steps

    async def _enter(self, call: str) -> None:
        await self._steps.step()
        await super()._enter(call)


@pytest.mark.parametrize("answer", [7, [7], ["g0/0"], None, {"records": []}])
@pytest.mark.parametrize("method", ["take_finished", "statistics", "submit"])
def test_a_worker_that_answers_nonsense_is_dead_and_the_run_goes_on(
    method: str, answer: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker = ScriptedWorker(num_slots=2)

    def at_once(*args: object) -> object:  # not even an awaitable for submit
        async def later() -> object:
            return answer

        return answer if method == "submit" else later()

    monkeypatch.setattr(worker, method, at_once)

    async def main() -> None:
        manager = StalenessManager(
            StalenessConfig(max_concurrent=4, consumer_batch_size=4, max_off_policyness=1)
        )
        async with RolloutController([worker], manager, source=endless_groups(2)) as controller:
            await sleep(3.0)
            await controller.report()
            assert controller.statistics().num_worker_deaths == 1

    VirtualClock().run(main())


@given(
    field=st.sampled_from(["oldest_version", "newest_version", "reward"]),
    value=st.sampled_from([float("nan"), float("inf"), "3", [1]]),
)
def test_a_result_that_training_cannot_compute_with_is_refused(field: str, value: object) -> None:
    with pytest.raises((ValueError, TypeError)):
        EpisodeResult(is_success=True, **{field: value})  # pyright: ignore[reportArgumentType]


def test_a_refill_takes_no_id_that_is_in_line() -> None:
    worker, clock = ScriptedWorker(num_slots=2), VirtualClock()

    async def main() -> None:
        manager = StalenessManager(
            StalenessConfig(max_concurrent=2, consumer_batch_size=8, max_off_policyness=1)
        )
        async with RolloutController([worker], manager) as controller:
            controller.submit(make_group("g", 2))
            controller.submit([EpisodeRequest(episode_id="g/0~1", group_id="other")])
            await settle()
            worker.fail("g/0")
            worker.succeed("g/1")
            await clock.sleep(2.0)
            assert sorted(worker.requests) == ["g/0~1", "g/0~1~"]

    clock.run(main())


def test_one_tear_down_that_fails_interrupts_no_other() -> None:
    done: list[int] = []

    async def tear_down(slot: int) -> None:
        await sleep(float(slot))
        if slot == 0:
            raise OSError("boom")
        done.append(slot)

    async def main() -> None:
        pool = SyncPool(workflow_of(Steps({})), num_slots=3, tear_down=tear_down)
        with pytest.raises(OSError, match="boom"):
            await pool.run_round(requests(3))

    VirtualClock().run(main())
    assert done == [1, 2]


def test_a_limit_that_is_no_number_is_refused() -> None:
    nan = float("nan")

    async def main() -> None:
        with pytest.raises(ValueError, match="limit"):
            WorkflowExecutor(workflow_of(Steps({})), num_slots=1, deadline_s=nan)
        async with WorkflowExecutor(workflow_of(Steps({})), num_slots=1) as executor:
            with pytest.raises(ValueError, match="limit"):
                await executor.rollout_batch(requests(1), timeout_s=nan)

    VirtualClock().run(main())


def test_a_source_that_repeats_a_live_id_ends_the_run_and_keeps_no_unit() -> None:
    worker = ScriptedWorker(num_slots=8)
    manager = StalenessManager(
        StalenessConfig(max_concurrent=8, consumer_batch_size=8, max_off_policyness=1)
    )

    async def main() -> None:
        with pytest.raises((ValueError, RolloutError), match="in use"):
            async with RolloutController([worker], manager, source=lambda: make_group("same", 2)):
                await sleep(5.0)

    VirtualClock().run(main())
    seen = manager.statistics()
    assert (seen.num_running, seen.num_reserved) == (0, 0)


@pytest.mark.parametrize("num_slots", [0, -1, 2.5, float("nan"), None])
def test_a_worker_without_a_whole_number_of_slots_is_refused(num_slots: int) -> None:
    config = StalenessConfig(max_concurrent=4, consumer_batch_size=4, max_off_policyness=1)
    worker = ScriptedWorker(num_slots=num_slots)
    with pytest.raises(ValueError, match="num_slots"):
        RolloutController([worker], StalenessManager(config))


@pytest.mark.parametrize("name", ["fault_window", "max_refills", "min_members", "on_overrun"])
@pytest.mark.parametrize("value", [float("nan"), 1.5, "sometimes"])
def test_a_setting_that_decides_nothing_is_refused(name: str, value: object) -> None:
    with pytest.raises(ValueError, match=name):
        ControllerConfig(**{name: value})  # pyright: ignore[reportArgumentType]
