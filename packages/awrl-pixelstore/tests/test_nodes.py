"""Several nodes: each puts to its own shard, and everybody reads everything."""

import asyncio
import tempfile
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import ray
from awrl_pixelstore import PixelStoreClient, PixelStoreConfig, get_or_create_pixel_store
from awrl_pixelstore.transport import NAMESPACE, actor_name
from numpy.typing import NDArray
from ray.cluster_utils import Cluster
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

pytestmark = [pytest.mark.ray, pytest.mark.slow]

MakeArray = Callable[..., NDArray[np.uint8]]


@pytest.fixture(scope="module")
def nodes() -> Iterator[list[str]]:
    """Two nodes of one CPU each on this machine."""
    if ray.is_initialized():
        ray.shutdown()
    with pytest.MonkeyPatch.context() as patch, tempfile.TemporaryDirectory(prefix="r") as folder:
        # A cluster announces itself below this folder; elsewhere others would join it unasked.
        patch.setenv("RAY_TMPDIR", folder)
        cluster = Cluster()
        try:
            for _ in range(2):
                cluster.add_node(num_cpus=1, object_store_memory=80 * 2**20)
            ray.init(address=cluster.address, log_to_driver=False)
            cluster.wait_for_nodes()
            yield sorted(node["NodeID"] for node in ray.nodes())
        finally:
            ray.shutdown()
            cluster.shutdown()


def put_here(store: PixelStoreClient, image: NDArray[np.uint8], name: str) -> tuple[str, str]:
    """Put from a task; return the task's node and the key."""
    key = asyncio.run(store.put_async(image, trajectory_id=name))
    return ray.get_runtime_context().get_node_id(), key


def node_of_shard(run_id: str, shard: int) -> str:
    handle: Any = ray.get_actor(actor_name(run_id, shard), namespace=NAMESPACE)
    look_up = handle.__ray_call__.remote(lambda actor: ray.get_runtime_context().get_node_id())
    return ray.get(look_up)


def test_every_node_has_a_shard_and_puts_to_it(nodes: list[str], make_array: MakeArray) -> None:
    store = get_or_create_pixel_store("nodes", config=PixelStoreConfig(max_bytes=10**6))
    assert store.num_shards == 2
    assert sorted(node_of_shard("nodes", shard) for shard in range(2)) == nodes
    task: Any = ray.remote(num_cpus=0)(put_here)
    keys: dict[str, str] = {}
    for node in nodes:
        there = task.options(scheduling_strategy=NodeAffinitySchedulingStrategy(node, soft=False))
        ran_on, key = ray.get(there.remote(store, make_array(), f"t-{node}"))
        assert ran_on == node == node_of_shard("nodes", int(key.split("-")[2]))
        keys[node] = key
    # The same page on two nodes is two entries with two keys: no node depends on another for it.
    assert len(set(keys.values())) == 2
    for image in store.get_many(list(keys.values())):
        np.testing.assert_array_equal(image, make_array())
    assert store.statistics().num_entries == 2
    assert store.release_many([f"t-{node}" for node in nodes]) == 2 * make_array().nbytes
    store.close()
