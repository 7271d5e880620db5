from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from webrl.policy import ActionGrid, InitPolicyConfig, WarmupConfig


@given(st.integers(1, 40), st.integers(1, 40), st.integers(2, 32))
def test_every_bin_centre_lies_in_its_bin(columns: int, rows: int, bin_px: int) -> None:
    grid = ActionGrid(viewport_width=columns * bin_px, viewport_height=rows * bin_px, bin_px=bin_px)
    for values, extent in (
        (grid.x_values(), grid.viewport_width),
        (grid.y_values(), grid.viewport_height),
    ):
        # One unit of the 0-1000 grid is the resolution of the action text.
        for index, value in enumerate(values):
            position = value * extent / 1000
            assert index * bin_px - extent / 1000 <= position
            assert position <= (index + 1) * bin_px + extent / 1000


def test_a_bin_that_does_not_tile_the_viewport_is_refused() -> None:
    with pytest.raises(ValueError, match=r"viewport_width must be a positive multiple of bin_px"):
        ActionGrid(viewport_width=165)


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("num_updates", -1, r"num_updates must be >= 0, got -1"),
        ("batch_size", 0, r"batch_size must be >= 1, got 0"),
        ("learning_rate", 0.0, r"learning_rate must be > 0, got 0.0"),
        ("page_kinds", (), r"page_kinds must be a non-empty choice of"),
        ("page_kinds", ("button", "buton"), r"Remove \['buton'\]"),
    ],
)
def test_a_wrong_warm_up_is_refused_by_name(field: str, value: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        WarmupConfig(**{field: value})  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("hidden_size", 130, r"hidden_size must be num_heads \(4\) times a multiple of 8, got 130"),
        ("num_heads", 1, r"num_heads must be even, got 1"),
        ("vision_hidden_size", 60, r"vision_hidden_size must be a multiple of 2 \* vision_heads"),
        ("max_pixels", 100, r"max_pixels must be at least one merged patch \(256\), got 100"),
        ("merge", 0, r"merge must be >= 1, got 0"),
    ],
)
def test_impossible_sizes_are_refused_by_name(field: str, value: int, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        InitPolicyConfig(**{field: value})  # pyright: ignore[reportArgumentType]
