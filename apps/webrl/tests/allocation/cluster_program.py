"""Lays roles out on a real Ray cluster of nine nodes with eight declared GPUs each; prints JSON.

A program of its own, so that the cluster meets neither the test process nor another cluster.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import time
from collections import Counter
from dataclasses import replace
from itertools import pairwise
from typing import Any, cast

import ray
from ray.cluster_utils import Cluster
from webrl.cluster import placement
from webrl.cluster.placement import RoleSpec, release_layout, setup_mixed_layout
from webrl.cluster.scheduler import ProcessOptions, RayScheduler
from webrl.config import load_config
from webrl.errors import PreflightError
from webrl.launch.component_configs import role_specs

NUM_NODES = 9
GPUS_PER_NODE = 8
CPUS_PER_NODE = 40
TENSOR_PARALLEL = (
    "allocation_mode=sglang[rollout]:d24t2+fsdp[actor]:d16",
    "cluster.n_inference_servers=24",
)


def gpu_role(name: str, count: int, shares: str | None = None) -> RoleSpec:
    return RoleSpec(
        name=name,
        num_workers=count,
        cpus_per_worker=1.0,
        gpus_per_worker=0.5 if shares else 1.0,
        colocate_with=shares,
    )


def thick_role(name: str, count: int) -> RoleSpec:
    """5 CPUs and a GPU a worker, with 40 CPUs a node: 5.5 of them leave room for 7 of 8."""
    return RoleSpec(name=name, num_workers=count, cpus_per_worker=5.5, gpus_per_worker=1.0)


def busy_refusal() -> str:
    """A layout that would fit if nobody else held a device."""
    others = setup_mixed_layout([gpu_role("others", 20)])
    placement.PLACEMENT_DEADLINE_S = 5.0
    try:
        return refusal([gpu_role("rollout", 48), gpu_role("actor", 16)])
    finally:
        release_layout(others)


def published_layout() -> dict[str, object]:
    """48 + 16, and 8 test servers on what is left."""
    roles = [gpu_role("rollout", 48), gpu_role("actor", 16), gpu_role("test-rollout", 8)]
    placements = setup_mixed_layout(roles)
    nodes = {name: list(placement.node_of_rank) for name, placement in placements.items()}
    release_layout(placements)
    return {
        "per_node": {name: sorted(Counter(found).values()) for name, found in nodes.items()},
        "num_nodes": len({node for found in nodes.values() for node in found}),
        # A node's ranks follow each other: as many changes of node as nodes, less one.
        "num_runs": {
            name: 1 + sum(one != other for one, other in pairwise(found))
            for name, found in nodes.items()
        },
    }


def counts_of(roles: list[RoleSpec]) -> dict[str, list[int]]:
    """How many workers of each role the nodes hold that hold any."""
    placements = setup_mixed_layout(roles, gpus_per_node=GPUS_PER_NODE)
    counts = {
        name: sorted(Counter(placement.node_of_rank).values())
        for name, placement in placements.items()
    }
    release_layout(placements)
    return counts


def configured(*changes: str) -> list[RoleSpec]:
    """The roles of the published configuration, with its test rollout, on these nodes."""
    config = load_config(
        "webgym_48_16", ["cluster.n_nodes=9", "test_rollout.enabled=true", *changes]
    ).config
    return role_specs(config, ray.cluster_resources()["CPU"])


def devices_of_servers() -> list[str]:
    """The devices that each of two tensor parallel servers of one node sees."""
    scheduler = RayScheduler([replace(gpu_role("rollout", 2), gpus_per_worker=2.0)])
    workers = [
        scheduler.create_worker("rollout", rank, ProcessOptions(), Echo) for rank in range(2)
    ]
    seen = ray.get([worker.actor.devices.remote() for worker in workers])
    scheduler.shutdown()
    return seen


class Echo:
    """A worker of a run."""

    def answer(self) -> int:
        return 1

    def devices(self) -> str:
        return os.environ["CUDA_VISIBLE_DEVICES"]


class Other(Echo):
    """An actor that is none."""


def remembered_calls() -> list[str]:
    """Whose calls Ray's head remembers, once it remembers those of an actor that is no worker."""
    scheduler = RayScheduler([gpu_role("actor", 1)])
    worker = scheduler.create_worker("actor", 0, ProcessOptions(), Echo)
    other: Any = ray.remote(Other).options(num_cpus=0).remote()
    names: set[str] = set()
    for _ in range(120):
        ray.get([worker.actor.answer.remote(), other.answer.remote()])
        events = cast("list[dict[str, Any]]", ray.timeline())
        names = {event["cat"] for event in events if event["cat"].endswith(".answer")}
        if "task::Other.answer" in names:
            break
        time.sleep(0.25)
    scheduler.shutdown()
    return sorted(names)


def refusal(roles: list[RoleSpec]) -> str:
    try:
        setup_mixed_layout(roles)
    except PreflightError as error:
        return str(error)
    return ""


def main() -> None:
    cluster = Cluster()
    try:
        for index in range(NUM_NODES):
            cluster.add_node(
                num_cpus=CPUS_PER_NODE,
                num_gpus=GPUS_PER_NODE,
                labels={"browsers": "true"} if index == NUM_NODES - 1 else {},
                object_store_memory=80 << 20,
                include_dashboard=False,
                include_log_monitor=False,
            )
        ray.init(address=cluster.address, log_to_driver=False, logging_level=logging.ERROR)
        found = {
            "published": published_layout(),
            "configured": counts_of(configured()),
            "labelled": counts_of(
                configured("env.node_label=browsers=true", "env.cpus_per_slot=0.02")
            ),
            "too_many": refusal(configured("env.node_label=browsers=true")),
            "unlabelled": refusal(configured("env.node_label=browsers=false")),
            "tensor_parallel": counts_of(configured(*TENSOR_PARALLEL)),
            "devices": devices_of_servers(),
            "remembered": remembered_calls(),
            "infeasible": refusal([gpu_role("rollout", 64), gpu_role("actor", 16)]),
            "fragmented": refusal([thick_role("rollout", 48), thick_role("actor", 16)]),
            "busy": busy_refusal(),
        }
    finally:
        ray.shutdown()
        cluster.shutdown()
    sys.stdout.write("\n" + json.dumps(found) + "\n")


if __name__ == "__main__":
    main()
