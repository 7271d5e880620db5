"""The pool's configuration is checked once, with a message that says what to do."""

from __future__ import annotations

from typing import Any

import pytest
from webrl.browser import BrowserConfig, Deadlines
from webrl.errors import ConfigError


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_slots": 0}, "num_slots must be >= 1, got 0"),
        ({"pages_per_session": -1}, "pages_per_session must be >= 1, got -1"),
        ({"screenshot_format": "gif"}, "screenshot_format must be 'png' or 'jpeg', got 'gif'"),
        ({"jpeg_quality": 101}, "jpeg_quality must be 1 to 100, got 101"),
        ({"wait_s": 0.0}, "wait_s must be > 0, got 0.0"),
        ({"restart_window_s": float("nan")}, "restart_window_s must be > 0, got nan"),
    ],
)
def test_values_out_of_range_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        BrowserConfig(**changes)


@pytest.mark.parametrize("name", Deadlines.__struct_fields__)
def test_every_deadline_must_be_positive(name: str) -> None:
    changes: dict[str, Any] = {name: 0}
    with pytest.raises(ConfigError, match=f"{name} must be > 0, got 0"):
        Deadlines(**changes)
