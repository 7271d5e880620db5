"""Which processes of a run play which part."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import psutil

SHARD = "pixel store shard"

CONTROLLER = "controller"
"""The process of `webrl train` itself; after its death the run has to be resumed."""

NODE = "node"
"""A machine of the cluster: its raylet, and everything that runs under it."""

_FORKED_SERVER = "rehearse.server"
"""What the kernel calls a server that was forked off."""

_SERVERS = ("webrl.embedded", "webrl.rehearse.server", "webrl.servers.sglang_main")


def _words(process: psutil.Process) -> str:
    return " ".join(process.cmdline())


def _is_browser(process: psutil.Process) -> bool:
    return "chrom" in process.name() and "--type=" not in _words(process)


def _is_server(role: str) -> Callable[[psutil.Process], bool]:
    """Return whether a process is a server of a role: the log that it writes says so."""

    def is_server(process: psutil.Process) -> bool:
        is_named = any(module in process.cmdline() for module in _SERVERS)
        if not is_named and process.name() != _FORKED_SERVER:
            return False
        return any(f"/{role}-" in file.path for file in process.open_files())

    return is_server


def _is_actor(*names: str) -> Callable[[psutil.Process], bool]:
    return lambda process: any(f"ray::{name}" in _words(process) for name in names)


def _is_raylet(process: psutil.Process) -> bool:
    # The first node's own holds the cluster's controller too.
    return process.name() == "raylet" and "--head" not in process.cmdline()


_TESTS: dict[str, Callable[[psutil.Process], bool]] = {
    "browser": _is_browser,
    "rollout worker": _is_actor("RolloutWorker"),
    "inference server": _is_server("rollout"),
    SHARD: _is_actor("ShardActor"),
    "trainer rank": _is_actor("UpdateEngine", "RehearsedEngine"),
    "server supervisor": _is_actor("InferenceServer"),
    "test server": _is_server("test-rollout"),
    NODE: _is_raylet,
}

KINDS = (
    "browser",
    "rollout worker",
    "inference server",
    "pixel store shard",
    "trainer rank",
    CONTROLLER,
)
"""What can be killed of every run. Workers and browsers of the test rollout are among their kind."""

CLUSTER_KINDS = (*KINDS[:-1], "test server", "server supervisor", CONTROLLER, NODE)
"""What can be killed of a run with a test rollout on a cluster of several nodes."""


def find_targets(roots: Sequence[psutil.Process], kind: str) -> list[psutil.Process]:
    """Return the living processes of a kind, oldest first.

    Args:
        roots: The run's process, and any other below which its processes are.
        kind: One of `CLUSTER_KINDS`.
    """
    if kind == CONTROLLER:
        return list(roots[:1])
    found = {process.pid: process for process in _of_kind(roots, kind)}
    # Beside each server stands a small process of its own that ends with it.
    return [found[pid] for pid in sorted(found) if _parent_of(found[pid]) not in found]


def _parent_of(process: psutil.Process) -> int:
    try:
        return process.ppid()
    except psutil.Error:
        return 0


def _of_kind(roots: Sequence[psutil.Process], kind: str) -> Iterator[psutil.Process]:
    for root in roots:
        try:
            children = root.children(recursive=True)
        except psutil.NoSuchProcess:
            continue
        for process in children:
            try:
                if _TESTS[kind](process):
                    yield process
            except psutil.Error:
                continue  # It ended meanwhile.
