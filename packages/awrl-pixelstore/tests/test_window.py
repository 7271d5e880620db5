"""The bytes that a client and the shard of its node share, and what happens when they can't."""

import os
import signal
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import ray
from awrl_pixelstore import (
    PixelStoreClient,
    PixelStoreConfig,
    PixelStoreUnavailable,
    get_or_create_pixel_store,
)
from awrl_pixelstore.image import pack
from awrl_pixelstore.keys import make_key, run_tag_of
from awrl_pixelstore.transport import NAMESPACE, ShardTransport, actor_name
from awrl_pixelstore.window import (
    KEPT_WINDOWS,
    LARGEST_BYTES,
    SMALLEST_BYTES,
    Window,
    WindowPool,
    images_in,
    leave_in,
)
from awrl_pixelstore.wire import (
    Call,
    Fetched,
    FetchedImage,
    Reply,
    StoreSpec,
    WindowSlice,
    WindowUnreachable,
)
from numpy.typing import NDArray
from ray._private.internal_api import node_stats

MakeArray = Callable[..., NDArray[np.uint8]]
SHAPE = (720, 1280, 3)


def fetched(*images: NDArray[np.uint8]) -> Fetched:
    return Fetched(
        tuple(
            FetchedImage(str(n), "array", (0, 0, 0), i.reshape(-1)) for n, i in enumerate(images)
        ),
        (),
        (),
    )


@pytest.mark.parametrize("is_signed", [True, False], ids=["in time", "late"])
def test_images_come_out_as_they_went_in_and_rest_on_bytes(
    make_array: MakeArray, is_signed: bool
) -> None:
    images = [pack(make_array(seed, (40, 30 + seed, 3))) for seed in range(3)]
    others = [pack(make_array(9, (90, 90, 3))) for _ in range(4)]
    window = Window(os.getpid())
    window.load(others)
    window.sign(others)
    batch = window.load(images)
    if is_signed:
        window.sign(images)
    taken = images_in(batch)
    window.load(others)
    window.sign(others)
    for image, got in zip(images, taken, strict=True):
        assert (got.form, got.shape, got.digest) == (image.form, image.shape, image.digest)
        np.testing.assert_array_equal(got.payload, image.payload)
        assert isinstance(got.payload.base, bytes)


