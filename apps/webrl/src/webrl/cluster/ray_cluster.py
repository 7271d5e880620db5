"""The Ray cluster of a run, and how a signal ends what runs on it.

Invariants:
    * a cluster that this module started ends with the run; one that it joined is left alone;
    * what the cluster offers is read once, before anything is placed on it.

On a laptop Ray is started locally. With `RAY_ADDRESS` set, the run joins that cluster instead.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
from collections.abc import Coroutine, Generator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

import psutil
import ray
from ray._private.state import available_resources_per_node

from webrl.errors import PreflightError

logger = logging.getLogger(__name__)

ResultT = TypeVar("ResultT")

OBJECT_STORE_BYTES = 256 * 1024 * 1024
"""Object store of a local cluster: only keys, token ids and small metadata travel through it."""

ORPHANED_AGENTS = ("ray::DashboardAgent", "ray::RuntimeEnvAgent")
"""Processes that outlive their node when the process that started Ray was killed."""

START_ATTEMPTS = 3
"""Ray gives its own processes half a minute, which a busy laptop can miss."""

LOCAL_ENVIRONMENT = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    "RAY_DISABLE_MEMORY_MONITOR": "1",
    "RAY_enable_metrics_collection": "0",
}
"""Set before a local Ray starts: no usage reports, GPU visibility untouched, no metrics agent."""

SIGNALS = (signal.SIGINT, signal.SIGTERM)
"""What ends a run in order."""


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


def cluster_nodes() -> tuple[NodeResources, ...]:
    """Return the alive nodes, ordered by address and then by id, the order ranks follow."""
    nodes = [
        NodeResources(
            node_id=node["NodeID"],
            address=node["NodeManagerAddress"],
            num_cpus=float(node["Resources"].get("CPU", 0.0)),
            num_gpus=float(node["Resources"].get("GPU", 0.0)),
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
    if address:
        ray.init(
            address=address, namespace=namespace, log_to_driver=False, logging_level=logging.ERROR
        )
    else:
        _start_local_cluster(namespace, int(num_cpus) if num_cpus else len(os.sched_getaffinity(0)))
    try:
        yield
    finally:
        ray.shutdown()


def _start_local_cluster(namespace: str, num_cpus: int) -> None:
    os.environ.update(LOCAL_ENVIRONMENT)
    _end_orphaned_agents()
    for attempt in range(1, START_ATTEMPTS + 1):
        try:
            ray.init(
                # Without this Ray joins whatever cluster was last started on the machine.
                address="local",
                num_cpus=num_cpus,
                namespace=namespace,
                include_dashboard=False,
                object_store_memory=OBJECT_STORE_BYTES,
                log_to_driver=False,
                logging_level=logging.ERROR,
            )
        except Exception as error:  # Ray raises the base class when its half minute is over
            ray.shutdown()
            if attempt == START_ATTEMPTS:
                raise PreflightError(
                    f"a local Ray cluster must start within half a minute, got none in {attempt} "
                    f"attempts: {error} Free the machine, or start Ray with `ray start --head` and "
                    "set RAY_ADDRESS."
                ) from error
            logger.warning("Ray did not start: %s", error)
        else:
            return


def _end_orphaned_agents() -> None:
    """End this user's agents of Ray nodes that are gone: nobody else does."""
    for process in psutil.process_iter(["ppid", "uids", "cmdline"]):
        cmdline, uids = process.info["cmdline"], process.info["uids"]
        if not cmdline or cmdline[0] not in ORPHANED_AGENTS or process.info["ppid"] != 1:
            continue
        if uids is not None and uids.real == os.getuid():
            with contextlib.suppress(psutil.Error):
                process.kill()


async def until_signalled(work: Coroutine[None, None, ResultT]) -> ResultT:
    """Return what the work returns; Ctrl-C or SIGTERM cancels it and waits for its clean-up.

    A second signal no longer waits: it interrupts the clean-up.

    Raises:
        asyncio.CancelledError: A signal came.
    """
    loop, task = asyncio.get_running_loop(), asyncio.current_task()
    assert task is not None

    def stop() -> None:
        for number in SIGNALS:
            loop.remove_signal_handler(number)
            signal.signal(number, signal.default_int_handler)
        task.cancel()

    # Also where the caller ignores SIGINT, as shells do for what they start in the background.
    for number in SIGNALS:
        loop.add_signal_handler(number, stop)
    return await work
