"""Several nodes: each puts to its own shard, and everybody reads everything."""

from __future__ import annotations

import asyncio
import logging
import tempfile
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import ray
from awrl_pixelstore import PixelStoreClient, PixelStoreConfig, get_or_create_pixel_store
from awrl_pixelstore.remote_shard import NAMESPACE, actor_name
from awrl_pixelstore.store import ShardActor
from awrl_pixelstore.wire import StoreSpec
from numpy.typing import NDArray
from ray.cluster_utils import Cluster
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

pytestmark = [pytest.mark.ray, pytest.mark.slow, pytest.mark.timeout(600)]

MakeArray = Callable[..., NDArray[np.uint8]]
NODE: dict[str, Any] = {"num_cpus": 1, "object_store_memory": 80 * 2**20}
START_ATTEMPTS = 4
LIMIT_S = 240.0
"""Ample: a busy machine takes its time to start processes, and nothing here is about time."""


@pytest.fixture(scope="module")
def nodes() -> Iterator[list[str]]:
    """Two nodes of one CPU each on this machine."""
    if ray.is_initialized():
        ray.shutdown()
    with pytest.MonkeyPatch.context() as patch, tempfile.TemporaryDirectory(prefix="r") as folder:
        # A cluster announces itself below this folder; elsewhere others would join it unasked.
        patch.setenv("RAY_TMPDIR", folder)
        cluster = start_cluster()
        try:
            ray.init(address=cluster.address, log_to_driver=False)
            cluster.wait_for_nodes(timeout=LIMIT_S)
            yield sorted(node["NodeID"] for node in ray.nodes() if node["Alive"])
        finally:
            ray.shutdown()
            cluster.shutdown()


def start_cluster() -> Cluster:
    """Return two nodes; Ray gives each 30 s to start, which a busy machine does not always keep."""
    for _ in range(START_ATTEMPTS):
        cluster = Cluster()
        try:
            cluster.add_node(include_dashboard=False, **NODE)
            cluster.add_node(**NODE)
        except Exception as error:  # noqa: BLE001 - Ray raises plain ones
            logging.getLogger(__name__).warning("a node did not start: %s", error)
            cluster.shutdown()
        else:
            return cluster
    pytest.fail(f"Ray started no two nodes in {START_ATTEMPTS} attempts")


def put_here(store: PixelStoreClient, image: NDArray[np.uint8], name: str) -> tuple[str, str]:
    """Put from a task; return the task's node and the key."""
    key = asyncio.run(store.put_async(image, trajectory_id=name, timeout_s=LIMIT_S))
    return ray.get_runtime_context().get_node_id(), key


def node_of_shard(run_id: str, shard: int) -> str:
    handle: Any = ray.get_actor(actor_name(run_id, shard), namespace=NAMESPACE)
    look_up = handle.__ray_call__.remote(lambda actor: ray.get_runtime_context().get_node_id())
    return ray.get(look_up)


def put_on(node: str, store: PixelStoreClient, image: NDArray[np.uint8]) -> str:
    """Put from a task on a node; return the key."""
    task: Any = ray.remote(num_cpus=0)(put_here)
    there = task.options(scheduling_strategy=NodeAffinitySchedulingStrategy(node, soft=False))
    ran_on, key = ray.get(there.remote(store, image, f"t-{node}"))
    assert ran_on == node
    return key


def shard_of(key: str) -> int:
    return int(key.split("-")[2])


def test_every_node_has_a_shard_and_puts_to_it(nodes: list[str], make_array: MakeArray) -> None:
    config = PixelStoreConfig(max_bytes=10**6, call_timeout_s=LIMIT_S)
    store = get_or_create_pixel_store("nodes", config=config, timeout_s=LIMIT_S)
    assert len(store.spec.layout) == 2
    assert sorted(node_of_shard("nodes", shard) for shard in range(2)) == nodes
    keys = {node: put_on(node, store, make_array()) for node in nodes}
    for node, key in keys.items():
        assert node_of_shard("nodes", shard_of(key)) == node
    # The same page on two nodes is two entries with two keys: no node depends on another for it.
    assert len(set(keys.values())) == 2
    for image in store.get_many(list(keys.values())):
        np.testing.assert_array_equal(image, make_array())
    assert store.statistics().num_entries == 2
    assert store.release(*(f"t-{node}" for node in nodes)) == 2 * make_array().nbytes
    store.close()


def test_shards_go_to_the_nodes_that_are_named_in_turn(nodes: list[str]) -> None:
    here = ray.get_runtime_context().get_node_id()
    there = next(node for node in nodes if node != here)
    config = PixelStoreConfig(max_bytes=10**6, call_timeout_s=LIMIT_S)
    store = get_or_create_pixel_store(
        "named", num_shards=2, node_ids=[there, there], config=config, timeout_s=LIMIT_S
    )
    assert store.spec.layout == (there, there)
    assert {node_of_shard("named", shard) for shard in range(2)} == {there}
    store.close()
    with pytest.raises(ValueError, match="node_ids must be living nodes, got unknown"):
        get_or_create_pixel_store("gone", node_ids=["unknown", here])
    with pytest.raises(ValueError, match="node_ids must be living nodes, got none at all"):
        get_or_create_pixel_store("gone", node_ids=[])


@pytest.mark.parametrize("astray", [0, 1])
def test_a_shard_that_the_scheduler_put_elsewhere_is_moved_before_it_holds_anything(
    nodes: list[str], make_array: MakeArray, astray: int
) -> None:
    run_id = f"astray-{astray}"
    here = ray.get_runtime_context().get_node_id()
    layout = (here, *(node for node in nodes if node != here))
    config = PixelStoreConfig(max_bytes=10**6, call_timeout_s=LIMIT_S)
    actor: Any = ray.remote(ShardActor).options(
        name=actor_name(run_id, astray),
        namespace=NAMESPACE,
        lifetime="detached",
        num_cpus=0,
        max_concurrency=8,
        scheduling_strategy=NodeAffinitySchedulingStrategy(layout[1 - astray], soft=False),
    )
    wrong = actor.remote(StoreSpec(run_id, config, layout), astray)
    ray.get(wrong.statistics.remote())
    assert node_of_shard(run_id, astray) == layout[1 - astray]
    store = get_or_create_pixel_store(run_id, config=config, timeout_s=LIMIT_S)
    assert tuple(node_of_shard(run_id, shard) for shard in range(2)) == layout
    key = put_on(layout[astray], store, make_array())
    assert shard_of(key) == astray
    assert store.missing([key]) == []
    store.close()