def test_an_answer_is_left_in_a_window_only_when_its_size_is_worth_it(
    make_array: MakeArray,
) -> None:
    window = Window(os.getpid())
    for shape in ((SMALLEST_BYTES // 3 // 32 - 1, 32, 3), (LARGEST_BYTES // 3 // 32 + 1, 32, 3)):
        answer = fetched(make_array(0, shape))
        assert leave_in(window.address, answer) is answer
    images = [make_array(seed, (300, 200, 3)) for seed in range(3)]
    left = leave_in(window.address, fetched(*images))
    assert all(isinstance(image.payload, WindowSlice) for image in left.images)
    for image, got in zip(images, window.unload(left).images, strict=True):
        assert got.payload == image.tobytes()


@pytest.mark.parametrize("fault", ["closed", "number in new use", "another process", "too short"])
def test_a_window_that_is_not_there_is_never_mistaken(make_array: MakeArray, fault: str) -> None:
    image = make_array(0, (300, 200, 3))
    window = Window(os.getpid() if fault != "another process" else os.getppid())
    batch = window.load([pack(image)])
    other = os.memfd_create("other")
    if fault == "closed":
        window.close()
    elif fault == "number in new use":
        batch = batch._replace(address=batch.address._replace(number=other))
    elif fault == "too short":
        os.ftruncate(batch.address.number, image.nbytes - 1)
    with pytest.raises(OSError, match=r"No such file|number now|shorter|denied"):
        images_in(batch)
    if fault != "too short":
        answer = fetched(image)
        assert leave_in(batch.address, answer) is answer
    assert os.fstat(other).st_size == 0
    os.close(other)


def test_a_pool_keeps_few_windows_and_lends_none_twice() -> None:
    pool = WindowPool()
    lent = [pool.take() for _ in range(KEPT_WINDOWS + 2)]
    windows = [window for window in lent if window is not None]
    assert len({window.address for window in windows}) == len(lent)
    for window in windows:
        pool.give_back(window)
    assert [window.close.alive for window in windows] == [True] * KEPT_WINDOWS + [False] * 2
    assert {pool.take() for _ in range(KEPT_WINDOWS)} == set(windows[:KEPT_WINDOWS])
    assert pool.take() not in windows


def created_bytes() -> int:
    node = ray.nodes()[0]
    address, port = node["NodeManagerAddress"], node["NodeManagerPort"]
    stats: Any = node_stats(address, port, include_memory_info=False).store_stats
    return stats.cumulative_created_bytes


def process_of(run_id: str) -> int:
    handle: Any = ray.get_actor(actor_name(run_id, 0), namespace=NAMESPACE)
    return ray.get(handle.__ray_call__.remote(lambda actor: os.getpid()))


@pytest.mark.ray
@pytest.mark.usefixtures("cluster")
def test_a_screenshot_to_and_from_the_own_node_makes_no_object(make_array: MakeArray) -> None:
    config = PixelStoreConfig(read_cache_bytes=0)
    store = get_or_create_pixel_store("windows", config=config)
    # An answer that Ray counted late must not be taken for the store's.
    process_of("windows")
    before = created_bytes()
    image = make_array(0, SHAPE)
    for number in range(4):
        image[0, 0, 0] = number
        got = store.get_many([store.put(image, trajectory_id="a")])[0]
        np.testing.assert_array_equal(got, image)
    assert created_bytes() - before < image.nbytes
    key = store.put(image, trajectory_id="a")
    # A client elsewhere: Ray carries, and what it reads is the same.
    far = PixelStoreClient(store.spec._replace(layout=("elsewhere",)))
    np.testing.assert_array_equal(far.get_many([key])[0], image)
    assert far.put(image, trajectory_id="b") == key
    assert created_bytes() - before >= 2 * image.nbytes
    store.close()


@pytest.mark.ray
@pytest.mark.usefixtures("cluster")
def test_a_shard_that_cannot_reach_a_window_gets_the_bytes_by_ray(make_array: MakeArray) -> None:
    store = get_or_create_pixel_store("unreachable")
    image = pack(make_array(0, SHAPE))
    spec: StoreSpec = store.spec
    # The shard looks for the window in a process that has none of this name.
    transport = ShardTransport(spec, spec.layout[0], WindowPool(process=process_of("unreachable")))
    for _ in range(2):
        put = Call(0, "put", ([image], "a"))
        outcome = transport.collect([put], [None], transport.deadline(None))[0]
        assert isinstance(outcome, Reply)
        assert not isinstance(outcome.value, WindowUnreachable)
    key = make_key(run_tag_of(store.run_id), 0, image.digest)
    np.testing.assert_array_equal(store.get_many([key])[0], make_array(0, SHAPE))
    store.close()


@pytest.mark.ray
@pytest.mark.usefixtures("cluster")
def test_a_shard_that_comes_late_to_a_call_takes_nothing_of_a_later_one(
    make_array: MakeArray,
) -> None:
    store = get_or_create_pixel_store("late", config=PixelStoreConfig(read_cache_bytes=0))
    first, second, third = (make_array(seed, SHAPE) for seed in range(3))
    known = store.put(first, trajectory_id="a")
    process = process_of("late")
    os.kill(process, signal.SIGSTOP)
    try:
        with pytest.raises(PixelStoreUnavailable, match="no answer"):
            store.put(second, trajectory_id="a", timeout_s=0.2)
        with pytest.raises(PixelStoreUnavailable, match="no answer"):
            store.get_many([known], timeout_s=0.2)
    finally:
        os.kill(process, signal.SIGCONT)
    assert np.array_equal(store.get_many([store.put(third, trajectory_id="a")])[0], third)
    assert np.array_equal(store.get_many([known])[0], first)
    late = make_key(run_tag_of(store.run_id), 0, pack(second).digest)
    if late not in store.missing([late]):
        assert np.array_equal(store.get_many([late])[0], second)
    store.close()
