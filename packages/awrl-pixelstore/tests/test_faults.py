"""Shards that die or hang while they are asked."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import ray
from awrl_pixelstore import (
    PixelNotFound,
    PixelStoreClient,
    PixelStoreConfig,
    PixelStoreUnavailable,
    get_or_create_pixel_store,
)
from awrl_pixelstore.remote_shard import NAMESPACE, actor_name
from numpy.typing import NDArray

pytestmark = [pytest.mark.ray, pytest.mark.usefixtures("cluster")]

MakeArray = Callable[..., NDArray[np.uint8]]
LIMIT_S = 60.0


def process_of(run_id: str, shard: int) -> int:
    handle: Any = ray.get_actor(actor_name(run_id, shard), namespace=NAMESPACE)
    return ray.get(handle.__ray_call__.remote(lambda actor: os.getpid()))


@contextmanager
def stopped(process: int) -> Generator[None]:
    """Keep a process from running, so that a call to it is under way."""
    os.kill(process, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(process, signal.SIGCONT)


def spread(store: PixelStoreClient, make_array: MakeArray) -> tuple[list[str], list[str]]:
    """Put images; return all keys and those of shard 0."""
    keys = store.put_many([make_array(seed) for seed in range(16)], trajectory_id="a")
    first = [key for key in keys if key.split("-")[2] == "0"]
    assert 0 < len(first) < 16
    return keys, first


async def kill_in_mid_get(store: PixelStoreClient, run_id: str, keys: list[str]) -> object:
    """Start a get, kill the shard before it can answer, return what the get came to."""
    process = process_of(run_id, 0)
    os.kill(process, signal.SIGSTOP)
    async with asyncio.TaskGroup() as group:
        get = group.create_task(attempt(store, keys))
        for _ in range(10):
            await asyncio.sleep(0)  # Sends the calls; the get now waits for the answers.
        os.kill(process, signal.SIGKILL)
    return get.result()


async def attempt(store: PixelStoreClient, keys: list[str]) -> object:
    try:
        return await store.get_many_async(keys, timeout_s=LIMIT_S)
    except (PixelNotFound, PixelStoreUnavailable) as error:
        return error


def copy_of(store: PixelStoreClient) -> PixelStoreClient:
    """Return a client without handles and cache."""
    return PixelStoreClient(store.spec)


def test_a_shard_killed_in_mid_get_gives_a_typed_error_and_missing_names_the_lost(
    make_array: MakeArray,
) -> None:
    store = get_or_create_pixel_store("killed", num_shards=2)
    keys, first = spread(store, make_array)
    error = asyncio.run(kill_in_mid_get(copy_of(store), "killed", keys))
    assert isinstance(error, PixelNotFound)
    assert list(error.keys) == first
    assert store.missing(keys, timeout_s=LIMIT_S) == first
    statistics = store.statistics()
    assert statistics.num_restarts == 1
    assert statistics.num_entries == 16 - len(first)
    store.put_many([make_array(seed) for seed in range(16)], trajectory_id="a")
    assert store.missing(keys) == []
    store.close()


def test_with_the_disk_tier_a_killed_shard_loses_nothing(
    tmp_path: Path, make_array: MakeArray
) -> None:
    config = PixelStoreConfig(disk_dir=str(tmp_path), max_disk_bytes=10**6)
    store = get_or_create_pixel_store("kept", num_shards=2, config=config)
    keys, _ = spread(store, make_array)
    got = asyncio.run(kill_in_mid_get(copy_of(store), "kept", keys))
    assert isinstance(got, list)
    for seed, image in enumerate(got):
        np.testing.assert_array_equal(image, make_array(seed))
    assert store.missing(keys) == []
    assert store.statistics().num_restarts == 1
    assert store.statistics().num_references == 16
    store.close(is_disk_kept=True)
    again = get_or_create_pixel_store("kept", num_shards=2, config=config)
    assert again.missing(keys) == []
    again.close()
    assert list(tmp_path.rglob("px-*")) == []


def test_a_shard_that_hangs_is_reported_within_the_limit(make_array: MakeArray) -> None:
    store = get_or_create_pixel_store("hanging")
    key = store.put(make_array(), trajectory_id="a")
    with stopped(process_of("hanging", 0)):
        for operation in (copy_of(store).get_many, store.missing):
            with pytest.raises(PixelStoreUnavailable, match=r"shard 0 .* within 0\.2 s") as caught:
                operation([key], timeout_s=0.2)
            assert caught.value.keys == (key,)
            assert not caught.value.is_gone
        with pytest.raises(PixelStoreUnavailable, match="no answer"):
            asyncio.run(store.put_async(make_array(1), trajectory_id="a", timeout_s=0.2))
        with pytest.raises(PixelStoreUnavailable):
            asyncio.run(store.release_async("b", timeout_s=0.2))
    np.testing.assert_array_equal(store.get_many([key])[0], make_array())
    store.close()


def test_a_shard_killed_for_good_is_gone_at_once(make_array: MakeArray) -> None:
    store = get_or_create_pixel_store("dead", num_shards=2)
    keys, first = spread(store, make_array)
    ray.kill(ray.get_actor(actor_name("dead", 0), namespace=NAMESPACE), no_restart=True)
    assert store.missing(keys) == first
    with pytest.raises(PixelStoreUnavailable, match="shard 0") as caught:
        store.get_many(keys)
    assert caught.value.is_gone
    assert caught.value.keys == tuple(first)
    assert store.release("a") == (16 - len(first)) * 144
    repaired = get_or_create_pixel_store("dead", num_shards=2)
    assert store.missing(keys) == keys
    assert set(store.put_many([make_array(seed) for seed in range(16)], trajectory_id="a")) == set(
        keys
    )
    ray.kill(ray.get_actor(actor_name("dead", 0), namespace=NAMESPACE), no_restart=True)
    smaller = get_or_create_pixel_store("dead", num_shards=1)
    assert smaller.statistics().num_entries == 0
    assert repaired.missing(keys) == keys
    with pytest.raises(ValueError, match="Failed to look up actor"):
        ray.get_actor(actor_name("dead", 1), namespace=NAMESPACE)
    smaller.close()


def test_a_disk_that_cannot_be_used_is_refused_at_creation(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    bad = PixelStoreConfig(disk_dir=str(tmp_path / "file"))
    with pytest.raises(PixelStoreUnavailable, match="disk_dir must be a writable folder"):
        get_or_create_pixel_store("no-disk", config=bad)
    good = get_or_create_pixel_store("no-disk")
    assert good.statistics().num_entries == 0
    good.close()
