"""What a client asks of which shard, driven without Ray by cores as shards."""

import asyncio
from collections.abc import Callable, Iterator, Sequence
from typing import TypeAlias, TypeVar

import numpy as np
import pytest
from awrl_pixelstore import (
    PixelNotFound,
    PixelStoreConfig,
    PixelStoreFull,
    PixelStoreUnavailable,
)
from awrl_pixelstore.image import digest_of
from awrl_pixelstore.operations import Answer, Steps, StoreOperations
from awrl_pixelstore.shard import PixelStoreShard
from awrl_pixelstore.wire import Call, Outcome, Reply, StoreSpec
from numpy.typing import NDArray

MakeArray = Callable[..., NDArray[np.uint8]]
T = TypeVar("T")
SIZE = 8 * 6 * 3


class Store:
    """Shards without actors, and a driver that counts calls."""

    def __init__(self, layout: Sequence[str] = ("n0",), **config: float) -> None:
        self.spec = StoreSpec("run", PixelStoreConfig(**config), tuple(layout))  # pyright: ignore[reportArgumentType]
        self.shards = [PixelStoreShard(self.spec, shard) for shard in range(len(layout))]
        self.dead: dict[int, PixelStoreUnavailable] = {}
        self.rounds: list[list[Call]] = []
        self.now = 0.0
        self.runner = asyncio.Runner()

    def client(self, node_id: str = "n0") -> StoreOperations:
        return StoreOperations(self.spec, node_id, clock=lambda: self.now)

    def outcome(self, client: StoreOperations, call: Call) -> Outcome:
        if call.shard in self.dead:
            return self.dead[call.shard]
        method = getattr(self.shards[call.shard], call.method)
        return self.runner.run(method(*call.arguments, client.cache.seen(call.shard)))

    def drive(self, client: StoreOperations, steps: Steps[T]) -> T:
        answers: list[Answer] = []
        try:
            calls = next(steps)
            while True:
                self.rounds.append(list(calls))
                seen = client.seen(calls)
                outcomes = [self.outcome(client, call) for call in calls]
                answers = client.absorb(calls, seen, outcomes)
                calls = steps.send(answers)
        except StopIteration as stop:
            return stop.value

    def put(self, client: StoreOperations, images: list[NDArray[np.uint8]], name: str) -> list[str]:
        return self.drive(client, client.put_many(images, name, None))


MakeStore: TypeAlias = Callable[..., Store]


@pytest.fixture(name="make_store")
def _make_store() -> Iterator[Callable[..., Store]]:
    made: list[Store] = []

    def make(layout: Sequence[str] = ("n0",), **config: float) -> Store:
        made.append(Store(layout, **config))
        return made[-1]

    yield make
    for store in made:
        store.runner.close()


def test_puts_go_to_the_shard_of_the_own_node(make_store: MakeStore, make_array: MakeArray) -> None:
    store = make_store(["n0", "n1", "n1"])
    here, there, elsewhere = store.client("n0"), store.client("n1"), store.client("n9")
    images = [make_array(seed) for seed in range(12)]
    assert {key.split("-")[2] for key in store.put(here, images, "a")} == {"0"}
    assert {key.split("-")[2] for key in store.put(there, images, "b")} == {"1", "2"}
    assert {key.split("-")[2] for key in store.put(elsewhere, images, "c")} == {"0", "1", "2"}


def test_equal_content_of_one_node_shares_one_entry_whoever_puts_it(
    make_store: MakeStore, make_array: MakeArray
) -> None:
    store = make_store(["n0", "n0", "n0"])
    keys = [store.put(store.client(), [make_array(1)], f"t{number}")[0] for number in range(8)]
    assert len(set(keys)) == 1


@pytest.mark.requirement("keys-travel")
def test_one_call_a_shard_whatever_the_number_of_keys(
    make_store: MakeStore, make_array: MakeArray
) -> None:
    store = make_store(["n0", "n0"])
    client = store.client()
    images = [make_array(seed) for seed in range(30)]
    keys = store.put(client, images, "a")
    assert [call.shard for calls in store.rounds for call in calls] in ([0, 1], [1, 0])
    store.rounds.clear()
    for image, got in zip(images, store.drive(client, client.get_many(keys)), strict=True):
        np.testing.assert_array_equal(got, image)
    assert [len(calls) for calls in store.rounds] == [2]
    store.rounds.clear()
    store.drive(client, client.get_many(keys[::-1] * 2))
    store.drive(client, client.put_many([], "a", None))
    assert store.rounds == []


def test_large_batches_take_several_calls_of_bounded_payload(
    make_store: MakeStore, make_array: MakeArray
) -> None:
    store = make_store(max_call_bytes=2 * SIZE, read_cache_bytes=0)
    client = store.client()
    images = [make_array(seed) for seed in range(5)]
    keys = store.put(client, images, "a")
    assert [len(calls) for calls in store.rounds] == [1, 1, 1]
    store.rounds.clear()
    for image, got in zip(images, store.drive(client, client.get_many(keys)), strict=True):
        np.testing.assert_array_equal(got, image)
    assert [len(calls) for calls in store.rounds] == [1, 1, 1]


def test_a_refused_put_names_shard_and_limit_and_updates_the_pressure(
    make_store: MakeStore, make_array: MakeArray
) -> None:
    store = make_store(max_bytes=SIZE)
    client = store.client()
    store.put(client, [make_array(1)], "a")
    with pytest.raises(PixelStoreFull, match=f"budget of {SIZE} bytes of shard 0"):
        store.put(client, [make_array(2)], "b")
    assert client.last_pressure().value == 1.0


