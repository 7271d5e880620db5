"""FaultWoB: every hostile page ends as it should, and the next episode starts clean."""

from __future__ import annotations

import asyncio
import random
import threading
from collections import Counter
from collections.abc import Coroutine, Generator
from typing import TypeVar

import msgspec
import pytest
from webrl.actions import (
    Action,
    DoubleClick,
    Drag,
    GoBack,
    InvalidAction,
    Navigate,
    Press,
    Scroll,
    TypeText,
)
from webrl.browser import BrowserConfig, BrowserPool, BrowserSession, Deadlines, StepOutcome
from webrl.errors import BrowserFault
from webrl.tasks import FAULT_CASES, FaultCase
from webrl.tasks.faults import TROUBLE

pytestmark = pytest.mark.browser
_T = TypeVar("_T")

_PATIENT = Deadlines(navigate_s=10, input_s=10, evaluate_s=10, screenshot_s=10, close_s=3)
"""For pages that do not hang: no loaded machine may turn their success into a fault."""
_SHORT = Deadlines(navigate_s=1, input_s=1, evaluate_s=1, screenshot_s=3, close_s=3)
"""For pages that hang: each missed deadline is a second of waiting."""
_HANGING = frozenset({"busy", "never", "link-never", "alert-storm", "popup-never", "new-tab-never"})


class _World:
    """One browser for all cases, run by a thread, since a pool lives inside one task."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._ready = threading.Event()
        self._stop = asyncio.Event()
        self._thread = threading.Thread(target=self._main)  # noqa: TID251 -- outlives one test
        self._thread.start()
        assert self._ready.wait(60)

    def _main(self) -> None:
        self._loop.run_until_complete(self._serve())
        self._loop.close()

    async def _serve(self) -> None:
        heap = ("--js-flags=--max-old-space-size=128",)
        patient = BrowserConfig(num_slots=2, deadlines=_PATIENT, wait_s=0.2, extra_args=heap)
        short = BrowserConfig(num_slots=1, deadlines=_SHORT, wait_s=0.2)
        async with BrowserPool(patient) as self.patient, BrowserPool(short) as self.short:
            self._ready.set()
            await self._stop.wait()

    def run(self, call: Coroutine[object, object, _T]) -> _T:
        return asyncio.run_coroutine_threadsafe(call, self._loop).result(120)

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(60)
        assert not self._thread.is_alive()


@pytest.fixture(scope="module")
def world() -> Generator[_World]:
    world = _World()
    yield world
    world.close()


async def _play(
    session: BrowserSession, case: FaultCase
) -> tuple[StepOutcome | BrowserFault, Counter[str]]:
    kinds: Counter[str] = Counter()
    try:
        await session.reset(case.task, 0)
        for action in case.actions:
            outcome = await session.step(action)
            kinds.update(event.kind for event in outcome.events)
            if outcome.is_done:
                return outcome, kinds
    except BrowserFault as fault:
        return fault, kinds
    raise AssertionError("the step limit ends every episode")


@pytest.mark.parametrize("name", sorted(FAULT_CASES))
def test_hostile_page_ends_as_expected(world: _World, name: str) -> None:
    case = FAULT_CASES[name]
    pool = world.short if name in _HANGING else world.patient

    async def body() -> tuple[StepOutcome | BrowserFault, Counter[str]]:
        async with await pool.session() as session:
            return await _play(session, case)

    outcome, kinds = world.run(body())
    if case.fault is not None:
        assert isinstance(outcome, BrowserFault), outcome
        assert outcome.kind == case.fault
    else:
        assert isinstance(outcome, StepOutcome), outcome
        assert outcome.reward == case.reward
        assert case.ending in (None, outcome.end_reason)
    for kind in case.events:
        assert kinds[kind], kinds


_ANYTHING: tuple[Action | InvalidAction, ...] = (
    TROUBLE,
    TROUBLE,
    TypeText("x" * 4000),
    TypeText("line\n" * 400),
    Press("Control+w"),
    Press("Control++"),
    Press("Alt+F4"),
    Press("F11"),
    Press("Enter"),
    Scroll(500, 500, 1000, 1000),
    Drag(0, 0, 1000, 1000),
    DoubleClick(250, 250),
    GoBack(),
    GoBack(),
    Navigate("http://10.0.0.1/"),
    Navigate("http://127.0.0.1:9/"),
    Navigate("about:blank"),
    InvalidAction(text="", reason="none"),
)


@pytest.mark.parametrize("seed", range(3))
def test_nothing_that_a_policy_does_to_hostile_pages_becomes_a_fault(
    world: _World, seed: int
) -> None:
    """A way of acting that ends as a fault would be a way out of a failure."""
    rng = random.Random(seed)
    names = {name for name, case in FAULT_CASES.items() if case.fault is None}
    chosen = rng.sample(sorted(names - _HANGING - {"oom"}), 4)

    async def body() -> list[float | None]:
        rewards: list[float | None] = []
        async with await world.patient.session() as session:
            for name in chosen:
                await session.reset(msgspec.structs.replace(FAULT_CASES[name].task, max_steps=4), 0)
                outcome = None
                while outcome is None or not outcome.is_done:
                    outcome = await session.step(rng.choice(_ANYTHING))
                rewards.append(outcome.reward)
        return rewards

    assert len(world.run(body())) == len(chosen)


@pytest.mark.parametrize("name", ["busy", "oom", "alert-storm", "fullscreen", "popup-storm"])
def test_the_episode_after_a_hostile_page_is_clean(world: _World, name: str) -> None:
    pool = world.short if name in _HANGING else world.patient

    async def body() -> tuple[StepOutcome | BrowserFault, Counter[str]]:
        async with await pool.session() as session:
            await _play(session, FAULT_CASES[name])
            return await _play(session, FAULT_CASES["storage"])

    outcome, kinds = world.run(body())
    assert isinstance(outcome, StepOutcome), outcome
    assert outcome.reward == 1.0
    assert not kinds


def test_three_episodes_in_a_row_each_see_empty_storage(world: _World) -> None:
    async def body() -> list[StepOutcome | BrowserFault]:
        async with await world.patient.session() as session:
            return [(await _play(session, FAULT_CASES["storage"]))[0] for _ in range(3)]

    rewards = [o.reward for o in world.run(body()) if isinstance(o, StepOutcome)]
    assert rewards == [1.0, 1.0, 1.0]


def test_none_of_it_cost_a_browser(world: _World) -> None:
    for pool in (world.patient, world.short):
        statistics = pool.statistics()
        assert statistics.num_browser_launches <= 1
        assert statistics.num_driver_starts <= 1
