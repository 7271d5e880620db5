"""What `webrl doctor --run` finds out: each part of a run does its work once, in the small.

Invariants: a part that fails is a check that says so, whatever it raised; nothing outlives the
check, on disk or as a process.
"""

from __future__ import annotations

import asyncio
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from webrl.embedded.config import TOKEN_VARIABLE
from webrl.errors import ServerStartError
from webrl.machine_check import Check, check_browser, check_browser_start
from webrl.server_check import check_server
from webrl.servers.server_process import ServerProcess, embedded_command, find_free_port

_START_S = 180.0
"""Deadline of a server's start: torch and transformers take long to import the first time."""
_ANSWER_S = 120.0
"""Deadline of one Ray actor's answer."""
_HOST = "127.0.0.1"


def check_run() -> Iterator[Check]:
    """Yield one check for each part of a run, as soon as it is done; takes about half a minute.

    A part that needs one that failed is left out.
    """
    with tempfile.TemporaryDirectory(prefix="webrl-doctor-") as scratch:
        policy = Path(scratch) / "policy"
        made = _timed("policy", lambda: _make_policy(policy))
        yield made
        if made.is_ok:
            yield from _server_checks(policy, Path(scratch) / "server.log")
    yield _timed("ray", _ask_actor)
    yield _timed("page", _open_page)


def _timed(name: str, work: Callable[[], Check | str]) -> Check:
    """Return what a part's work found, with its seconds; what it raised is what was found."""
    started = time.monotonic()
    try:
        found = work()
    # Any error of a part is the finding that this check is for, those of foreign packages first.
    except Exception as error:  # noqa: BLE001
        lines = str(error).strip() or "no message"
        found = Check(name, False, f"{type(error).__name__}: {lines}")
    check = Check(name, True, found) if isinstance(found, str) else found
    return replace(check, name=name, detail=f"{check.detail} ({time.monotonic() - started:.1f} s)")


def _make_policy(folder: Path) -> str:
    # torch and transformers take seconds to import, and may be what is broken.
    from webrl.policy import InitPolicyConfig, WarmupConfig, init_policy  # noqa: PLC0415

    init_policy(folder, InitPolicyConfig(warmup=replace(WarmupConfig(), num_updates=1)))
    return "a tiny one made, one update"


def _server_checks(policy: Path, log: Path) -> Iterator[Check]:
    port = find_free_port(_HOST)
    server = ServerProcess(
        embedded_command(str(policy), _HOST, port, seed=0),
        url=f"http://{_HOST}:{port}",
        log_path=log,
        token=os.environ.get(TOKEN_VARIABLE),
    )

    def start() -> str:
        server.wait_until_healthy(_START_S)
        return "an embedded one answers"

    try:
        started = _timed("server", start)
        yield started
        if started.is_ok:
            yield _timed("generation", lambda: _generate(server))
    finally:
        server.stop()


def _generate(server: ServerProcess) -> Check:
    checks = asyncio.run(check_server(server.url))
    failed = next((check for check in checks if not check.is_ok), None)
    if failed is None:
        return Check(
            "generation", True, f"{len(checks) - 1} kinds of requests, log-probs as the trainer's"
        )
    if not server.is_alive:
        raise ServerStartError(server.describe_death())
    return failed


def _ask_actor() -> str:
    # Ray takes a second to import, and may be what is broken.
    import ray  # noqa: PLC0415

    from webrl.cluster.ray_cluster import ray_cluster  # noqa: PLC0415

    with ray_cluster(namespace=f"webrl-doctor-{os.getpid()}"):
        actor_class: Any = ray.remote(_Answering)
        actor = actor_class.options(num_cpus=0).remote()
        ray.get(actor.answer.remote(), timeout=_ANSWER_S)
    return "an actor answers"


class _Answering:
    def answer(self) -> bool:
        return True


def _open_page() -> Check:
    browser = check_browser()
    return asyncio.run(check_browser_start(browser.detail)) if browser.is_ok else browser
