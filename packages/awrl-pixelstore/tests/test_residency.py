"""Where the bytes are: not in Ray's object store, not spilled, and gone after release."""

from __future__ import annotations

import asyncio
import ctypes
import gc
import os
import sys
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import ray
from awrl_pixelstore import (
    PixelStoreClient,
    PixelStoreConfig,
    PixelStoreCore,
    get_or_create_pixel_store,
)
from awrl_pixelstore.remote_shard import NAMESPACE, actor_name
from numpy.typing import NDArray
from ray._private.internal_api import node_stats

MakeArray = Callable[..., NDArray[np.uint8]]
MIB = 2**20
BATCH = 25
"""Trajectories released in one call, as a trainer does with those of its batch."""
LIBC = ctypes.CDLL("libc.so.6")


def object_store() -> Any:
    """Return the raylet's own accounting of its object store."""
    node = ray.nodes()[0]
    address, port = node["NodeManagerAddress"], node["NodeManagerPort"]
    return node_stats(address, port, include_memory_info=False).store_stats


def resident_bytes_after_settling(limit: int) -> int:
    """Return bytes in the object store; Ray frees in batches, so ask until few enough or 10 s."""
    gc.collect()
    used: int = object_store().object_store_bytes_used
    for _ in range(200):
        if used <= limit:
            break
        threading.Event().wait(0.05)
        used = object_store().object_store_bytes_used
    return used


def private_bytes(process: int) -> int:
    with open(f"/proc/{process}/status") as file:
        lines = dict(line.split(":", 1) for line in file)
    return int(lines["RssAnon"].split()[0]) * 1024


@pytest.mark.ray
@pytest.mark.usefixtures("cluster")
def test_no_image_stays_in_the_object_store_between_calls(make_array: MakeArray) -> None:
    store = get_or_create_pixel_store("residency")
    before = resident_bytes_after_settling(0)
    created = object_store().cumulative_created_bytes
    images = [make_array(seed, (720, 1280, 3)) for seed in range(8)]
    keys = store.put_many(images, trajectory_id="a")
    held = store.get_many(keys)
    # The bytes did travel through shared memory, in and out, and left it while we hold them.
    travelled = object_store().cumulative_created_bytes - created
    assert travelled >= 2 * sum(image.nbytes for image in images)
    assert resident_bytes_after_settling(before + MIB) <= before + MIB
    for image, got in zip(images, held, strict=True):
        np.testing.assert_array_equal(got, image)
    store.close()


@pytest.mark.ray
@pytest.mark.usefixtures("cluster")
def test_a_workload_that_makes_plain_object_passing_spill_does_not_spill_here(
    make_array: MakeArray,
) -> None:
    store = get_or_create_pixel_store("spilling")
    image = make_array(0, (2000, 2500, 4))
    keys: list[str] = []
    spilled = object_store().spilled_bytes_total
    for number in range(20):
        image[0, 0, 0] = number
        keys.append(store.put(image, trajectory_id=f"t{number}"))
    assert store.missing(keys) == []
    assert object_store().spilled_bytes_total == spilled
    references: list[Any] = []
    for number in range(20):
        image[0, 0, 0] = number
        references.append(ray.put(image))
    assert object_store().spilled_bytes_total > spilled
    del references
    for number in (0, 19):
        assert np.asarray(store.get_many([keys[number]])[0])[0, 0, 0] == number
    store.close()


def test_ten_thousand_trajectories_leave_a_core_as_it_was(make_array: MakeArray) -> None:
    core = PixelStoreCore(PixelStoreConfig(max_bytes=8 * MIB))
    shots = [make_array(seed, (40, 56, 3)) for seed in range(8)]
    sizes: list[int] = []
    for number in range(10_000):
        shots[number % 8][0, 0, :2] = divmod(number % 65536, 256)
        core.put_many(shots, trajectory_id=f"t{number}")
        if number >= 4:
            core.release(f"t{number - 4}")
        if number % 1000 == 999:
            sizes.append(private_bytes(os.getpid()))
    for number in range(9996, 10_000):
        core.release(f"t{number}")
    statistics = core.statistics()
    assert statistics.num_puts == 80_000
    assert statistics.num_entries == statistics.num_bytes == statistics.num_references == 0
    assert max(sizes) - sizes[1] < 4 * MIB


async def live(store: PixelStoreClient, names: range, image: NDArray[np.uint8]) -> None:
    """Let trajectories put two screenshots each, of which one is their own, and end in batches."""
    for first in range(names.start, names.stop, BATCH):
        batch = range(first, min(first + BATCH, names.stop))
        for number in batch:
            mine = image.copy()
            mine[0, 0] = (number % 251, number // 251 % 251, number // 63001)
            await store.put_many_async([mine, image], trajectory_id=f"t{number}")
        await store.release_async(*(f"t{number}" for number in batch))


async def live_all(store: PixelStoreClient, rounds: range, image: NDArray[np.uint8]) -> None:
    async with asyncio.TaskGroup() as group:
        for first in rounds:
            group.create_task(live(store, range(first, first + rounds.step), image))


def kept_bytes(limit: int) -> int:
    """Return what this process keeps; Ray flushes its buffers late, so ask until few enough or 10 s.

    Free heap is given back first. It is what Ray's buffers of a busy moment leave behind: of 22 MiB that
    2,000 trajectories add to a process, 18 MiB are free heap, and the next 10,000 add 2 MiB.
    """
    kept = sys.maxsize
    for _ in range(20):  # a collection takes long where a whole suite has been imported
        gc.collect()
        LIBC.malloc_trim(0)
        kept = private_bytes(os.getpid())
        if kept <= limit:
            break
        threading.Event().wait(0.5)
    return kept


@pytest.mark.ray
@pytest.mark.slow
@pytest.mark.usefixtures("cluster")
def test_thousands_of_trajectories_leave_the_actors_as_they_were(make_array: MakeArray) -> None:
    store = get_or_create_pixel_store("long-lived")
    handle: Any = ray.get_actor(actor_name("long-lived", 0), namespace=NAMESPACE)
    shard: Any = ray.get(handle.__ray_call__.remote(lambda actor: os.getpid()))
    image = make_array(0, (120, 160, 3))
    resident = resident_bytes_after_settling(MIB)
    asyncio.run(live_all(store, range(0, 1000, 125), image))
    before, kept = private_bytes(shard), kept_bytes(0)
    asyncio.run(live_all(store, range(1000, 4000, 375), image))
    after = private_bytes(shard)
    statistics = store.statistics()
    assert statistics.num_puts == 8000
    assert statistics.num_entries == statistics.num_bytes == statistics.num_trajectories == 0
    # One image kept for each trajectory would be 165 MiB.
    assert after - before < 8 * MIB
    assert kept_bytes(kept + 4 * MIB) < kept + 4 * MIB
    assert resident_bytes_after_settling(resident + MIB) <= resident + MIB
    store.close()
