"""Clients and actors on a real local Ray."""

from __future__ import annotations

import asyncio
import copy
import gc
import json
import os
import pickle
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
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
    end_pixel_stores,
    get_or_create_pixel_store,
)
from awrl_pixelstore.remote_shard import NAMESPACE, actor_name
from numpy.typing import NDArray

pytestmark = [pytest.mark.ray, pytest.mark.usefixtures("cluster")]

MakeArray = Callable[..., NDArray[np.uint8]]
MakePng = Callable[..., bytes]
MB = 10**6
RUN = "store-tests"


@pytest.fixture
def store(cluster: None) -> Iterator[PixelStoreClient]:
    store = get_or_create_pixel_store(RUN, num_shards=2)
    yield store
    store.release("a", "b", "c")
    assert store.statistics().num_entries == 0


def process_of(run_id: str, shard: int = 0) -> int:
    """Return the process id of a shard."""
    handle: Any = ray.get_actor(actor_name(run_id, shard), namespace=NAMESPACE)
    return ray.get(handle.__ray_call__.remote(lambda actor: os.getpid()))


def private_bytes(process: int) -> int:
    """Return resident memory without shared maps (Ray's object store is one)."""
    with open(f"/proc/{process}/status") as file:
        lines = dict(line.split(":", 1) for line in file)
    return int(lines["RssAnon"].split()[0]) * 1024


def test_blocking_calls_go_round(
    store: PixelStoreClient, make_array: MakeArray, make_png: MakePng
) -> None:
    images = [make_array(1), make_png(2), make_array(3, (720, 1280, 3))]
    keys = store.put_many(images, trajectory_id="a")
    assert store.put(images[1], trajectory_id="b") == keys[1]
    back = store.get_many([keys[2], keys[0], keys[1], keys[0]])
    for image, position in zip(back, (2, 0, 1, 0), strict=True):
        np.testing.assert_array_equal(image, images[position])
    assert isinstance(back[2], bytes)
    assert store.statistics().num_references == 4
    assert store.release("a") == images[0].nbytes + images[2].nbytes  # pyright: ignore
    assert store.missing(keys) == [keys[0], keys[2]]


def test_what_writers_and_readers_do_to_their_arrays_changes_nothing_stored(
    store: PixelStoreClient, make_array: MakeArray
) -> None:
    image = make_array(1)
    key = store.put(image, trajectory_id="a")
    image[:] = 0
    for reader in (store, copy.copy(store), store):
        got = np.asarray(reader.get_many([key])[0])
        np.testing.assert_array_equal(got, make_array(1))
        got[:] = 0


async def _go_round(store: PixelStoreClient, images: list[NDArray[np.uint8]]) -> None:
    keys = await store.put_many_async(images, trajectory_id="a")
    assert await store.put_async(images[0], trajectory_id="b") == keys[0]
    async with asyncio.TaskGroup() as group:
        gets = [group.create_task(store.get_many_async(keys)) for _ in range(4)]
    for got in gets:
        np.testing.assert_array_equal(got.result()[1], images[1])
    assert await store.missing_async(keys) == []
    assert (await store.pressure_async()).used_bytes == 2 * images[0].nbytes
    statistics = await store.statistics_async()
    assert (statistics.num_entries, statistics.num_references) == (2, 3)
    assert await store.release_async("b") == 0
    assert await store.release_async("a", "b") == 2 * images[0].nbytes
    assert await store.missing_async(keys) == keys
    with pytest.raises(PixelNotFound):
        await copy.copy(store).get_many_async(keys)


@pytest.mark.requirement("pixel-store-actor")
def test_the_head_of_the_cluster_remembers_no_call_of_a_shard(
    store: PixelStoreClient, make_array: MakeArray
) -> None:
    class Other:
        def answer(self) -> int:
            return 1

    other: Any = ray.remote(Other).options(num_cpus=0).remote()
    names: set[str] = set()
    deadline = time.monotonic() + 60
    while "task::Other.answer" not in names and time.monotonic() < deadline:
        store.put_many([make_array(1)], trajectory_id="a")
        ray.get(other.answer.remote())
        events: Any = ray.timeline()
        names = {event["cat"] for event in events if event["cat"].startswith("task::")}
    ray.kill(other)
    assert "task::Other.answer" in names
    assert not any("ShardActor" in name for name in names)


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
    other = pickle.loads(pickle.dumps(store))
    np.testing.assert_array_equal(other.get_many([key])[0], make_array())
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
        assert small.pressure().value == pytest.approx(144 / 200)
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
    joined = get_or_create_pixel_store(RUN, num_shards=7)
    assert len(joined.spec.layout) == 2
    with pytest.raises(ValueError, match="must be that of its existing store"):
        get_or_create_pixel_store(RUN, config=PixelStoreConfig(max_bytes=1))


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


