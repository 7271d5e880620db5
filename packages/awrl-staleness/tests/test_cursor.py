"""Where a resume continues."""

import pytest
from awrl_staleness import ResumeCursor, UnknownEpisodeError
from hypothesis import given
from hypothesis import strategies as st


def test_a_dropped_group_counts_as_done() -> None:
    cursor = ResumeCursor()
    for _ in range(10):
        cursor.issue()
    for position in (0, 1, 3, 4, 5, 6, 7, 8, 9):
        cursor.done(position)
    assert cursor.resume_position == 2
    cursor.done(2)
    assert cursor.resume_position == 10
    with pytest.raises(UnknownEpisodeError, match="got 2"):
        cursor.done(2)


@given(st.lists(st.integers(0, 30), max_size=60), st.integers(0, 60))
def test_no_position_is_skipped_or_done_twice_over_a_resume(ends: list[int], cut: int) -> None:
    cursor = ResumeCursor()
    issued: list[int] = []
    done: list[int] = []
    for step, end in enumerate(ends):
        if step == cut:
            cursor = ResumeCursor(cursor.snapshot())
            issued = list(done)
        issued.append(cursor.issue())
        if end in issued and end not in done:
            cursor.done(end)
            done.append(end)
    assert len(set(issued)) == len(issued)
    snapshot = cursor.snapshot()
    assert sorted([*done, *snapshot.outstanding]) == list(range(snapshot.next_position))
    first_open = min(snapshot.outstanding, default=snapshot.next_position)
    assert cursor.resume_position == first_open
