"""The formula."""

import pytest
from awrl_staleness import Capacity, compute_capacity
from hypothesis import given
from hypothesis import strategies as st

COUNT = st.integers(0, 50)


@pytest.mark.requirement("bounded-staleness")
@given(eta=st.integers(0, 5), batch=st.integers(1, 20), version=COUNT, extra=COUNT, running=COUNT)
def test_with_b_episodes_a_version_it_is_the_published_formula(
    eta: int, batch: int, version: int, extra: int, running: int
) -> None:
    finished = version * batch + extra
    ours = compute_capacity(
        max_concurrent=10_000,
        budget=(eta + 1) * batch,
        running=running,
        reserved=0,
        finished=finished,
        released=version * batch,
    )
    assert ours.bounds["staleness"] == (eta + version + 1) * batch - (finished + running)
    assert ours.value == max(0, ours.bounds["staleness"])


def test_a_tie_is_named_in_a_fixed_order() -> None:
    tied = compute_capacity(
        max_concurrent=3,
        budget=3,
        running=0,
        reserved=0,
        finished=0,
        released=0,
        extra_bounds={"store": 3},
    )
    assert tied.binding == "concurrency"


def test_a_bound_below_zero_reads_as_no_capacity() -> None:
    over = compute_capacity(
        max_concurrent=2, budget=2, running=5, reserved=0, finished=0, released=0
    )
    assert (over.value, bool(over)) == (0, False)
    assert over.bounds == {"concurrency": -3, "staleness": -3}
    assert over.describe() == (
        "0 more episodes may start; concurrency binds (concurrency -3, staleness -3)"
    )


def test_capacity_is_true_when_one_may_start() -> None:
    assert Capacity(value=1, binding="concurrency", bounds={"concurrency": 1})
