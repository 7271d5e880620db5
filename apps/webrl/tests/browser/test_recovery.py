"""The escalation ladder, as a pure decision."""

from __future__ import annotations

from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st
from webrl.browser.recovery import HIGHEST, RecoveryLevel, escalate
from webrl.errors import BrowserFaultKind

_KINDS: tuple[BrowserFaultKind, ...] = get_args(BrowserFaultKind)


def test_every_kind_has_a_highest_rung() -> None:
    assert set(HIGHEST) == set(_KINDS)


@given(st.lists(st.sampled_from(_KINDS), max_size=20))
def test_rungs_only_climb_and_a_reset_ends(kinds: list[BrowserFaultKind]) -> None:
    level, tries = RecoveryLevel.NOTHING, 0
    for kind in kinds:
        climbed = escalate(kind, level)
        if climbed is None:
            break
        assert climbed > level
        assert climbed <= HIGHEST[kind]
        level, tries = climbed, tries + 1
    assert tries <= 4


@pytest.mark.parametrize(
    ("kind", "levels"),
    [
        ("navigation_error", [RecoveryLevel.PAGE]),
        ("blocked", []),
        ("page_crashed", [RecoveryLevel.PAGE, RecoveryLevel.CONTEXT]),
        (
            "timeout",
            [
                RecoveryLevel.PAGE,
                RecoveryLevel.CONTEXT,
                RecoveryLevel.BROWSER,
                RecoveryLevel.DRIVER,
            ],
        ),
        ("browser_lost", [RecoveryLevel.BROWSER, RecoveryLevel.DRIVER]),
        ("driver_lost", [RecoveryLevel.DRIVER]),
    ],
)
def test_a_fault_that_stays_climbs_as_far_as_its_kind_explains(
    kind: BrowserFaultKind, levels: list[RecoveryLevel]
) -> None:
    climbed: list[RecoveryLevel] = []
    level: RecoveryLevel | None = RecoveryLevel.NOTHING
    while level is not None:
        level = escalate(kind, level)
        if level is not None:
            climbed.append(level)
    assert climbed == levels