class Consumer:
    """A process that reads, such as a trainer rank."""

    def __init__(self, store: PixelStoreClient) -> None:
        self._store = store

    async def total(self, keys: list[str]) -> int:
        images = await self._store.get_many_async(keys)
        return sum(int(np.asarray(image).sum(dtype=np.int64)) for image in images)

    async def hold(self, key: str, times: int) -> tuple[int, int]:
        before = private_bytes(os.getpid())
        held = [(await self._store.get_many_async([key]))[0] for _ in range(times)]
        return private_bytes(os.getpid()) - before, len({id(image) for image in held})

    async def memory(self) -> int:
        return private_bytes(os.getpid())


def make_consumer(store: PixelStoreClient) -> Any:
    return ray.remote(num_cpus=0)(Consumer).remote(store)


def test_memory_of_store_and_consumers_stays_flat(cluster: None, make_array: MakeArray) -> None:
    config = PixelStoreConfig(read_cache_bytes=10 * MB)
    store = get_or_create_pixel_store("flat", config=config)
    consumers = [make_consumer(store) for _ in range(2)]
    shard = process_of("flat")
    memory: list[int] = []
    for number in range(50):
        images = [make_array(10 * number + index, (500, 500, 4)) for index in range(4)]
        keys = store.put_many(images, trajectory_id=f"t{number}")
        totals = ray.get([consumer.total.remote(keys) for consumer in consumers])
        assert totals == [sum(int(image.sum(dtype=np.int64)) for image in images)] * 2
        assert store.release(f"t{number}") == 4 * MB
        assert store.statistics().num_entries == 0
        sizes = ray.get([consumer.memory.remote() for consumer in consumers])
        memory.append(private_bytes(shard) + sum(sizes))
    # 25 rounds put 100 MB.
    assert max(memory[25:]) - max(memory[10:25]) < 16 * MB
    for consumer in consumers:
        ray.kill(consumer)
    store.close()


def test_one_batched_get_names_what_is_missing_and_keeps_the_rest(
    store: PixelStoreClient, make_array: MakeArray
) -> None:
    images = [make_array(seed, (1000, 1000, 4)) for seed in range(30)]
    keys = store.put_many(images, trajectory_id="a")
    handles: Any = [ray.get_actor(actor_name(RUN, n), namespace=NAMESPACE) for n in range(2)]
    ray.get([handle.__ray_call__.remote(count_fetches) for handle in handles])
    for image, got in zip(images[::-1], store.get_many(keys[::-1]), strict=True):
        np.testing.assert_array_equal(got, image)
    counts = [handle.__ray_call__.remote(lambda actor: actor.num_fetches) for handle in handles]
    assert ray.get(counts) == [1, 1]
    gone = keys[7][:-4] + "0000"
    with pytest.raises(PixelNotFound, match=gone) as caught:
        store.get_many([gone if key == keys[7] else key for key in keys])
    assert caught.value.keys == (gone,)
    assert set(caught.value.found) == set(keys) - {keys[7]}


def count_fetches(actor: Any) -> None:
    """Let a shard count the fetch calls that it gets."""
    fetch = actor._fetch
    actor.num_fetches = 0

    def counting(*arguments: Any) -> Any:
        actor.num_fetches += 1
        return fetch(*arguments)

    actor._fetch = counting


def test_ten_gets_of_one_large_screenshot_share_one_copy(
    store: PixelStoreClient, make_png: MakePng
) -> None:
    screenshot = make_png()[:16] + bytes(60 * MB)
    key = store.put(screenshot, trajectory_id="a")
    assert store.statistics().num_bytes == len(screenshot)
    consumer = make_consumer(store)
    growth, num_copies = ray.get(consumer.hold.remote(key, 10))
    assert num_copies == 1
    assert growth < 2 * len(screenshot)
    ray.kill(consumer)


def create_and_put(thread: int, process: int) -> tuple[str, str]:
    """Create or join the store and put one image; return the actor's id and the key."""
    store = get_or_create_pixel_store("race")
    handle: Any = ray.get_actor(actor_name("race", 0), namespace=NAMESPACE)
    image = np.full((2, 2, 3), 8 * process + thread, np.uint8)
    return handle._actor_id.hex(), store.put(image, trajectory_id=f"{process}-{thread}")