def test_pressure_asks_only_shards_that_have_been_silent(
    make_store: MakeStore, make_array: MakeArray
) -> None:
    store = make_store(["n0", "n1"], max_bytes=4 * SIZE)
    client = store.client("n0")
    assert client.last_pressure().value == 0.0
    store.drive(client, client.pressure(1.0))
    assert [call.shard for call in store.rounds[-1]] == [0, 1]
    store.now = 5.0
    store.put(client, [make_array(1)], "a")
    store.rounds.clear()
    reading = store.drive(client, client.pressure(1.0))
    assert [call.shard for calls in store.rounds for call in calls] == [1]
    assert (reading.value, reading.used_bytes, reading.capacity_bytes) == (0.25, SIZE, 8 * SIZE)
    assert reading.num_episodes_that_fit(2 * SIZE) == 3
    store.rounds.clear()
    store.drive(client, client.pressure(1.0))
    assert store.rounds == []


def test_a_dead_shard_is_what_missing_names_and_a_silent_one_an_error(
    make_store: MakeStore, make_array: MakeArray
) -> None:
    store = make_store(["n0", "n0"])
    client = store.client()
    keys = store.put(client, [make_array(seed) for seed in range(8)], "a")
    first = [key for key in keys if key.split("-")[2] == "0"]
    store.dead[0] = PixelStoreUnavailable("ActorDiedError", shard=0, is_gone=True)
    assert store.drive(client, client.missing(keys)) == first
    with pytest.raises(PixelStoreUnavailable, match="shard 0"):
        store.drive(client, client.get_many(keys))
    assert store.drive(client, client.release_many(["a"])) == (8 - len(first)) * SIZE
    store.drive(client, client.transfer("a", "b"))
    assert store.drive(client, client.renew(["a"])) == ["a"]
    store.dead[0] = PixelStoreUnavailable("no answer", shard=0, limit_s=1.0)
    for steps in (client.missing(keys), client.release_many(["a"]), client.statistics()):
        with pytest.raises(PixelStoreUnavailable, match="within 1 s"):
            store.drive(client, steps)


def test_keys_of_another_run_or_shard_are_not_found_without_a_call(
    make_store: MakeStore, make_array: MakeArray
) -> None:
    store = make_store()
    client = store.client()
    key = store.put(client, [make_array(1)], "a")[0]
    foreign = ["px-00000000-0-" + key[-32:], key.replace("-0-", "-7-")]
    store.rounds.clear()
    assert store.drive(client, client.missing([*foreign, key])) == foreign
    with pytest.raises(PixelNotFound) as caught:
        store.drive(client, client.get_many([key, *foreign]))
    assert caught.value.keys == tuple(foreign)
    assert list(caught.value.found) == [key]
    for steps in (client.describe(foreign), client.acquire("b", foreign)):
        with pytest.raises(PixelNotFound):
            store.drive(client, steps)
    assert all(call.keys == (key,) for calls in store.rounds for call in calls)


def test_a_cache_forgets_what_others_released_with_the_next_answer(
    make_store: MakeStore, make_array: MakeArray
) -> None:
    store = make_store()
    writer, reader = store.client(), store.client()
    keys = store.put(writer, [make_array(1), make_array(2)], "a")
    store.put(writer, [make_array(1)], "b")
    store.drive(reader, reader.get_many(keys))
    assert reader.cache.statistics().num_entries == 2
    store.drive(writer, writer.release_many(["a"]))
    store.drive(reader, reader.pressure(-1.0))
    assert reader.cache.statistics().num_entries == 1
    with pytest.raises(PixelNotFound) as caught:
        store.drive(reader, reader.get_many(keys))
    assert caught.value.keys == (keys[1],)


def test_a_cache_is_emptied_when_the_shard_is_another_process(
    make_store: MakeStore, make_array: MakeArray
) -> None:
    store = make_store()
    client = store.client()
    keys = store.put(client, [make_array(1)], "a")
    store.drive(client, client.get_many(keys))
    store.shards[0] = PixelStoreShard(store.spec, 0)
    store.drive(client, client.statistics())
    assert client.cache.statistics().num_entries == 0
    assert store.drive(client, client.missing(keys)) == keys


def test_an_answer_that_overtook_a_release_brings_nothing_back(
    make_store: MakeStore, make_array: MakeArray
) -> None:
    store = make_store()
    client = store.client()
    keys = store.put(client, [make_array(1)], "a")
    steps = client.get_many(keys)
    calls = next(steps)
    late = [store.outcome(client, call) for call in calls]
    store.drive(client, client.release_many(["a"]))
    with pytest.raises(StopIteration) as stop:
        steps.send(client.absorb(calls, [None], late))
    np.testing.assert_array_equal(stop.value.value[0], make_array(1))
    assert client.cache.statistics().num_entries == 0
    with pytest.raises(PixelNotFound):
        store.drive(client, client.get_many(keys))


def test_a_closed_shard_refuses_by_type(make_store: MakeStore, make_array: MakeArray) -> None:
    store = make_store()
    client = store.client()
    assert store.drive(client, client.stop(False)) == [0]
    with pytest.raises(PixelStoreUnavailable, match="a closed store"):
        store.put(client, [make_array(1)], "a")
    reply = store.outcome(client, Call(0, "usage", ()))
    assert isinstance(reply, Reply)
    assert digest_of("array", (1, 1, 3), b"abc") != digest_of("png", (1, 1, 3), b"abc")
