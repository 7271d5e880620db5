"""Which screenshots the judge gets."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from webrl.judge.judge import newest, spread, without_repeats

_SHOTS = st.lists(st.sampled_from("abc"), min_size=1, max_size=40)


def test_a_screenshot_like_the_one_before_is_left_out() -> None:
    assert without_repeats(["a", "a", "b", "a", "a"]) == ["a", "b", "a"]


@given(_SHOTS, st.integers(1, 20))
def test_a_spread_fits_and_ends_with_the_last(shots: list[str], count: int) -> None:
    numbered = [f"{index}{shot}" for index, shot in enumerate(shots)]
    chosen = spread(numbered, count)
    assert len(chosen) == len(set(chosen)) == min(count, len(shots))
    assert chosen == sorted(chosen, key=numbered.index)
    assert chosen[-1] == numbered[-1]
    assert count == 1 or len(shots) == 1 or chosen[0] == numbered[0]


@given(st.integers(1, 40), st.sets(st.integers(0, 39)), st.integers(1, 20))
def test_relevant_ones_give_way_to_newer_ones_and_never_the_last(
    num_shots: int, relevant: set[int], count: int
) -> None:
    shots = [str(index) for index in range(num_shots)]
    inside = {index for index in relevant if index < num_shots}
    chosen = newest(shots, relevant, count)
    assert chosen[-1] == shots[-1]
    assert len(chosen) == min(count, len(inside | {num_shots - 1}))
    assert chosen == [shots[i] for i in sorted(inside | {num_shots - 1})][-count:]
