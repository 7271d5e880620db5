"""The escalation ladder, as a pure decision."""

from __future__ import annotations

from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st
from webrl.browser.ladder import HIGHEST, Rung, next_rung
from webrl.errors import BrowserFaultKind

_KINDS: tuple[BrowserFaultKind, ...] = get_args(BrowserFaultKind)


def test_every_kind_has_a_highest_rung() -> None:
    assert set(HIGHEST) == set(_KINDS)


@given(st.lists(st.sampled_from(_KINDS), max_size=20))
def test_rungs_only_climb_and_a_reset_ends(kinds: list[BrowserFaultKind]) -> None:
    rung, tries = Rung.NOTHING, 0
    for kind in kinds:
        climbed = next_rung(kind, rung)
        if climbed is None:
            break
        assert climbed > rung
        assert climbed <= HIGHEST[kind]
        rung, tries = climbed, tries + 1
    assert tries <= 4


@pytest.mark.parametrize(
    ("kind", "rungs"),
    [
        ("navigation_error", [Rung.PAGE]),
        ("blocked", []),
        ("page_crashed", [Rung.PAGE, Rung.CONTEXT]),
        ("timeout", [Rung.PAGE, Rung.CONTEXT, Rung.BROWSER, Rung.DRIVER]),
        ("browser_lost", [Rung.BROWSER, Rung.DRIVER]),
        ("driver_lost", [Rung.DRIVER]),
    ],
)
def test_a_fault_that_stays_climbs_as_far_as_its_kind_explains(
    kind: BrowserFaultKind, rungs: list[Rung]
) -> None:
    climbed: list[Rung] = []
    rung: Rung | None = Rung.NOTHING
    while rung is not None:
        rung = next_rung(kind, rung)
        if rung is not None:
            climbed.append(rung)
    assert climbed == rungs
