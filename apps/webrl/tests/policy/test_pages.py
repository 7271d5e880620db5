from __future__ import annotations

import numpy as np
import pytest
from webrl.policy import PAGE_KINDS, ActionGrid, PageFactory, PolicyProcessor

GRID = ActionGrid()


def factory(kind: str, seed: int = 0) -> PageFactory:
    return PageFactory(GRID, (kind,), np.random.default_rng(seed))


@pytest.mark.parametrize("kind", PAGE_KINDS)
def test_every_page_has_a_goal_a_screenshot_and_a_solution(
    kind: str, processor: PolicyProcessor
) -> None:
    pages = factory(kind)
    for page in [pages.draw() for _ in range(40)]:
        assert page.goal.endswith(".")
        assert page.pixels.shape == (224, 160, 3)
        assert page.pixels.dtype == np.uint8
        assert page.solutions
        assert all(len(processor.encode(action)) == 3 for action in page.solutions)


@pytest.mark.parametrize("kind", PAGE_KINDS)
def test_no_one_action_solves_most_pages_of_a_kind(kind: str) -> None:
    pages = factory(kind)
    drawn = [pages.draw() for _ in range(120)]
    hits: dict[str, int] = {}
    for page in drawn:
        for action in page.solutions:
            hits[action] = hits.get(action, 0) + 1
    assert max(hits.values()) < 0.6 * len(drawn)


@pytest.mark.parametrize("kind", PAGE_KINDS)
def test_the_same_seed_draws_the_same_pages(kind: str) -> None:
    first, second, other = factory(kind, 5), factory(kind, 5), factory(kind, 6)
    for _ in range(5):
        a, b, c = first.draw(), second.draw(), other.draw()
        assert np.array_equal(a.pixels, b.pixels)
        assert (a.goal, a.previous_actions, a.solutions) == (
            b.goal,
            b.previous_actions,
            b.solutions,
        )
        assert not np.array_equal(a.pixels, c.pixels)


def test_kinds_come_in_turn() -> None:
    pages = PageFactory(GRID, ("field", "dialog"), np.random.default_rng(0))
    goals = [pages.draw().goal for _ in range(4)]
    assert goals[0] == goals[2] == "Focus into the textbox."
    assert goals[1] == goals[3] == 'Close the dialog box by clicking the "x".'


def test_the_first_solution_is_at_the_middle_of_a_field() -> None:
    pages = factory("field")
    for page in [pages.draw() for _ in range(20)]:
        inside = np.argwhere((page.pixels[52:208] != 255).any(axis=2))
        middle_y, middle_x = inside[:, 0].mean() + 52, inside[:, 1].mean()
        x, y = page.solutions[0].removeprefix("left_click(").removesuffix(")").split(", ")
        assert abs(int(x) * 160 / 1000 - middle_x) <= GRID.bin_px
        assert abs(int(y) * 224 / 1000 - middle_y) <= GRID.bin_px


def test_two_step_pages_ask_for_another_target_after_the_first_action() -> None:
    pages = factory("section")
    drawn = [pages.draw() for _ in range(60)]
    before = [page for page in drawn if not page.previous_actions]
    after = [page for page in drawn if page.previous_actions]
    assert before
    assert after
    for page in after:
        assert page.previous_actions[0] not in page.solutions
