"""Intervals and paired comparison of evaluations."""

from __future__ import annotations

import pytest
from webrl.evaluation.statistics import paired_difference, summarise, wilson_interval


def test_wilson_interval_of_known_values() -> None:
    # Wilson 1927 with z = 1.96: 8 of 10.
    low, high = wilson_interval(8, 10)
    assert (low, high) == (pytest.approx(0.4902, abs=1e-4), pytest.approx(0.9433, abs=1e-4))


def test_wilson_interval_stays_within_zero_and_one() -> None:
    assert wilson_interval(0, 5)[0] == 0.0
    assert wilson_interval(5, 5)[1] == 1.0
    assert wilson_interval(0, 0) == (0.0, 1.0)


def test_paired_difference_looks_at_shared_episodes_only() -> None:
    before, after = {"a#0": 0, "a#1": 1, "a#2": 1}, {"a#0": 1, "a#1": 1, "b#9": 0}
    found = paired_difference(before, after)
    assert found is not None
    assert found[0] == pytest.approx(0.5)
    assert paired_difference({"x": 1}, {"y": 1}) is None


def test_faults_leave_both_counts() -> None:
    result = summarise(
        {"t#0": 1, "t#1": 0},
        version=4,
        checkpoint="c",
        num_faults=3,
        duration_s=1.0,
        previous=None,
    )
    assert (result.num_episodes, result.num_faults, result.mean) == (2, 3, 0.5)
    assert result.by_task == {"t": 0.5}
    assert result.paired_difference is None


def test_a_second_evaluation_is_compared_with_the_first() -> None:
    first = summarise(
        {"t#0": 0, "t#1": 0}, version=1, checkpoint="c", num_faults=0, duration_s=1.0, previous=None
    )
    second = summarise(
        {"t#0": 1, "t#1": 0},
        version=2,
        checkpoint="d",
        num_faults=0,
        duration_s=1.0,
        previous=first,
    )
    assert second.paired_difference == pytest.approx(0.5)
