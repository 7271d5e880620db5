"""One shard's behaviour without Ray."""

from __future__ import annotations

import pickle
from collections.abc import Callable

import numpy as np
import pytest
from awrl_pixelstore import (
    InvalidImage,
    PixelNotFound,
    PixelStoreConfig,
    PixelStoreCore,
    PixelStoreFull,
)
from numpy.typing import NDArray

MakeArray = Callable[..., NDArray[np.uint8]]
MakePng = Callable[..., bytes]
ABSENT = "px-25bf8e1a-0-" + "0" * 32


class ManualClock:
    """Seconds that pass only when told."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_what_comes_back_equals_what_was_put(make_array: MakeArray, make_png: MakePng) -> None:
    core = PixelStoreCore()
    array, png = make_array(), make_png()
    keys = [core.put(array, trajectory_id="t"), core.put(png, trajectory_id="t")]
    back, encoded = core.get_many(keys)
    assert isinstance(back, np.ndarray)
    assert back.dtype == np.uint8
    np.testing.assert_array_equal(back, array)
    assert encoded == png


def test_neither_writers_nor_readers_change_what_is_stored(make_array: MakeArray) -> None:
    core = PixelStoreCore()
    array = make_array()
    key = core.put(array, trajectory_id="t")
    array[:] = 0
    for _ in range(2):
        back = core.get_many([key, key])[1]
        np.testing.assert_array_equal(back, make_array())
        np.asarray(back)[:] = 0


def test_a_tensor_over_an_image_does_not_change_the_store(make_array: MakeArray) -> None:
    torch = pytest.importorskip("torch")
    core = PixelStoreCore()
    key = core.put(make_array(), trajectory_id="t")
    torch.from_numpy(core.get_many([key])[0]).fill_(5)
    np.testing.assert_array_equal(core.get_many([key])[0], make_array())


def test_equal_content_is_stored_once_and_shape_and_form_count(make_array: MakeArray) -> None:
    core = PixelStoreCore()
    array = make_array(shape=(8, 6, 3))
    keys = core.put_many([array, array.copy(), array.reshape(6, 8, 3)], trajectory_id="t")
    assert keys[0] == keys[1] != keys[2]
    statistics = core.statistics()
    assert (statistics.num_entries, statistics.num_bytes) == (2, 2 * array.nbytes)
    assert (statistics.num_puts, statistics.num_dedup_puts) == (3, 1)
    assert statistics.dedup_share == pytest.approx(1 / 3)


def test_strided_views_are_stored_by_value(make_array: MakeArray) -> None:
    core = PixelStoreCore()
    array = make_array(shape=(8, 6, 3))
    key = core.put(array[::2, ::-1], trajectory_id="t")
    np.testing.assert_array_equal(core.get_many([key])[0], array[::2, ::-1])


def test_release_is_idempotent_and_frees_only_what_nobody_holds(make_array: MakeArray) -> None:
    core = PixelStoreCore()
    first, second = make_array(1), make_array(2)
    shared, own = core.put_many([first, second], trajectory_id="a")
    assert core.put(first, trajectory_id="b") == shared
    assert core.statistics().num_references == 3
    assert core.release("a") == second.nbytes
    assert core.release("a") == 0
    assert core.missing([shared, own]) == [own]
    assert core.release("b", "never seen", "b") == first.nbytes
    assert core.release() == 0
    assert core.statistics().num_references == 0


def test_a_put_beyond_the_budget_is_refused_whole_and_the_store_goes_on(
    make_array: MakeArray,
) -> None:
    size = make_array().nbytes
    core = PixelStoreCore(PixelStoreConfig(max_bytes=2 * size))
    held = core.put(make_array(0), trajectory_id="a")
    with pytest.raises(PixelStoreFull, match=f"budget of {2 * size} bytes of shard 0") as caught:
        core.put_many([make_array(1), make_array(2)], trajectory_id="b")
    assert (caught.value.requested_bytes, caught.value.used_bytes) == (2 * size, size)
    assert isinstance(caught.value, MemoryError)
    assert core.statistics().num_entries == 1
    assert core.statistics().num_trajectories == 1
    assert core.put_many([make_array(0), make_array(1)], trajectory_id="b")[0] == held
    assert core.pressure().value == 1.0
    core.release("b")
    assert core.pressure().value == 0.5
    core.put(make_array(2), trajectory_id="c")


def test_orphans_expire_by_the_clock_and_the_living_do_not(make_array: MakeArray) -> None:
    clock = ManualClock()
    core = PixelStoreCore(PixelStoreConfig(lease_ttl_s=10.0), clock=clock)
    orphan = core.put(make_array(1), trajectory_id="orphan")
    alive = core.put(make_array(2), trajectory_id="alive")
    clock.now += 9.0
    core.put(make_array(2), trajectory_id="alive")
    clock.now += 2.0
    assert core.expire() == ["orphan"]
    assert core.missing([orphan, alive]) == [orphan]
    assert core.statistics().num_expired == 1
    clock.now += 11.0
    core.put(make_array(3), trajectory_id="new")
    assert core.missing([alive]) == [alive]


def test_none_as_time_to_live_never_expires(make_array: MakeArray) -> None:
    clock = ManualClock()
    core = PixelStoreCore(PixelStoreConfig(lease_ttl_s=None), clock=clock)
    key = core.put(make_array(), trajectory_id="t")
    clock.now += 1e9
    core.sweep_if_due()
    assert core.expire() == []
    assert core.missing([key]) == []


def test_missing_keys_are_named_in_order_and_the_found_ones_travel_along(
    make_array: MakeArray,
) -> None:
    core = PixelStoreCore()
    array = make_array()
    key = core.put(array, trajectory_id="t")
    other = ABSENT[:-1] + "1"
    with pytest.raises(PixelNotFound, match="got 2 that are not") as caught:
        core.get_many([other, key, ABSENT, other])
    error = pickle.loads(pickle.dumps(caught.value))
    assert error.keys == (other, ABSENT)
    np.testing.assert_array_equal(error.found[key], array)
    assert isinstance(error, KeyError)


@pytest.mark.parametrize(
    ("data", "match"),
    [
        (np.zeros((2, 2, 3), np.float32), "dtype must be uint8, got float32"),
        (np.zeros((2, 2), np.uint8), r"shape must be \[H, W, C\], got \(2, 2\)"),
        (np.zeros((0, 2, 3), np.uint8), r"got \(0, 2, 3\)"),
        (b"GIF89a", "must be PNG, JPEG or WebP"),
    ],
)
def test_what_is_no_image_is_refused_by_name(data: bytes | NDArray[np.uint8], match: str) -> None:
    core = PixelStoreCore()
    with pytest.raises(InvalidImage, match=match):
        core.put(data, trajectory_id="t")
    assert core.statistics().num_trajectories == 0


def test_a_key_is_no_image_and_an_image_no_key(make_array: MakeArray, make_png: MakePng) -> None:
    core = PixelStoreCore()
    key = core.put(make_array(), trajectory_id="t")
    with pytest.raises(TypeError, match="A key is a reference: call get"):
        core.put(key, trajectory_id="t")  # pyright: ignore[reportArgumentType]
    with pytest.raises(TypeError, match="Pass keys, not images"):
        core.get_many([make_png()])  # pyright: ignore[reportArgumentType]
    with pytest.raises(ValueError, match="'screenshot-3'"):
        core.missing(["screenshot-3"])
    with pytest.raises(ValueError, match="trajectory_id must be a name"):
        core.put(make_array(), trajectory_id="")
    with pytest.raises(ValueError, match="run_id must be 1 to 128"):
        PixelStoreCore(run_id="a/b")


def test_metrics_carry_every_count(make_array: MakeArray) -> None:
    core = PixelStoreCore()
    core.get_many([core.put(make_array(), trajectory_id="t")])
    metrics = core.statistics().as_metrics()
    assert metrics["pixelstore/num_memory_hits"] == 1.0
    assert metrics["pixelstore/num_bytes"] == 8 * 6 * 3
    assert metrics["pixelstore/dedup_share"] == 0.0
    assert all(isinstance(value, float) for value in metrics.values())
