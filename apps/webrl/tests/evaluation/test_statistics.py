"""Intervals and paired comparison of evaluations."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from webrl.evaluation.intervals import paired_difference, wilson_interval
from webrl.evaluation.statistics import EvaluationResult, summarise


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


def test_one_shared_episode_has_a_difference_and_no_interval() -> None:
    assert paired_difference({"a#0": 0}, {"a#0": 1}) == (1.0, None, None)


@pytest.mark.parametrize("count", [2, 5, 100])
@pytest.mark.parametrize(("before", "after"), [(0, 0), (1, 1), (0, 1), (1, 0)])
def test_equal_differences_have_an_interval_around_them_that_narrows(
    count: int, before: int, after: int
) -> None:
    def interval(number: int) -> tuple[float, float]:
        names = [f"a#{index}" for index in range(number)]
        found = paired_difference(dict.fromkeys(names, before), dict.fromkeys(names, after))
        assert found is not None
        mean, low, high = found
        assert mean == after - before
        assert low is not None
        assert high is not None
        assert -1 <= low <= mean <= high <= 1
        return low, high

    wide, narrow = interval(count), interval(10 * count)
    assert 0 < narrow[1] - narrow[0] < wide[1] - wide[0]


@given(
    pairs=st.lists(st.tuples(st.integers(0, 1), st.integers(0, 1)), min_size=2, max_size=60),
)
def test_an_interval_holds_its_difference_and_mirrors_with_the_order(
    pairs: list[tuple[int, int]],
) -> None:
    before = {f"a#{index}": pair[0] for index, pair in enumerate(pairs)}
    after = {f"a#{index}": pair[1] for index, pair in enumerate(pairs)}
    found, mirrored = paired_difference(before, after), paired_difference(after, before)
    assert found is not None
    assert mirrored is not None
    mean, low, high = found
    assert low is not None
    assert high is not None
    assert low <= mean + 1e-9
    assert mean - 1e-9 <= high
    assert high > low
    assert mirrored == pytest.approx((-mean, -high, -low))


def result_of(
    ended: dict[str, int], late: Sequence[str] = (), *, is_late_failure: bool = True
) -> EvaluationResult:
    return summarise(
        ended,
        late=late,
        version=4,
        checkpoint="c",
        num_faults=0,
        duration_s=1.0,
        previous=None,
        is_late_failure=is_late_failure,
    )


def test_without_an_episode_nothing_is_claimed() -> None:
    result = result_of({})
    assert (result.mean, result.low, result.high, result.num_episodes) == (None, 0.0, 1.0, 0)
    assert "eval/success" not in result.metrics()
    assert result.describe() == "success unknown: no episode counts, 0 episodes, 0 faults"
    assert msgspec.json.decode(msgspec.json.encode(result), type=EvaluationResult) == result


def test_late_episodes_count_as_told_and_both_shares_are_shown() -> None:
    ended, late = {"t#0": 1, "t#1": 0}, ["t#2", "t#3"]
    failed, excluded = result_of(ended, late), result_of(ended, late, is_late_failure=False)
    assert (failed.mean, failed.num_episodes, failed.num_late) == (0.25, 4, 2)
    assert (excluded.mean, excluded.num_episodes, excluded.num_late) == (0.5, 2, 2)
    for result in (failed, excluded):
        assert (result.mean_with_late, result.mean_without_late) == (0.25, 0.5)
        assert "2 late: 0.250 with them as failures, 0.500 without" in result.describe()
    assert failed.outcomes == {**ended, "t#2": 0, "t#3": 0}
    assert excluded.outcomes == ended


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
