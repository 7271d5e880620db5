"""Start, death and stop of an inference server's process."""

from __future__ import annotations

import os
import signal
import socket
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
from webrl.errors import ServerStartError
from webrl.servers.server_actor import ServerSpec
from webrl.servers.server_process import (
    ServerProcess,
    embedded_command,
    find_free_port,
    sglang_command,
)

SERVE = (
    "import http.server,sys;"
    "http.server.ThreadingHTTPServer(('127.0.0.1',int(sys.argv[1])),"
    "type('H',(http.server.BaseHTTPRequestHandler,),"
    "{'do_GET':lambda s:(s.send_response(200),s.end_headers())})).serve_forever()"
)


def test_a_launch_that_exits_at_once_is_an_error_with_its_code_and_log(
    tmp_path: Path,
) -> None:
    command = [sys.executable, "-c", "print('no such model'); raise SystemExit(7)"]
    server = ServerProcess(command, url="http://127.0.0.1:9", log_path=tmp_path / "s.log")
    with pytest.raises(ServerStartError, match=r"(?s)code 7.*no such model"):
        server.wait_until_healthy(30.0)


def test_a_silent_server_ends_at_its_deadline_and_is_stopped(tmp_path: Path) -> None:
    command = [sys.executable, "-c", "import threading; threading.Event().wait()"]
    url = f"http://127.0.0.1:{find_free_port('127.0.0.1')}"
    server = ServerProcess(command, url=url, log_path=tmp_path / "s.log")
    with pytest.raises(ServerStartError, match=r"not healthy within 0\.3 s"):
        server.wait_until_healthy(0.3)
    assert not server.is_alive


def test_a_healthy_server_is_used_and_stopped(tmp_path: Path) -> None:
    port = find_free_port("127.0.0.1")
    server = ServerProcess(
        [sys.executable, "-c", SERVE, str(port)],
        url=f"http://127.0.0.1:{port}",
        log_path=tmp_path / "logs" / "s.log",
    )
    server.wait_until_healthy(30.0)
    pid = server.pid
    server.stop()
    server.stop()
    assert not server.is_alive
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def test_a_proxy_of_the_environment_is_not_asked_for_a_server_of_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    port = find_free_port("127.0.0.1")
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy"):
        monkeypatch.setenv(name, f"http://127.0.0.1:{find_free_port('127.0.0.1')}")
    monkeypatch.delenv("no_proxy", raising=False)
    monkeypatch.delenv("NO_PROXY", raising=False)
    url = f"http://127.0.0.1:{port}"
    server = ServerProcess(
        [sys.executable, "-c", SERVE, str(port)], url=url, log_path=tmp_path / "s.log"
    )
    try:
        server.wait_until_healthy(30.0)
    finally:
        server.stop()


def test_no_two_lives_of_servers_share_a_seed_and_a_run_draws_the_same_again() -> None:
    def seeds(run_seed: int, version: int) -> list[int]:
        spec = ServerSpec(backend="sglang", model_path="p", seeds=(run_seed, version))
        return [spec.seed(index, life) for index in range(64) for life in range(4)]

    assert seeds(0, 0) == seeds(0, 0)
    every = [seed for run in (0, 1, 7) for version in (0, 20) for seed in seeds(run, version)]
    assert len(set(every)) == len(every)
    assert all(0 <= seed < 2**31 for seed in every)


@pytest.mark.parametrize("command", [embedded_command, sglang_command])
def test_a_server_is_told_its_seed(command: Callable[..., list[str]]) -> None:
    words = command("policy", "127.0.0.1", 1, seed=77, extra_args=("--dtype", "float32"))
    assert words[[word.endswith("seed") for word in words].index(True) + 1] == "77"


def test_children_of_a_killed_server_end_with_it(tmp_path: Path) -> None:
    """As SGLang's detokenizer, which its own server leaves behind when it is killed."""
    program = (
        "import subprocess, sys, threading;"
        "from webrl.lifeline import end_group_with;"
        "end_group_with(starter=False);"
        "wait = [sys.executable, '-c', 'import threading; threading.Event().wait()'];"
        "print(subprocess.Popen(wait).pid, flush=True);"
        "threading.Event().wait()"
    )
    log = tmp_path / "s.log"
    server = ServerProcess([sys.executable, "-c", program], url="http://127.0.0.1:9", log_path=log)
    deadline = time.monotonic() + 30
    while not log.read_text().strip():
        assert time.monotonic() < deadline
        time.sleep(0.01)
    child = psutil.Process(int(log.read_text()))
    os.kill(server.pid, signal.SIGKILL)
    psutil.wait_procs([child], timeout=30)
    assert not child.is_running() or child.status() == psutil.STATUS_ZOMBIE


def test_a_free_port_can_be_bound() -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", find_free_port("127.0.0.1")))
