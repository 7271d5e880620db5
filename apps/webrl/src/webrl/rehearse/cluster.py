"""A Ray cluster of several nodes on this machine, with declared devices and addresses of their own.

`python -m webrl.rehearse.cluster NODES CPUS GPUS` runs one until its input ends. The declared devices do
not exist: whoever is placed on them must not touch them.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Generator, Mapping
from dataclasses import dataclass
from typing import Any, cast

import psutil

from webrl.cluster.ray_cluster import AUTH_MODE, LOCAL_ENVIRONMENT
from webrl.errors import PreflightError

START_DEADLINE_S = 300.0
"""Of the whole cluster: a raylet takes seconds on a busy machine."""

STOP_DEADLINE_S = 60.0

OBJECT_STORE_BYTES = 80 << 20
"""Of one node: only keys and token ids travel through it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class DeclaredCluster:
    """A cluster that runs."""

    address: str
    """What `RAY_ADDRESS` is to be."""
    process: psutil.Process
    """Below it are all nodes, and all workers on them."""

    @property
    def environment(self) -> dict[str, str]:
        """Return what a program needs in its environment to join."""
        return {**LOCAL_ENVIRONMENT, AUTH_MODE: "disabled", "RAY_ADDRESS": self.address}


@contextlib.contextmanager
def declared_cluster(
    *, num_nodes: int, num_cpus: int, num_gpus: int, environment: Mapping[str, str]
) -> Generator[DeclaredCluster]:
    """Run a cluster for as long as the block lasts.

    Args:
        num_cpus: Declared by each node.
        num_gpus: Declared by each node.
        environment: Added to that of every worker.

    Raises:
        PreflightError: It did not start.
    """
    settings = {"RAY_raylet_start_wait_time_s": "120", AUTH_MODE: "disabled"}
    words = ("-W", "ignore", "-m", "webrl.rehearse.cluster", num_nodes, num_cpus, num_gpus)
    process = subprocess.Popen(
        [sys.executable, *map(str, words)],
        env={**os.environ, **LOCAL_ENVIRONMENT, **settings, **environment},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        start_new_session=True,
    )
    try:
        assert process.stdout is not None
        address = process.stdout.readline().strip()
        if not address:
            raise PreflightError(
                f"a cluster of {num_nodes} nodes must start on this machine, got none. Free memory, or "
                "rehearse with fewer --nodes."
            )
        yield DeclaredCluster(address=address, process=psutil.Process(process.pid))
    finally:
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.communicate(timeout=STOP_DEADLINE_S)
        if process.poll() is None:
            for child in psutil.Process(process.pid).children(recursive=True):
                with contextlib.suppress(psutil.NoSuchProcess):
                    child.kill()
            process.kill()
            process.wait()


def main(words: list[str]) -> None:
    """Start the nodes, print the address, and stop when the input ends."""
    from ray.cluster_utils import Cluster  # noqa: PLC0415

    num_nodes, num_cpus, num_gpus = map(int, words)
    cluster = Cluster()
    try:
        for number in range(num_nodes):
            # The first one has the machine's own address, under which Ray looks for its controller.
            address = {"node_ip_address": f"127.0.0.{number + 1}"} if number else {}
            arguments: dict[str, Any] = {
                "num_cpus": num_cpus,
                "num_gpus": num_gpus,
                "object_store_memory": OBJECT_STORE_BYTES,
                "include_dashboard": False,
                **address,
            }
            cluster.add_node(include_log_monitor=False, **cast("Any", arguments))
        # A raylet that is killed must be gone, not a zombie: its workers look whether it lives.
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)
        sys.stdout.write(f"{cluster.address}\n")
        sys.stdout.flush()
        sys.stdin.read()
    finally:
        cluster.shutdown()


if __name__ == "__main__":
    main(sys.argv[1:])
