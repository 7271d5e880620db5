"""Public failures of systems of this kind, each named by its number in the project's list."""

import gc
import json
import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
import ray
from awrl_pixelstore import (
    PixelNotFound,
    PixelStoreClient,
    PixelStoreConfig,
    get_or_create_pixel_store,
)
from awrl_pixelstore.transport import NAMESPACE, actor_name
from numpy.typing import NDArray

pytestmark = [pytest.mark.ray, pytest.mark.usefixtures("cluster")]

MakeArray = Callable[..., NDArray[np.uint8]]
MakePng = Callable[..., bytes]
MB = 10**6
RUN = "bug-reports"


@pytest.fixture
def store(cluster: None) -> Iterator[PixelStoreClient]:
    store = get_or_create_pixel_store(RUN)
    yield store
    store.release_many(["a"])
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

    async def cached(self) -> tuple[int, int]:
        await self._store.pressure_async(max_age_s=0.0)
        return self._store.cache_statistics().num_entries, private_bytes(os.getpid())


def make_consumer(store: PixelStoreClient) -> Any:
    return ray.remote(num_cpus=0)(Consumer).remote(store)


def test_consumers_caches_empty_with_the_store(
    store: PixelStoreClient, make_array: MakeArray
) -> None:
    consumers = [make_consumer(store) for _ in range(2)]
    shard = process_of(RUN)
    memory: list[int] = []
    for number in range(50):
        images = [make_array(10 * number + index, (500, 500, 4)) for index in range(4)]
        keys = store.put_many(images, trajectory_id=f"t{number}")
        totals = ray.get([consumer.total.remote(keys) for consumer in consumers])
        assert totals == [sum(int(image.sum(dtype=np.int64)) for image in images)] * 2
        assert store.release(f"t{number}") == 4 * MB
        assert store.statistics().num_entries == 0
        cached = ray.get([consumer.cached.remote() for consumer in consumers])
        assert [entries for entries, _ in cached] == [0, 0]
        memory.append(private_bytes(shard) + sum(size for _, size in cached))
    assert max(memory[25:]) - max(memory[10:25]) < 16 * MB
    for consumer in consumers:
        ray.kill(consumer)


def test_one_batched_get_names_what_is_missing_and_keeps_the_rest(
    store: PixelStoreClient, make_array: MakeArray
) -> None:
    images = [make_array(seed, (1000, 1000, 4)) for seed in range(30)]
    keys = store.put_many(images, trajectory_id="a")
    handle: Any = ray.get_actor(actor_name(RUN, 0), namespace=NAMESPACE)
    ray.get(handle.__ray_call__.remote(count_fetches))
    for image, got in zip(images[::-1], store.get_many(keys[::-1]), strict=True):
        np.testing.assert_array_equal(got, image)
    assert ray.get(handle.__ray_call__.remote(lambda actor: actor.num_fetches)) == 1
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


def test_ten_gets_of_one_large_image_share_one_copy(
    store: PixelStoreClient, make_array: MakeArray
) -> None:
    image = make_array(0, (4000, 4000, 4))
    key = store.put(image, trajectory_id="a")
    assert store.statistics().num_bytes == image.nbytes == 64 * MB
    consumer = make_consumer(store)
    growth, num_copies = ray.get(consumer.hold.remote(key, 10))
    assert num_copies == 1
    assert growth < 2 * image.nbytes
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
            client.get_many(keys[:1])
    fresh.close()


def test_memory_of_a_cleared_store_is_used_again(make_array: MakeArray) -> None:
    store = get_or_create_pixel_store("clear", config=PixelStoreConfig(max_bytes=1100 * MB))
    shard = process_of("clear")
    peaks: list[int] = []
    image = make_array(0, (1000, 1000, 5))
    for _ in range(2):
        for number in range(200):
            image[0, 0, :2] = divmod(number, 256)
            store.put(image, trajectory_id=f"t{number % 10}")
        peaks.append(private_bytes(shard))
        assert store.statistics().num_bytes == 200 * image.nbytes
        store.release_many([f"t{number}" for number in range(10)])
        assert store.statistics().num_entries == store.statistics().num_bytes == 0
    assert peaks[1] - peaks[0] < 50 * MB
    assert private_bytes(shard) < peaks[0] / 2
    store.close()


@pytest.mark.requirement("keys-travel")
def test_a_group_of_four_shares_one_screenshot(store: PixelStoreClient, make_png: MakePng) -> None:
    screenshot = make_png(0, 1000, 1000)
    assert len(screenshot) > 3 * MB
    keys = {store.put(screenshot, trajectory_id=f"sibling-{number}") for number in range(4)}
    assert len(keys) == 1
    assert len(json.dumps(sorted(keys) * 30)) < 4000
    info = store.describe(sorted(keys))[0]
    assert (info.num_references, info.num_bytes) == (4, len(screenshot))
    freed = [store.release(f"sibling-{number}") for number in range(4)]
    assert freed == [0, 0, 0, len(screenshot)]
    assert store.release("sibling-3") == 0
    assert store.statistics().num_references == 0


def test_a_key_is_not_mistaken_for_an_image(store: PixelStoreClient, make_array: MakeArray) -> None:
    key = store.put(make_array(), trajectory_id="a")
    with pytest.raises(AttributeError, match="'str' object has no attribute 'shape'"):
        key.shape  # noqa: B018  # pyright: ignore
    with pytest.raises(TypeError, match=r"A key is a reference: call get\(\)"):
        store.put(key, trajectory_id="a")  # pyright: ignore[reportArgumentType]
    with pytest.raises(TypeError, match="Pass keys, not images"):
        store.get_many([make_array()])  # pyright: ignore[reportArgumentType]
    assert np.asarray(store.get_many([key])[0]).shape == (8, 6, 3)
