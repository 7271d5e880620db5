"""What joins the declared cluster: `python -m webrl.rehearse.program place|train|resume PATH`.

place FILE    put all roles of the whole configuration on the cluster, and say what each node holds
train FILE    run a configuration with stand-ins for what needs devices
resume RUN    go on with such a run
"""

from __future__ import annotations

import json
import os
import shlex
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path

import ray
from rich.console import Console

from webrl.cluster.placement import check_node_count, release_layout, setup_mixed_layout
from webrl.cluster.ray_cluster import cluster_nodes, ray_cluster
from webrl.config import WebRLConfig, load_config
from webrl.errors import WebRLError
from webrl.launch import component_configs
from webrl.launch.system import Parts
from webrl.rehearse.engine import RehearsedEngine
from webrl.run.run import run_training
from webrl.servers.server_actor import ServerSpec

SERVER_ARGUMENTS = "WEBRL_REHEARSED_SERVER_ARGUMENTS"
"""Environment variable with further arguments of the servers without a model."""

_KEPT_FLAGS = ("--dtype", "--context-length", "--max-running-requests")
"""Arguments of a configured server that one without a model knows too."""


def rehearsed_server(spec: ServerSpec) -> ServerSpec:
    """Return how a server without a model is started in place of a configured one."""
    pairs = zip(spec.extra_args[::2], spec.extra_args[1::2], strict=False)
    kept = [word for pair in pairs if pair[0] in _KEPT_FLAGS for word in pair]
    further = shlex.split(os.environ.get(SERVER_ARGUMENTS, ""))
    return replace(
        spec,
        backend="embedded",
        module="webrl.rehearse.server",
        extra_args=(*kept, *further),
    )


REHEARSED = Parts(engine=RehearsedEngine, server=rehearsed_server, has_devices=False)
"""Stand-ins for what needs devices."""


def place(config: WebRLConfig) -> dict[str, dict[str, int]]:
    """Create the placement groups of every role on the joined cluster; return the counts of each node.

    Raises:
        PreflightError: They do not fit.
    """
    cluster = config.cluster
    check_node_count(cluster.n_nodes, cluster.n_gpus_per_node, cluster_nodes())
    roles = component_configs.role_specs(config, ray.cluster_resources().get("CPU", 1.0))
    placements = setup_mixed_layout(
        roles, gpus_per_node=cluster.n_gpus_per_node if cluster.num_gpus else None
    )
    address_of = {node.node_id: node.address for node in cluster_nodes()}
    held: dict[str, Counter[str]] = {address: Counter() for address in address_of.values()}
    for name, placement in placements.items():
        for node_id in placement.node_of_rank:
            held[address_of[node_id]][name] += 1
    release_layout(placements)
    return {address: dict(counts) for address, counts in sorted(held.items())}


def main(words: list[str]) -> int:
    """Do what the words say; return the exit code."""
    what, path = words
    console = Console(soft_wrap=True, highlight=False, markup=False, emoji=False)
    try:
        if what == "place":
            with ray_cluster(namespace="webrl-rehearsal"):
                console.print(json.dumps(place(load_config(path).config)))
            return 0
        file = Path(path) / "config.toml" if what == "resume" else Path(path)
        config = load_config(str(file)).config
        return run_training(config, resume=what == "resume", console=console, parts=REHEARSED)
    except WebRLError as error:
        console.print(f"webrl: {error}")
        return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
