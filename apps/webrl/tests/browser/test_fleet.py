"""Which browser elsewhere a slot uses, and when a lost one is tried again."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from webrl.browser.remote import FIRST_WAIT_S, LONGEST_WAIT_S, Fleet, variables_of, with_secrets
from webrl.errors import PreflightError


class Clock:
    """Seconds that a test moves."""

    def __init__(self) -> None:
        self.now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


def _fleet(num_browsers: int, seed: int = 0) -> tuple[Fleet, Clock]:
    clock = Clock()
    return Fleet(num_browsers, clock=clock, generator=random.Random(seed)), clock


@given(st.integers(1, 5), st.integers(1, 20), st.integers(0, 9))
def test_slots_are_spread_evenly(num_browsers: int, num_slots: int, seed: int) -> None:
    fleet, _ = _fleet(num_browsers, seed)
    for slot in range(num_slots):
        fleet.choose(slot)
    loads = [fleet.load(index) for index in range(num_browsers)]
    assert sum(loads) == num_slots
    assert max(loads) - min(loads) <= 1


def test_a_slot_stays_with_its_browser() -> None:
    fleet, _ = _fleet(3)
    first = [fleet.choose(slot) for slot in range(6)]
    assert [fleet.choose(slot) for slot in range(6)] == first


@given(
    st.integers(2, 4),
    st.integers(1, 12),
    st.lists(
        st.one_of(
            st.tuples(st.just("choose"), st.integers(0, 11)),
            st.tuples(st.just("lose"), st.integers(0, 3)),
            st.tuples(st.just("release"), st.integers(0, 11)),
            st.tuples(st.just("wait"), st.integers(0, 90)),
        ),
        max_size=60,
    ),
)
def test_whatever_happens_a_slot_gets_a_browser_that_is_not_left_alone(
    num_browsers: int, num_slots: int, events: list[tuple[str, int]]
) -> None:
    fleet, clock = _fleet(num_browsers)
    for what, number in events:
        if what == "choose":
            place = fleet.choose(number % num_slots)
            ready = [index for index in range(num_browsers) if fleet.is_ready(index)]
            assert (place in ready) if ready else place is None
            if place is not None:
                assert fleet.load(place) <= min(fleet.load(index) for index in ready) + 1
        elif what == "lose":
            fleet.lose(number % num_browsers)
        elif what == "release":
            fleet.release(number % num_slots)
        else:
            clock.now_s += number
    clock.now_s += LONGEST_WAIT_S
    assert fleet.choose(0) is not None


def test_a_lost_browser_is_left_alone_longer_each_time_and_its_slots_move() -> None:
    fleet, clock = _fleet(2)
    for slot in range(4):
        fleet.choose(slot)
    waits = [fleet.lose(0) for _ in range(12)]
    assert waits[:3] == [FIRST_WAIT_S, 2 * FIRST_WAIT_S, 4 * FIRST_WAIT_S]
    assert waits[-1] == LONGEST_WAIT_S
    assert {fleet.choose(slot) for slot in range(4)} == {1}
    clock.now_s += LONGEST_WAIT_S
    for slot in range(4):
        fleet.choose(slot)
    assert (fleet.load(0), fleet.load(1)) == (2, 2)


def test_a_browser_that_lived_long_is_tried_again_soon() -> None:
    fleet, _ = _fleet(1)
    for _ in range(5):
        fleet.lose(0)
    assert fleet.lose(0, lived_s=LONGEST_WAIT_S) == FIRST_WAIT_S
    assert fleet.wait_s() == FIRST_WAIT_S


def test_secrets_of_an_address_come_from_the_environment_and_are_quoted() -> None:
    address = "wss://chrome.example/?token={BROWSER_TOKEN}&region=eu"
    assert variables_of(address) == ("BROWSER_TOKEN",)
    full = with_secrets(address, {"BROWSER_TOKEN": "a&b=c"})
    assert full == "wss://chrome.example/?token=a%26b%3Dc&region=eu"
    with pytest.raises(PreflightError, match="BROWSER_TOKEN must be set for the browser at wss"):
        with_secrets(address, {})
