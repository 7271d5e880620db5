"""Every way in which an episode can end has one row, in the code and in the documentation."""

from __future__ import annotations

import re
from pathlib import Path
from typing import get_args

import pytest
from awrl_pixelstore import PixelStoreError
from awrl_rollout import FaultKind, ServerRefusedError, ServerUnavailableError
from webrl.endings import ENDINGS, EPISODE_ERRORS, EndReason, as_fault, ending_of
from webrl.errors import BrowserFault, BrowserFaultKind, JudgeError, PolicyError

KINDS: tuple[BrowserFaultKind, ...] = get_args(BrowserFaultKind)
OF_AN_OPEN_PAGE: tuple[BrowserFaultKind, ...] = (
    "browser_lost",
    "page_crashed",
    "navigation_error",
    "timeout",
    "dialog_storm",
    "page_error",
)
PAGE = Path(__file__).parents[3] / "docs" / "endings.md"


def test_the_documentation_shows_every_row_and_no_other() -> None:
    shown = re.findall(r"^\| `(\w+)` \|(?: `(\w+)` \|)? (.+) \|$", PAGE.read_text(), re.MULTILINE)
    rows = [(e.name, "" if e.fault is None else e.fault.value, e.when) for e in ENDINGS.values()]
    assert shown == rows


@pytest.mark.parametrize(
    ("heading", "is_of_site", "is_permanent"),
    [
        ("Faults of the site that stay", True, True),
        ("Faults of the site that pass", True, False),
        ("Faults of the infrastructure", False, False),
    ],
)
def test_each_kind_of_fault_is_in_the_section_of_its_scope(
    heading: str, is_of_site: bool, is_permanent: bool
) -> None:
    section = PAGE.read_text().partition(f"## {heading}\n")[2].partition("\n## ")[0]
    shown = re.findall(r"^\| `\w+` \| `(\w+)` \|", section, re.MULTILINE)
    assert {FaultKind(value) for value in shown} == {
        kind
        for kind in FaultKind
        if kind.is_of_site == is_of_site and kind.is_permanent == is_permanent
    }


def test_the_rows_are_all_results_and_all_kinds_of_fault() -> None:
    results = [ending.name for ending in ENDINGS.values() if ending.is_policys]
    assert sorted(results) == sorted(get_args(EndReason))
    assert {ending.fault for ending in ENDINGS.values()} - {None} == set(FaultKind)


@pytest.mark.parametrize("kind", KINDS)
def test_before_the_first_action_nothing_is_the_policys_doing(kind: BrowserFaultKind) -> None:
    assert not ending_of(BrowserFault(kind, "x")).is_policys


@pytest.mark.parametrize("kind", KINDS)
def test_a_page_that_fails_after_an_action_is_the_policys_doing(kind: BrowserFaultKind) -> None:
    # A driver that is gone is no page's doing, and the others are met at the start alone.
    is_policys = ending_of(BrowserFault(kind, "x"), is_page_at_fault=True).is_policys
    assert is_policys == (kind in OF_AN_OPEN_PAGE)


@pytest.mark.parametrize(
    ("error", "kind", "boundary"),
    [
        (BrowserFault("browser_lost", "x"), FaultKind.BROWSER_LOST, "browser"),
        (BrowserFault("blocked", "x"), FaultKind.SITE_BLOCKED, "browser"),
        (JudgeError("x"), FaultKind.JUDGE_ERROR, "judge"),
        (ServerRefusedError("x"), FaultKind.GENERATION_ERROR, "generation"),
        (ServerUnavailableError("x"), FaultKind.GENERATION_ERROR, "generation"),
        (PolicyError("x"), FaultKind.WORKFLOW_ERROR, "prompt"),
        (PixelStoreError("x"), FaultKind.WORKFLOW_ERROR, "pixelstore"),
    ],
)
def test_an_error_leaves_an_episode_as_its_fault(
    error: Exception, kind: FaultKind, boundary: str
) -> None:
    assert isinstance(error, EPISODE_ERRORS)
    fault = as_fault(error)
    assert (fault.kind, fault.boundary) == (kind, boundary)
    assert str(error) in str(fault)


def test_an_unknown_error_is_never_a_result() -> None:
    assert ending_of(RuntimeError("x"), is_page_at_fault=True).name == "workflow_error"
