"""Settings, pressure and statistics."""

from __future__ import annotations

import pytest
from awrl_pixelstore import PixelStoreConfig, PixelStoreStatistics, Pressure
from awrl_pixelstore.statistics import LatencyWindow, merge_statistics, pressure_of


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("max_bytes", 0),
        ("max_disk_bytes", 0),
        ("call_timeout_s", 0.0),
        ("max_call_bytes", -1),
        ("lease_ttl_s", 0.0),
        ("idle_exit_s", -2.0),
        ("read_cache_bytes", -1),
        ("read_cache_bytes", float("nan")),
        ("call_timeout_s", float("nan")),
    ],
)
def test_a_value_out_of_range_is_refused_by_name(name: str, value: float) -> None:
    with pytest.raises(ValueError, match=f"{name} must be >=? 0, got {value}"):
        PixelStoreConfig(**{name: value})  # pyright: ignore[reportArgumentType]


def test_a_disk_tier_decides_the_capacity() -> None:
    with pytest.raises(ValueError, match="disk_dir must be a folder, got ''"):
        PixelStoreConfig(disk_dir="")
    assert PixelStoreConfig(max_bytes=5, max_disk_bytes=7).capacity_bytes == 5
    assert PixelStoreConfig(max_bytes=5, max_disk_bytes=7, disk_dir="x").capacity_bytes == 7


def shard(used: int, capacity: int) -> PixelStoreStatistics:
    return PixelStoreStatistics(num_bytes=used, capacity_bytes=capacity)


def test_pressure_is_that_of_the_fullest_shard() -> None:
    reading = pressure_of([shard(10, 100), shard(90, 100)])
    assert reading == Pressure(value=0.9, used_bytes=100, capacity_bytes=200, free_bytes=20)
    assert reading.num_episodes_that_fit(7) == 2
    assert pressure_of([shard(150, 100)]).value == 1.0
    assert pressure_of([shard(150, 100)]).free_bytes == 0
    with pytest.raises(ValueError, match="bytes_per_episode must be > 0"):
        reading.num_episodes_that_fit(0)


def test_statistics_add_up_and_percentiles_take_the_worst() -> None:
    merged = merge_statistics(
        [
            PixelStoreStatistics(num_puts=3, num_put_bytes=10, num_dedup_bytes=5, put_p99_s=0.2),
            PixelStoreStatistics(num_puts=4, num_put_bytes=10, put_p99_s=0.1),
        ]
    )
    assert merged.num_puts == 7
    assert merged.put_p99_s == 0.2
    assert merged.dedup_share == 0.25
    assert merge_statistics([]) == PixelStoreStatistics()


def test_the_99th_percentile_leaves_one_in_a_hundred_above() -> None:
    window = LatencyWindow()
    assert window.p99_s() == 0.0
    for number in range(100):
        window.observe(float(number))
    assert window.p99_s() == 99.0
    for _ in range(2000):
        window.observe(1.0)
    assert window.p99_s() == 1.0
