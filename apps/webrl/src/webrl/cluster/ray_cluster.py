"""The Ray cluster of a run.

Invariants:
    * a cluster that this module started ends with the run, and with this process however that ends;
      no signal to this process's group reaches it; one that was joined is left alone;
    * what the cluster offers is read once, before anything is placed on it.

On a laptop Ray is started locally. With `RAY_ADDRESS` set, the run joins that cluster instead.
"""

from __future__ import annotations

import contextlib
import logging
import os
import secrets
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import ray
from ray._private.state import available_resources_per_node

from webrl.cluster.ray_head import RayHead
from webrl.errors import PreflightError

logger = logging.getLogger(__name__)

OBJECT_STORE_BYTES = 256 * 1024 * 1024
"""Object store of a local cluster: only keys, token ids and small metadata travel through it."""

START_ATTEMPTS = 3
"""Ray gives its own processes half a minute, which a busy laptop can miss."""

LOCAL_ENVIRONMENT = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    "RAY_DISABLE_MEMORY_MONITOR": "1",
    "RAY_enable_metrics_collection": "0",
}
"""Set before a local Ray starts: no usage reports, GPU visibility untouched, no metrics agent."""

AUTH_MODE = "RAY_AUTH_MODE"
"""Read when Ray is imported, so the command line sets it to `token`; a program that does not has a
local cluster without."""

AUTH_TOKEN = "RAY_AUTH_TOKEN"
"""Of the local cluster; without it Ray would keep one in the home folder, which may not be writable."""


@dataclass(frozen=True, kw_only=True, slots=True)
class NodeResources:
    """What one alive node of the cluster offers."""

    node_id: str
    """Ray's id of the node, hexadecimal."""
    address: str
    """Address of the node manager."""
    num_cpus: float
    """Logical CPUs in all."""
    num_gpus: float
    """GPUs in all."""
    labels: Mapping[str, str] = field(default_factory=dict[str, str])
    """What `ray start --labels` said of it."""


def cluster_nodes() -> tuple[NodeResources, ...]:
    """Return the alive nodes, ordered by address and then by id, the order ranks follow."""
    nodes = [
        NodeResources(
            node_id=node["NodeID"],
            address=node["NodeManagerAddress"],
            num_cpus=float(node["Resources"].get("CPU", 0.0)),
            num_gpus=float(node["Resources"].get("GPU", 0.0)),
            labels=dict(node.get("Labels") or {}),
        )
        for node in ray.nodes()
        if node["Alive"]
    ]
    return tuple(sorted(nodes, key=lambda node: (node.address, node.node_id)))


def free_nodes(nodes: Sequence[NodeResources]) -> tuple[NodeResources, ...]:
    """Return the same nodes with what nobody holds of them at the moment."""
    free: Mapping[str, Mapping[str, float]] = available_resources_per_node()
    return tuple(
        replace(
            node,
            num_cpus=free.get(node.node_id, {}).get("CPU", 0.0),
            num_gpus=free.get(node.node_id, {}).get("GPU", 0.0),
        )
        for node in nodes
    )


@contextlib.contextmanager
def ray_cluster(*, namespace: str, num_cpus: float | None = None) -> Generator[None]:
    """Join the cluster at `RAY_ADDRESS`, or start a local one that ends with the block.

    Args:
        namespace: Ray namespace of the run, so that two runs on a cluster never meet.
        num_cpus: Logical CPUs of a local cluster; as many as this process may use when None.

    Raises:
        PreflightError: No local cluster could be started.
    """
    address = os.environ.get("RAY_ADDRESS")
    if ray.is_initialized():
        yield
        return
    head = None
    if address:
        _join(address, namespace)
    else:
        count = int(num_cpus) if num_cpus else len(os.sched_getaffinity(0))
        head = _start_local_cluster(namespace, count)
    try:
        yield
    finally:
        _leave(head)


def _start_local_cluster(namespace: str, num_cpus: int) -> RayHead:
    """Start a cluster on this machine and join it."""
    os.environ.update(LOCAL_ENVIRONMENT)
    os.environ.setdefault(AUTH_TOKEN, secrets.token_hex(32))
    # What this process's Ray read when it was imported; a cluster by itself might choose otherwise.
    environment = {AUTH_MODE: os.environ.get(AUTH_MODE, "disabled")}
    settings = {"num_cpus": num_cpus, "object_store_memory": OBJECT_STORE_BYTES}
    for attempt in range(1, START_ATTEMPTS + 1):
        head = None
        try:
            head = RayHead(settings, environment)
            _join(head.address, namespace)
        except Exception as error:  # Ray raises the base class when its half minute is over
            _leave(head)
            if attempt == START_ATTEMPTS:
                raise PreflightError(
                    f"a local Ray cluster must start within half a minute, got none in {attempt} "
                    f"attempts: {error} Free the machine, or start Ray with `ray start --head` and "
                    "set RAY_ADDRESS."
                ) from error
            logger.warning("Ray did not start: %s", error)
        except BaseException:
            _leave(head)
            raise
        else:
            return head
    raise AssertionError("unreachable: the last attempt returns or raises")


def _join(address: str, namespace: str) -> None:
    ray.init(address=address, namespace=namespace, log_to_driver=False, logging_level=logging.ERROR)


def _leave(head: RayHead | None) -> None:
    """Leave the cluster, and end it when it is ours."""
    ray.shutdown()
    if head is not None:
        head.close()
