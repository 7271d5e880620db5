"""Oldest trainable token decides."""

import pytest
from awrl_staleness import ConfigError, VersionSpan, is_fresh, is_last_chance, off_policyness
from hypothesis import given
from hypothesis import strategies as st


def test_prompt_placeholders_are_ignored() -> None:
    assert VersionSpan.of([-1, -1, 4, 5, 5]) == VersionSpan(oldest=4, newest=5)
    assert VersionSpan.of([0, 0, 4, 5], [False, False, True, True]) == VersionSpan(
        oldest=4, newest=5
    )
    assert VersionSpan.of([-1, -1]) is None
    assert VersionSpan.of([3], [False]) is None


def test_a_mask_of_another_length_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"mask must be as long as versions \(2\), got 1"):
        VersionSpan.of([1, 2], [True])


@given(oldest=st.integers(0, 50), current=st.integers(0, 50), eta=st.integers(0, 5))
def test_fresh_until_the_last_chance_is_over(oldest: int, current: int, eta: int) -> None:
    assert is_fresh(oldest, current, eta) == (off_policyness(oldest, current) <= eta)
    if is_fresh(oldest, current, eta):
        assert is_last_chance(oldest, current, eta) != is_fresh(oldest, current + 1, eta)
