"""Which processes of a run play which part."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import psutil

CONTROLLER = "controller"
"""The process of `webrl train` itself; after its death the run has to be resumed."""

_SERVERS = ("webrl.embedded", "webrl.servers.sglang_main")


def _is_browser(process: psutil.Process) -> bool:
    return "chrom" in process.name() and "--type=" not in " ".join(process.cmdline())


def _is_rollout_server(process: psutil.Process) -> bool:
    """Return whether it is a server of the rollout role: the log that it writes says so."""
    if not any(module in process.cmdline() for module in _SERVERS):
        return False
    return any("/rollout-" in file.path for file in process.open_files())


def _is_actor(name: str) -> Callable[[psutil.Process], bool]:
    return lambda process: f"ray::{name}" in " ".join(process.cmdline())


_TESTS: dict[str, Callable[[psutil.Process], bool]] = {
    "browser": _is_browser,
    "rollout worker": _is_actor("RolloutWorker"),
    "inference server": _is_rollout_server,
    "pixel store shard": _is_actor("ShardActor"),
    "trainer rank": _is_actor("UpdateEngine"),
}

KINDS = (*_TESTS, CONTROLLER)
"""What can be killed. Workers and browsers of the test rollout are among their kind."""


def find_targets(controller: psutil.Process, kind: str) -> list[psutil.Process]:
    """Return the living processes of a kind, oldest first.

    Args:
        controller: The run's process.
        kind: One of `KINDS`.
    """
    if kind == CONTROLLER:
        return [controller]
    found: list[psutil.Process] = []
    for process in _descendants(controller):
        try:
            if _TESTS[kind](process):
                found.append(process)
        except psutil.Error:
            continue  # It ended meanwhile.
    return sorted(found, key=lambda process: process.pid)


def _descendants(controller: psutil.Process) -> Sequence[psutil.Process]:
    try:
        return controller.children(recursive=True)
    except psutil.NoSuchProcess:
        return ()
