"""A run whose controller, server, trainer and browsers are on four nodes of a real Ray cluster."""

from __future__ import annotations

import os
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from webrl.embedded.config import TOKEN_VARIABLE

pytestmark = [pytest.mark.slow, pytest.mark.ray, pytest.mark.browser, pytest.mark.timeout(600)]

PROGRAM = Path(__file__).with_name("multi_node_program.py")
RAY_SETTINGS = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_enable_metrics_collection": "0",
    "RAY_raylet_start_wait_time_s": "120",
}


@pytest.fixture
def cluster() -> Iterator[tuple[str, Path]]:
    """Address of a cluster of four nodes, and the folder of its logs."""
    program = subprocess.Popen(
        [sys.executable, "-W", "ignore", str(PROGRAM)],
        env={**os.environ, **RAY_SETTINGS},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert program.stdout is not None
        address, _, session = program.stdout.readline().strip().partition(" ")
        assert session
        yield address, Path(session)
    finally:
        program.communicate(timeout=60)


def test_a_run_over_four_nodes_trains_and_its_servers_ask_for_a_token(
    policy: Path, runs: Any, tmp_path: Path, cluster: tuple[str, Path]
) -> None:
    address, session = cluster
    run_dir = tmp_path / "run"
    process = runs.start(
        *("--config", "laptop", f"run_dir={run_dir}", f"policy.path={policy}"),
        *("total_steps=3", "test_rollout.enabled=false", *runs.small),
        RAY_ADDRESS=address,
    )
    seen: list[str] = []
    for line in process.stdout:
        seen.append(line)
        if " version 1" in line:
            break
    server = next(
        child
        for child in psutil.process_iter(["cmdline"])
        if "webrl.embedded" in (words := child.info["cmdline"] or []) and str(policy) in words
    )
    token = server.environ()[TOKEN_VARIABLE]
    words = server.cmdline()
    host, port = (words[words.index(flag) + 1] for flag in ("--host", "--port"))
    assert host in ("127.0.0.2", "127.0.0.3", "127.0.0.4")
    paths = ("/health", "/get_server_info", "/pause_generation", "/init_weights_update_group")
    for wrong in (None, "", "no-token", token[:-1]):
        assert [status(f"http://{host}:{port}{path}", wrong) for path in paths] == [401] * 4
    assert status(f"http://{host}:{port}/health", token) == 200
    arguments = [
        " ".join(child.info["cmdline"] or []) for child in psutil.process_iter(["cmdline"])
    ]

    text = "".join(seen) + process.communicate(timeout=300)[0]
    assert process.returncode == 0, text
    assert [step["weights/version"] for step in runs.lines(run_dir)] == [1, 2, 3]
    assert not any(token in words for words in arguments)
    assert token not in text
    files = [file for root in (run_dir, session / "logs") for file in root.rglob("*")]
    assert (run_dir / "logs" / "rollout-0.log") in files
    for file in files:
        assert not file.is_file() or token.encode() not in file.read_bytes(), file


def status(url: str, token: str | None) -> int:
    """Return how a request is answered."""
    headers = {} if token is None else {"Authorization": f"Bearer {token}"}
    try:
        with urllib.request.urlopen(urllib.request.Request(url, headers=headers)) as answer:
            return answer.status
    except urllib.error.HTTPError as error:
        return error.code