def create_in_eight_threads(process: int) -> list[tuple[str, str]]:
    with ThreadPoolExecutor(8) as threads:
        return list(threads.map(create_and_put, range(8), [process] * 8))


@pytest.mark.requirement("pixel-store-actor")
def test_sixteen_creators_get_one_store_that_outlives_their_handles(cluster: None) -> None:
    task: Any = ray.remote(num_cpus=0)(create_in_eight_threads)
    elsewhere = task.remote(0)
    made = create_in_eight_threads(1) + ray.get(elsewhere)
    assert len({actor_id for actor_id, _ in made}) == 1
    keys = [key for _, key in made]
    assert len(set(keys)) == 16
    gc.collect()
    store = get_or_create_pixel_store("race")
    images = store.get_many(keys)
    assert {int(np.asarray(image)[0, 0, 0]) for image in images} == set(range(16))
    ray.kill(ray.get_actor(actor_name("race", 0), namespace=NAMESPACE), no_restart=True)
    fresh = get_or_create_pixel_store("race")
    assert fresh.statistics().num_entries == 0
    for client in (fresh, store):
        assert client.missing(keys) == keys
        with pytest.raises(PixelNotFound):
            copy.copy(client).get_many(keys[:1])
    fresh.close()


def test_memory_of_a_cleared_store_is_used_again(make_array: MakeArray) -> None:
    store = get_or_create_pixel_store("clear", config=PixelStoreConfig(max_bytes=400 * MB))
    shard = process_of("clear")
    peaks: list[int] = []
    image = make_array(0, (1000, 1000, 5))
    for _ in range(2):
        for number in range(60):
            image[0, 0, :2] = divmod(number, 256)
            store.put(image, trajectory_id=f"t{number % 10}")
        peaks.append(private_bytes(shard))
        assert store.statistics().num_bytes == 60 * image.nbytes
        store.release(*(f"t{number}" for number in range(10)))
        assert store.statistics().num_entries == store.statistics().num_bytes == 0
    assert peaks[1] - peaks[0] < 50 * MB  # of 300 MB
    assert private_bytes(shard) < peaks[0] / 2
    store.close()


@pytest.mark.requirement("keys-travel")
def test_a_group_of_four_shares_one_screenshot(store: PixelStoreClient, make_png: MakePng) -> None:
    screenshot = make_png(0, 1000, 1000)
    assert len(screenshot) > 3 * MB
    keys = {store.put(screenshot, trajectory_id=f"sibling-{number}") for number in range(4)}
    assert len(keys) == 1
    assert len(json.dumps(sorted(keys) * 30)) < 4000
    statistics = store.statistics()
    assert (statistics.num_references, statistics.num_bytes) == (4, len(screenshot))
    freed = [store.release(f"sibling-{number}") for number in range(4)]
    assert freed == [0, 0, 0, len(screenshot)]
    assert store.release("sibling-3") == 0
    assert store.statistics().num_references == 0


def test_a_key_is_not_mistaken_for_an_image(store: PixelStoreClient, make_array: MakeArray) -> None:
    key = store.put(make_array(), trajectory_id="a")
    with pytest.raises(AttributeError, match="'str' object has no attribute 'shape'"):
        key.shape  # noqa: B018  # pyright: ignore
    with pytest.raises(TypeError, match=r"A key is a reference: call get_many\(\)"):
        store.put(key, trajectory_id="a")  # pyright: ignore[reportArgumentType]
    with pytest.raises(TypeError, match="Pass keys, not images"):
        store.get_many([make_array()])  # pyright: ignore[reportArgumentType]
    assert np.asarray(store.get_many([key])[0]).shape == (8, 6, 3)


def test_what_a_killed_process_left_is_ended_by_the_beginning_of_its_name() -> None:
    for run_id in ("left-1-a", "left-1-b", "left-2-a"):
        get_or_create_pixel_store(run_id, num_shards=1)
    assert end_pixel_stores("left-1-") == 2
    assert end_pixel_stores("left-1-") == 0
    with pytest.raises(ValueError, match="left-1-a"):
        ray.get_actor(actor_name("left-1-a", 0), namespace=NAMESPACE)
    assert process_of("left-2-a")
    assert end_pixel_stores("left-2-a") == 1
