"""Episodes in a real browser."""

from __future__ import annotations

import io
from collections.abc import Awaitable, Callable, Iterator
from typing import TypeVar

import numpy as np
import pytest
from PIL import Image
from shared_loop import SharedLoop
from webrl.actions import Action, Answer, InvalidAction, LeftClick, Wait, parse_action, to_grid
from webrl.browser import BrowserConfig, BrowserPool, BrowserSession, Observation, StepOutcome
from webrl.tasks import Task, load_task, oracle

pytestmark = pytest.mark.browser
_T = TypeVar("_T")


_SHARED = SharedLoop(lambda: BrowserPool(BrowserConfig(num_slots=2)))


@pytest.fixture(scope="module", autouse=True)
def _end_browsers() -> Iterator[None]:
    yield
    _SHARED.close()


def _run(body: Callable[[BrowserPool, BrowserSession], Awaitable[_T]]) -> _T:
    async def main(pool: BrowserPool) -> _T:
        async with await pool.session() as session:
            return await body(pool, session)

    return _SHARED.run(main)


async def _oracle_click(session: BrowserSession, task: Task) -> Action:
    point = await session.evaluate(oracle(task))
    assert isinstance(point, dict)
    width, height = task.viewport.width, task.viewport.height
    return LeftClick(*to_grid(point["x"], point["y"], width=width, height=height))


def _pixels(observation: Observation) -> np.ndarray:
    return np.asarray(Image.open(io.BytesIO(observation.screenshot)).convert("RGB"))


@pytest.mark.parametrize(
    "name",
    [
        "click-test-2",
        "click-dialog-2",
        "click-button-sequence",
        "click-collapsible",
        "ascending-numbers",
        "click-checkboxes",
    ],
)
def test_right_clicks_earn_the_reward_and_a_wrong_one_none(name: str) -> None:
    task = load_task(f"miniwob/{name}")

    async def body(_: BrowserPool, session: BrowserSession) -> tuple[StepOutcome, StepOutcome]:
        observation = await session.reset(task, 7)
        assert observation.goal
        outcome = await session.step(await _oracle_click(session, task))
        while not outcome.is_done:
            outcome = await session.step(await _oracle_click(session, task))
        await session.reset(task, 8)
        missed = await session.step(LeftClick(990, 990))
        while not missed.is_done:
            missed = await session.step(LeftClick(990, 990))
        return outcome, missed

    done, missed = _run(body)
    assert (done.reward, done.raw_reward, done.end_reason) == (1.0, 1.0, "task")
    assert done.observation is None
    assert (missed.reward, missed.end_reason) == (0.0, "max_steps")


def test_a_screenshot_is_the_viewport_and_nothing_of_the_reward_display() -> None:
    task = load_task("miniwob/click-test-2")

    async def body(_: BrowserPool, session: BrowserSession) -> list[Observation]:
        first = await session.reset(task, 1)
        await session.step(await _oracle_click(session, task))
        return [first, await session.reset(task, 2), await session.reset(task, 1)]

    first, other, again = _run(body)
    pixels = _pixels(first)
    assert pixels.shape == (224, 160, 3)
    assert (pixels[210:] == 255).all()  # below the task area
    assert (pixels[0, 0] == (255, 255, 0)).all()  # the query's background
    assert (pixels != _pixels(other)).any()
    # No trace of the click, of the pointer or of the last reward in the next episode.
    assert (pixels == _pixels(again)).all()


def test_the_same_seed_gives_the_same_pixels_in_every_session() -> None:
    task = load_task("miniwob/click-dialog")

    async def body(pool: BrowserPool, session: BrowserSession) -> tuple[Observation, Observation]:
        await session.reset(task, 3)
        async with await pool.session() as other:
            return await session.reset(task, 4), await other.reset(task, 4)

    one, two = _run(body)
    assert (_pixels(one) == _pixels(two)).all()


def test_an_invalid_action_costs_a_step_and_touches_nothing() -> None:
    task = load_task("miniwob/click-button-sequence")

    async def body(_: BrowserPool, session: BrowserSession) -> tuple[Observation, StepOutcome]:
        first = await session.reset(task, 5)
        invalid = parse_action("click the button please")
        assert isinstance(invalid, InvalidAction)
        return first, await session.step(invalid)

    first, outcome = _run(body)
    assert not outcome.is_done
    assert outcome.observation is not None
    assert outcome.observation.screenshot == first.screenshot
    assert [event.kind for event in outcome.events] == ["invalid_action"]


def test_an_episode_of_invalid_actions_ends_at_the_step_limit() -> None:
    task = load_task("miniwob/click-test-2")

    async def body(_: BrowserPool, session: BrowserSession) -> StepOutcome:
        await session.reset(task, 5)
        return await session.step(InvalidAction("x", "y"))

    outcome = _run(body)
    assert (outcome.is_done, outcome.reward, outcome.end_reason) == (True, 0.0, "max_steps")


def test_an_answer_ends_the_episode_and_is_judged() -> None:
    task = Task(
        suite="web",
        name="answer",
        url="/miniwob/click-test.html",
        goal="What is six times seven?",
        answer="42|forty-two",
    )

    async def body(_: BrowserPool, session: BrowserSession) -> list[StepOutcome]:
        outcomes: list[StepOutcome] = []
        for text in ("Forty-Two ", "41"):
            await session.reset(task, 0)
            outcomes.append(await session.step(Answer(text)))
        return outcomes

    right, wrong = _run(body)
    assert (right.reward, right.end_reason) == (1.0, "answer")
    assert (wrong.reward, wrong.end_reason) == (0.0, "answer")


def test_steps_need_an_episode() -> None:
    task = load_task("miniwob/click-test-2")

    async def body(_: BrowserPool, session: BrowserSession) -> None:
        with pytest.raises(RuntimeError, match="step must follow reset"):
            await session.step(Wait())
        await session.reset(task, 1)
        await session.step(await _oracle_click(session, task))
        with pytest.raises(RuntimeError, match="step must follow reset"):
            await session.step(Wait())

    _run(body)


def test_pages_whose_handlers_pile_up_are_loaded_again() -> None:
    task = load_task("miniwob/simon-says")
    count = "$._data($('#area button')[0], 'events').click.length"

    async def body(_: BrowserPool, session: BrowserSession) -> list[object]:
        counts: list[object] = []
        for seed in range(3):
            await session.reset(task, seed)
            counts.append(await session.evaluate(count))
        return counts

    assert _run(body) == [1, 1, 1]
