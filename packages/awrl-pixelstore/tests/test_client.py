"""Clients and actors on a real local Ray."""

import asyncio
import pickle
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import ray
from awrl_pixelstore import (
    InvalidImage,
    PixelNotFound,
    PixelStoreClient,
    PixelStoreConfig,
    PixelStoreFull,
    PixelStoreUnavailable,
    get_or_create_pixel_store,
)
from numpy.typing import NDArray

pytestmark = [pytest.mark.ray, pytest.mark.usefixtures("cluster")]

MakeArray = Callable[..., NDArray[np.uint8]]
MakePng = Callable[..., bytes]


@pytest.fixture
def store(cluster: None) -> Iterator[PixelStoreClient]:
    store = get_or_create_pixel_store("client-tests", num_shards=2)
    yield store
    store.release_many(["a", "b", "c"])
    assert store.statistics().num_entries == 0


def test_blocking_calls_go_round(
    store: PixelStoreClient, make_array: MakeArray, make_png: MakePng
) -> None:
    images = [make_array(1), make_png(2), make_array(3, (720, 1280, 3))]
    keys = store.put_many(images, trajectory_id="a", shapes=[None, (160, 224, 3), None])
    again = store.put(images[1], trajectory_id="b", shape=(160, 224))
    assert again == keys[1]
    back = store.get_many([keys[2], keys[0], keys[1], keys[0]])
    for image, position in zip(back, (2, 0, 1, 0), strict=True):
        np.testing.assert_array_equal(image, images[position])
    assert isinstance(back[2], bytes)
    infos = store.describe(keys)
    assert [info.num_references for info in infos] == [1, 2, 1]
    assert [info.shape for info in infos] == [(8, 6, 3), (160, 224, 3), (720, 1280, 3)]
    assert store.release("a") == images[0].nbytes + images[2].nbytes  # pyright: ignore
    assert store.missing(keys) == [keys[0], keys[2]]


def test_what_writers_and_readers_do_to_their_arrays_changes_nothing_stored(
    store: PixelStoreClient, make_array: MakeArray
) -> None:
    image = make_array(1)
    key = store.put(image, trajectory_id="a")
    image[:] = 0
    other = PixelStoreClient(store.spec)
    for reader in (store, other, store):
        got = np.asarray(reader.get_many([key])[0])
        np.testing.assert_array_equal(got, make_array(1))
        with pytest.raises(ValueError, match="read-only"):
            got[:] = 0
        with pytest.raises(ValueError, match="WRITEABLE"):
            got.flags.writeable = True
        got.copy()[:] = 0


async def _go_round(store: PixelStoreClient, images: list[NDArray[np.uint8]]) -> None:
    keys = await store.put_many_async(images, trajectory_id="a")
    assert await store.put_async(images[0], trajectory_id="b") == keys[0]
    async with asyncio.TaskGroup() as group:
        gets = [group.create_task(store.get_many_async(keys)) for _ in range(4)]
    for got in gets:
        np.testing.assert_array_equal(got.result()[1], images[1])
    assert [info.num_references for info in await store.describe_async(keys)] == [2, 1]
    await store.transfer_async("a", "c")
    await store.acquire_async("b", keys)
    assert await store.renew_async(["a", "b", "c"]) == ["a"]
    assert await store.release_async("c") == 0
    assert await store.missing_async(keys) == []
    assert (await store.pressure_async(max_age_s=0.0)).used_bytes == 2 * images[0].nbytes
    assert (await store.statistics_async()).num_entries == 2
    assert len(await store.statistics_by_shard_async()) == 2
    assert await store.release_many_async(["b"]) == 2 * images[0].nbytes
    with pytest.raises(PixelNotFound):
        await store.get_many_async(keys)


@pytest.mark.requirement("pixel-store-actor")
def test_awaiting_calls_go_round(store: PixelStoreClient, make_array: MakeArray) -> None:
    asyncio.run(_go_round(store, [make_array(1), make_array(2)]))


class Worker:
    """An async actor that puts, as a rollout worker does."""

    def __init__(self, store: PixelStoreClient) -> None:
        self._store = store

    async def put(self, image: NDArray[np.uint8], trajectory_id: str) -> str:
        return await self._store.put_async(image, trajectory_id=trajectory_id)


@pytest.mark.requirement("keys-travel")
def test_the_client_pickles_into_actors(store: PixelStoreClient, make_array: MakeArray) -> None:
    worker: Any = ray.remote(num_cpus=0)(Worker).remote(store)
    key: str = ray.get(worker.put.remote(make_array(), "a"))
    np.testing.assert_array_equal(store.get_many([key])[0], make_array())
    copy = pickle.loads(pickle.dumps(store))
    np.testing.assert_array_equal(copy.get_many([key])[0], make_array())
    assert store.release("a") == make_array().nbytes


def test_refusals_arrive_as_types_and_name_the_limit(
    store: PixelStoreClient, make_array: MakeArray
) -> None:
    with pytest.raises(InvalidImage, match="float64"):
        store.put(np.zeros((2, 2, 3)), trajectory_id="a")  # pyright: ignore[reportArgumentType]
    small = get_or_create_pixel_store("small", config=PixelStoreConfig(max_bytes=200))
    try:
        small.put(make_array(1), trajectory_id="a")
        with pytest.raises(PixelStoreFull, match="memory budget of 200 bytes of shard 0"):
            small.put(make_array(2), trajectory_id="b")
        assert small.pressure_nowait().value == pytest.approx(144 / 200)
        assert small.statistics().num_refused == 1
        assert small.pressure().num_episodes_that_fit(28) == 2
    finally:
        small.close()


@pytest.mark.requirement("pixel-store-actor")
def test_two_runs_on_one_cluster_never_meet(store: PixelStoreClient, make_array: MakeArray) -> None:
    other = get_or_create_pixel_store("another-run")
    try:
        key = store.put(make_array(), trajectory_id="a")
        assert other.missing([key]) == [key]
        assert other.put(make_array(), trajectory_id="a") != key
        with pytest.raises(PixelNotFound):
            other.get_many([key])
        assert other.release("a") == make_array().nbytes
        assert store.missing([key]) == []
    finally:
        other.close()
    assert store.missing([key]) == []


def test_the_first_config_stands(store: PixelStoreClient) -> None:
    joined = get_or_create_pixel_store("client-tests", num_shards=7)
    assert joined.num_shards == 2
    with pytest.raises(ValueError, match="must be that of its existing store"):
        get_or_create_pixel_store("client-tests", config=PixelStoreConfig(max_bytes=1))


def test_after_close_calls_fail_by_type_and_a_new_store_is_empty(make_array: MakeArray) -> None:
    first = get_or_create_pixel_store("short-lived")
    key = first.put(make_array(), trajectory_id="a")
    first.close()
    first.close()
    with pytest.raises(PixelStoreUnavailable, match="shard 0"):
        first.put(make_array(), trajectory_id="a")
    assert first.missing([key]) == [key]
    second = get_or_create_pixel_store("short-lived")
    assert second.missing([key]) == [key]
    assert first.put(make_array(), trajectory_id="a") == key
    assert second.missing([key]) == []
    asyncio.run(second.aclose())
