"""Starts a Ray cluster on this machine whose nodes have addresses of their own, and ends with its input.

The first node has no CPU, so whoever joins there has every worker on another node.
"""

from __future__ import annotations

import sys
from typing import Any, cast

from ray.cluster_utils import Cluster

ADDRESSES = ("127.0.0.2", "127.0.0.3", "127.0.0.4")
"""The first node has the machine's own address, under which Ray looks for its controller."""


def add_node(cluster: Cluster, **arguments: object) -> Any:
    arguments |= {"object_store_memory": 80 << 20, "include_dashboard": False}
    return cluster.add_node(include_log_monitor=False, **cast("Any", arguments))


def main() -> None:
    cluster = Cluster()
    try:
        head = add_node(cluster, num_cpus=0)
        for address in ADDRESSES:
            add_node(cluster, num_cpus=1, node_ip_address=address)
        sys.stdout.write(f"{cluster.address} {head.get_session_dir_path()}\n")
        sys.stdout.flush()
        sys.stdin.read()
    finally:
        cluster.shutdown()


if __name__ == "__main__":
    main()
