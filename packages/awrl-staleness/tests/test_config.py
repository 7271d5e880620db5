"""The three numbers are checked once, by name."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from awrl_staleness import StalenessConfig, StalenessError

GOOD: dict[str, Any] = {"max_concurrent": 1, "consumer_batch_size": 1, "max_off_policyness": 0}


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("max_concurrent", 0, "max_concurrent must be at least 1, got 0"),
        ("consumer_batch_size", 0, "consumer_batch_size must be at least 1, got 0"),
        ("max_off_policyness", -1, "max_off_policyness must be at least 0, got -1"),
        ("max_off_policyness", 2.5, "max_off_policyness must be a whole number, got 2.5"),
        ("max_concurrent", float("nan"), "max_concurrent must be a whole number, got nan"),
        ("consumer_batch_size", True, "consumer_batch_size must be a whole number, got True"),
    ],
)
def test_a_number_out_of_range_is_refused_by_name(name: str, value: Any, message: str) -> None:
    with pytest.raises(StalenessError, match=message):
        StalenessConfig(**{**GOOD, name: value})


def test_a_file_with_a_number_out_of_range_is_refused_with_the_same_words() -> None:
    with pytest.raises(msgspec.ValidationError, match="max_concurrent must be at least 1, got 0"):
        msgspec.convert({**GOOD, "max_concurrent": 0}, StalenessConfig)
