"""What a client asks of which shard, with shards in this process instead of Ray's."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Generator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import numpy as np
import pytest
from awrl_pixelstore import (
    PixelNotFound,
    PixelStoreClient,
    PixelStoreConfig,
    PixelStoreFull,
    PixelStoreUnavailable,
)
from awrl_pixelstore.remote_shard import RemoteShard
from awrl_pixelstore.shard import PixelStoreShard
from awrl_pixelstore.wire import StoreSpec
from numpy.typing import NDArray

MakeArray = Callable[..., NDArray[np.uint8]]
SIZE = 8 * 6 * 3


class LocalActor:
    """A shard with the calls of an actor handle; notes what it is asked."""

    def __init__(self, store: Store, shard: int) -> None:
        self._store = store
        self._shard = shard

    def __getattr__(self, method: str) -> Any:
        return LocalMethod(self._store, self._shard, method)


class LocalMethod:
    """One method of a `LocalActor`."""

    def __init__(self, store: Store, shard: int, method: str) -> None:
        self._store = store
        self._shard = shard
        self._method = method

    def options(self, num_returns: int) -> LocalMethod:
        assert num_returns > 1
        return self

    def remote(self, *arguments: Any) -> Any:
        self._store.calls.append((self._shard, self._method))
        if self._method != "fetch":
            return Reference(lambda: self._ask(*arguments))
        parts: list[Any] = []

        async def first() -> Any:
            parts.extend(await self._ask(*arguments))
            return parts[0]

        async def other(index: int) -> Any:
            return parts[index]

        return [Reference(first), *(Reference(partial(other, index)) for index in range(1, 4))]

    async def _ask(self, *arguments: Any) -> Any:
        if self._shard in self._store.dead:
            raise self._store.dead[self._shard]
        return await getattr(self._store.shards[self._shard], self._method)(*arguments)


class Reference:
    """What stands for a result to be: nothing happens before it is awaited."""

    def __init__(self, call: Callable[[], Coroutine[Any, Any, Any]]) -> None:
        self._call = call

    def __await__(self) -> Generator[Any, Any, Any]:
        return self._call().__await__()


class Store:
    """Shards without actors, and the calls that they get."""

    def __init__(self, layout: Sequence[str] = ("n0",), **config: float) -> None:
        self.spec = StoreSpec("run", PixelStoreConfig(**config), tuple(layout))  # pyright: ignore[reportArgumentType]
        self.shards = [PixelStoreShard(self.spec, shard) for shard in range(len(layout))]
        self.dead: dict[int, PixelStoreUnavailable] = {}
        self.calls: list[tuple[int, str]] = []

    def client(self, node_id: str = "n0") -> PixelStoreClient:
        shards = [
            RemoteShard(self.spec, shard, find=lambda _, shard: LocalActor(self, shard))
            for shard in range(len(self.spec.layout))
        ]
        return PixelStoreClient(self.spec, node_id=node_id, shards=shards)


def shards_of(keys: Sequence[str]) -> set[str]:
    return {key.split("-")[2] for key in keys}


def test_puts_go_to_the_shard_of_the_own_node(make_array: MakeArray) -> None:
    store = Store(["n0", "n1", "n1"])
    here, there, elsewhere = store.client("n0"), store.client("n1"), store.client("n9")
    images = [make_array(seed) for seed in range(12)]
    assert shards_of(here.put_many(images, trajectory_id="a")) == {"0"}
    assert shards_of(there.put_many(images, trajectory_id="b")) == {"1", "2"}
    assert shards_of(elsewhere.put_many(images, trajectory_id="c")) == {"0", "1", "2"}


def test_equal_content_of_one_node_shares_one_entry_whoever_puts_it(make_array: MakeArray) -> None:
    store = Store(["n0", "n0", "n0"])
    keys = [store.client().put(make_array(1), trajectory_id=f"t{number}") for number in range(8)]
    assert len(set(keys)) == 1


@pytest.mark.requirement("keys-travel")
def test_one_call_a_shard_whatever_the_number_of_keys(make_array: MakeArray) -> None:
    store = Store(["n0", "n0"])
    client = store.client()
    images = [make_array(seed) for seed in range(30)]
    keys = client.put_many(images, trajectory_id="a")
    assert sorted(store.calls) == [(0, "put"), (1, "put")]
    store.calls.clear()
    for image, got in zip(images, client.get_many(keys), strict=True):
        np.testing.assert_array_equal(got, image)
    assert sorted(store.calls) == [(0, "fetch"), (1, "fetch")]
    store.calls.clear()
    assert client.missing(keys) == []
    assert sorted(store.calls) == [(0, "missing"), (1, "missing")]
    store.calls.clear()
    client.get_many(keys[::-1] * 2)
    client.put_many([], trajectory_id="a")
    assert client.get_many([]) == []
    assert store.calls == []


def test_large_batches_take_several_calls_of_bounded_payload(make_array: MakeArray) -> None:
    store = Store(max_call_bytes=2 * SIZE, read_cache_bytes=0)
    client = store.client()
    images = [make_array(seed) for seed in range(5)]
    keys = client.put_many(images, trajectory_id="a")
    assert store.calls == [(0, "put")] * 3
    store.calls.clear()
    for image, got in zip(images, client.get_many(keys), strict=True):
        np.testing.assert_array_equal(got, image)
    assert store.calls == [(0, "fetch")] * 3


def test_a_refused_put_names_shard_and_limit(make_array: MakeArray) -> None:
    client = Store(max_bytes=SIZE).client()
    client.put(make_array(1), trajectory_id="a")
    with pytest.raises(PixelStoreFull, match=f"budget of {SIZE} bytes of shard 0"):
        client.put(make_array(2), trajectory_id="b")
    assert client.pressure().value == 1.0


def test_pressure_asks_every_shard(make_array: MakeArray) -> None:
    store = Store(["n0", "n1"], max_bytes=4 * SIZE)
    client = store.client("n0")
    assert client.pressure().value == 0.0
    client.put(make_array(1), trajectory_id="a")
    reading = client.pressure()
    assert (reading.value, reading.used_bytes, reading.capacity_bytes) == (0.25, SIZE, 8 * SIZE)
    assert reading.num_episodes_that_fit(2 * SIZE) == 3


def test_a_dead_shard_is_what_missing_names_and_a_silent_one_an_error(
    make_array: MakeArray,
) -> None:
    store = Store(["n0", "n0"])
    client = store.client()
    keys = client.put_many([make_array(seed) for seed in range(8)], trajectory_id="a")
    first = [key for key in keys if key.split("-")[2] == "0"]
    store.dead[0] = PixelStoreUnavailable("ActorDiedError", shard=0, is_gone=True)
    assert client.missing(keys) == first
    with pytest.raises(PixelStoreUnavailable, match="shard 0"):
        client.get_many(keys)
    assert client.release("a") == (8 - len(first)) * SIZE
    store.dead[0] = PixelStoreUnavailable("no answer", shard=0, limit_s=1.0)
    for operation in (lambda: client.missing(keys), lambda: client.release("a"), client.statistics):
        with pytest.raises(PixelStoreUnavailable, match="within 1 s"):
            operation()


def test_keys_of_another_run_or_shard_are_not_found_without_a_call(make_array: MakeArray) -> None:
    store = Store()
    client = store.client()
    key = client.put(make_array(1), trajectory_id="a")
    foreign = ["px-00000000-0-" + key[-32:], key.replace("-0-", "-7-")]
    store.calls.clear()
    assert client.missing(foreign) == foreign
    with pytest.raises(PixelNotFound):
        client.get_many(foreign)
    assert store.calls == []
    assert client.missing([*foreign, key]) == foreign
    with pytest.raises(PixelNotFound) as caught:
        client.get_many([key, *foreign])
    assert caught.value.keys == tuple(foreign)
    assert list(caught.value.found) == [key]


def test_a_key_alone_is_not_taken_for_a_list_of_keys(make_array: MakeArray) -> None:
    client = Store().client()
    key = client.put(make_array(1), trajectory_id="a")
    with pytest.raises(TypeError, match="must be a sequence of keys, got the str"):
        client.get_many(key)
    with pytest.raises(ValueError, match="trajectory_id must be a name"):
        client.put(make_array(1), trajectory_id="")


def test_the_read_cache_is_bounded_and_forgets_what_was_used_least_recently(
    make_array: MakeArray,
) -> None:
    store = Store(read_cache_bytes=2 * SIZE + 1)
    client = store.client()
    keys = client.put_many([make_array(seed) for seed in range(3)], trajectory_id="a")
    large = client.put(make_array(9, (30, 30, 3)), trajectory_id="a")
    for key in (*keys[:2], keys[0], keys[2], large):
        client.get_many([key])
    store.calls.clear()
    client.get_many([keys[0], keys[2]])
    assert store.calls == []
    client.get_many([keys[1]])
    client.get_many([large])
    assert store.calls == [(0, "fetch")] * 2


def test_what_a_reader_does_to_its_array_does_not_reach_the_cache(make_array: MakeArray) -> None:
    torch = pytest.importorskip("torch")
    client = Store().client()
    key = client.put(make_array(), trajectory_id="a")
    for _ in range(3):
        first, second = client.get_many([key, key])
        np.testing.assert_array_equal(first, make_array())
        torch.from_numpy(first).fill_(5)
        np.testing.assert_array_equal(second, make_array())


def test_a_put_that_comes_back_to_a_restarted_shard_makes_the_lost_held_again(
    make_array: MakeArray,
) -> None:
    store = Store()
    client = store.client()
    keys = client.put_many([make_array(1)], trajectory_id="a")
    store.shards[0] = PixelStoreShard(store.spec, 0)
    assert client.missing(keys) == keys
    assert client.put_many([make_array(1)], trajectory_id="a") == keys
    assert client.missing(keys) == []


def test_blocking_calls_work_in_a_running_loop_and_in_many_threads(make_array: MakeArray) -> None:
    store = Store()

    async def in_a_loop() -> list[str]:
        return store.client().put_many([make_array(1)], trajectory_id="a")

    keys = asyncio.run(in_a_loop())
    with ThreadPoolExecutor(8) as threads:
        found = threads.map(lambda _: len(store.client().get_many(keys)), range(8))
    assert list(found) == [1] * 8


def test_a_closed_shard_refuses_by_type(make_array: MakeArray) -> None:
    store = Store()
    client = store.client()
    client.put(make_array(1), trajectory_id="a")
    asyncio.run(store.shards[0].stop(False))
    with pytest.raises(PixelStoreUnavailable, match="a closed store") as caught:
        client.put(make_array(1), trajectory_id="a")
    assert caught.value.is_gone


def test_a_limit_that_is_no_number_is_refused() -> None:
    with pytest.raises(ValueError, match="timeout_s must be a number"):
        Store().client().missing([], timeout_s=float("nan"))
