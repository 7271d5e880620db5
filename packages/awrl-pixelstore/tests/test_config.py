"""Settings, room and pressure."""

import pytest
from awrl_pixelstore import DiskConfig, PixelStoreConfig, Pressure, room_for_episodes
from awrl_pixelstore.pressure import merge_pressure
from awrl_pixelstore.statistics import LatencyWindow, PixelStoreStatistics, merge_statistics


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("max_bytes", 0),
        ("call_timeout_s", 0.0),
        ("max_call_bytes", -1),
        ("lease_ttl_s", 0.0),
        ("idle_exit_s", -2.0),
        ("read_cache_bytes", -1),
    ],
)
def test_a_value_out_of_range_is_refused_by_name(name: str, value: float) -> None:
    with pytest.raises(ValueError, match=f"{name} must be >=? 0, got {value}"):
        PixelStoreConfig(**{name: value})  # pyright: ignore[reportArgumentType]


def test_a_disk_tier_is_checked_and_decides_the_capacity() -> None:
    with pytest.raises(ValueError, match="max_bytes must be > 0"):
        DiskConfig(root="x", max_bytes=0)
    with pytest.raises(ValueError, match="root must be a folder, got ''"):
        DiskConfig(root="", max_bytes=1)
    with pytest.raises(ValueError, match="mode must be 'write_through' or 'write_behind'"):
        DiskConfig(root="x", max_bytes=1, mode="later")  # pyright: ignore[reportArgumentType]
    assert PixelStoreConfig(max_bytes=5).capacity_bytes == 5
    assert PixelStoreConfig(disk=DiskConfig(root="x", max_bytes=7)).capacity_bytes == 7


def test_the_room_is_that_of_the_admission_bound() -> None:
    room = room_for_episodes(
        max_off_policyness=2,
        consumer_batch_size=128,
        screenshots_per_episode=31,
        bytes_per_screenshot=150_000,
    )
    assert room.num_episodes == 3 * 128
    assert room.num_bytes == 3 * 128 * 31 * 150_000
    room.check(PixelStoreConfig(max_bytes=room.num_bytes))
    room.check(PixelStoreConfig(max_bytes=room.num_bytes // 2), num_shards=2)
    with pytest.raises(ValueError, match=f"max_bytes must be >= {room.num_bytes} per shard"):
        room.check(PixelStoreConfig(max_bytes=room.num_bytes - 1))
    disk = PixelStoreConfig(disk=DiskConfig(root="x", max_bytes=1))
    with pytest.raises(ValueError, match=r"disk\.max_bytes must be >= .* for 384 episodes"):
        room.check(disk, num_shards=3)
    with pytest.raises(ValueError, match="num_shards must be > 0"):
        room.check(disk, num_shards=0)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("max_off_policyness", -1),
        ("consumer_batch_size", 0),
        ("screenshots_per_episode", 0),
        ("bytes_per_screenshot", 0),
        ("num_extra_episodes", -1),
    ],
)
def test_a_room_of_nothing_is_refused(name: str, value: int) -> None:
    counts = {
        "max_off_policyness": 0,
        "consumer_batch_size": 1,
        "screenshots_per_episode": 1,
        "bytes_per_screenshot": 1,
    }
    assert room_for_episodes(**counts, num_extra_episodes=3).num_episodes == 4
    with pytest.raises(ValueError, match=f"{name} must be"):
        room_for_episodes(**{**counts, name: value})


def test_pressure_is_that_of_the_fullest_shard() -> None:
    reading = merge_pressure([(10, 100), (90, 100)])
    assert reading == Pressure(value=0.9, used_bytes=100, capacity_bytes=200, free_bytes=20)
    assert reading.num_episodes_that_fit(7) == 2
    assert merge_pressure([(150, 100)]).value == 1.0
    assert merge_pressure([(150, 100)]).free_bytes == 0
    assert merge_pressure([]).value == 0.0
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
