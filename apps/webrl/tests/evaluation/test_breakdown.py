"""What an evaluation says of its parts: samples, difficulties, sites, and what sites ended."""

from __future__ import annotations

import itertools
import random
from pathlib import Path
from xml.etree import ElementTree

import pytest
from awrl_rollout import EpisodeRecord, Fault, FaultKind, Outcome
from hypothesis import given
from hypothesis import strategies as st
from webrl.evaluation.breakdown import (
    EvaluationItem,
    faults_by_kind,
    pass_at,
    shares_by,
    site_faults,
    success_interval,
)
from webrl.evaluation.intervals import wilson_interval
from webrl.evaluation.report import write_report
from webrl.evaluation.statistics import EvaluationResult, summarise


def sampled(*episodes: str) -> dict[str, int]:
    """Return outcomes of episodes such as `0110`, a digit a sample."""
    return {
        f"web/a#{seed}@{sample}": int(digit)
        for seed, digits in enumerate(episodes)
        for sample, digit in enumerate(digits)
    }


@given(st.lists(st.text("01", min_size=1, max_size=5), min_size=1, max_size=6))
def test_pass_at_k_is_the_mean_over_every_choice_of_k_samples(episodes: list[str]) -> None:
    found = pass_at(sampled(*episodes), 5)
    for k in range(1, 6):
        chances = [
            sum("1" in choice for choice in choices) / len(choices)
            for digits in episodes
            if (choices := list(itertools.combinations(digits, k)))
        ]
        assert found.get(str(k)) == (
            pytest.approx(sum(chances) / len(chances)) if chances else None
        )


def test_an_interval_of_samples_goes_by_episodes() -> None:
    single = {f"web/a#{seed}": seed % 2 for seed in range(40)}
    assert success_interval(single) == wilson_interval(20, 40)
    # Eight equal samples of an episode tell no more than one of them.
    low, high = success_interval(sampled(*["1" * 8, "0" * 8] * 20))
    normal = 1.96 * (0.25 / 39) ** 0.5
    assert (low, high) == pytest.approx((0.5 - normal, 0.5 + normal), abs=1e-3)
    # Samples that differ within every episode tell more.
    assert success_interval(sampled(*["10", "01"] * 20)) == wilson_interval(20, 40)


def test_an_interval_of_samples_holds_the_truth_as_often_as_it_says() -> None:
    rng, held = random.Random(0), 0
    for _ in range(400):
        chances = [rng.betavariate(0.8, 0.8) for _ in range(60)]
        digits = ["".join("01"[rng.random() < chance] for _ in range(4)) for chance in chances]
        low, high = success_interval(sampled(*digits))
        held += low <= 0.5 <= high
    assert 0.92 < held / 400 < 0.98


def item(seed: int, difficulty: str | None, site: str) -> EvaluationItem:
    return EvaluationItem(task="web/a", seed=seed, difficulty=difficulty, site=site)


def test_parts_are_told_by_difficulty_and_by_site() -> None:
    items = [
        item(0, "easy", "a.example"),
        item(1, "easy", "b.example"),
        item(2, "hard", "b.example"),
        item(3, None, ""),
    ]
    by_key = {each.key: each for each in items}
    outcomes = {"web/a#0": 1, "web/a#1": 0, "web/a#2": 1, "web/a#3": 1}
    difficulties = shares_by(by_key, outcomes, lambda each: each.difficulty)
    assert {name: (share.mean, share.num_episodes) for name, share in difficulties.items()} == {
        "easy": (0.5, 2),
        "hard": (1.0, 1),
    }
    sites = shares_by(by_key, outcomes, lambda each: each.site)
    assert {name: share.mean for name, share in sites.items()} == {
        "a.example": 1.0,
        "b.example": 0.5,
    }


def lost(episode_id: str, kind: FaultKind, message: str = "no") -> EpisodeRecord:
    return EpisodeRecord(
        episode_id=episode_id,
        group_id="g",
        outcome=Outcome.FAULT,
        fault=Fault(kind=kind, boundary="reset", message=message),
    )


def test_what_sites_ended_is_told_apart_from_what_broke_here() -> None:
    records = [
        lost("0", FaultKind.SITE_BLOCKED, "403"),
        lost("1", FaultKind.SITE_BLOCKED, "captcha"),
        lost("2", FaultKind.NAVIGATION_ERROR, "slow"),
        lost("3", FaultKind.BROWSER_LOST),
        lost("4", FaultKind.NAME_NOT_RESOLVED, "no such name"),
    ]
    site_of = {"0": "a.example", "1": "a.example", "2": "a.example", "3": "b.example", "4": "c.x"}
    found = site_faults(records, site_of)
    assert list(found) == ["a.example", "c.x"]
    assert (found["a.example"].num_episodes, found["a.example"].kind) == (3, "site_blocked")
    assert found["a.example"].message == "403"
    kinds = faults_by_kind(records)
    assert next(iter(kinds.items())) == ("site_blocked", 2)
    assert sum(kinds.values()) == 5


def result(outcomes: dict[str, int], items: list[EvaluationItem]) -> EvaluationResult:
    return summarise(
        outcomes,
        version=7,
        checkpoint="c",
        num_faults=2,
        duration_s=4.0,
        previous=None,
        items={each.key: each for each in items},
        num_samples=2,
        faults={"site_blocked": 2},
        by_lost_site=site_faults(
            [lost("0", FaultKind.SITE_BLOCKED, "a | wall\n<script>")], {"0": "wall.example"}
        ),
    )


def test_a_report_is_a_table_json_and_a_picture(tmp_path: Path) -> None:
    items = [
        EvaluationItem(
            task="web/a", seed=seed, sample=sample, difficulty=label, site=f"{label}.<b>example"
        )
        for seed, label in enumerate(["easy", "hard"])
        for sample in (0, 1)
    ]
    found = result({"web/a#0@0": 1, "web/a#0@1": 0, "web/a#1@0": 0, "web/a#1@1": 0}, items)
    assert found.metrics()["eval/pass_at_2"] == 0.5
    assert found.metrics()["eval/success_easy"] == 0.5
    assert found.metrics()["eval/lost_to_sites"] == 1.0
    assert "avg@2; pass@2 0.500" in found.describe()
    paths = write_report(tmp_path / "out", found)
    assert [path.name for path in paths] == [
        "evaluation.json",
        "evaluation.md",
        "evaluation.svg",
    ]
    table = paths[1].read_text()
    assert "| difficulty easy | 0.500 |" in table
    assert "| wall.example | 1 | site_blocked: a / wall <script> |" in table
    assert "| 2 | 0.500 |" in table
    root = ElementTree.fromstring(paths[2].read_text())
    bars = root.findall("{http://www.w3.org/2000/svg}rect")
    assert [float(bar.get("width", "-1")) for bar in bars] == [105.0, 210.0, 0.0, 210.0, 0.0]


def test_a_picture_of_nothing_says_so(tmp_path: Path) -> None:
    nothing = summarise({}, version=7, checkpoint="c", num_faults=2, duration_s=4.0, previous=None)
    picture = write_report(tmp_path, nothing)[2].read_text()
    assert "no episode counts" in picture
    ElementTree.fromstring(picture)
