"""One inference server as a child process: start, health, log tail, stop.

Invariants:
    * a server that ends during its start is noticed at once, with its exit code and log tail;
    * the process never outlives its owner, whose pipe is its standard input (see `lifeline`);
    * `stop` returns within its deadline, by SIGKILL at the end.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path

from webrl.cluster.worker_log import log_tail
from webrl.errors import ServerStartError

HEALTH_POLL_S = 0.1
"""Between two looks at a starting server."""

STOP_GRACE_S = 3.0
"""Between SIGTERM and SIGKILL."""

_DIRECT = urllib.request.build_opener(urllib.request.ProxyHandler({}))
"""Opens addresses itself: a proxy of the environment knows nothing of a run's own servers."""


def find_free_port(host: str) -> int:
    """Return a port that was free a moment ago on `host`."""
    with socket.socket() as probe:
        probe.bind((host, 0))
        return int(probe.getsockname()[1])


def embedded_command(
    model_path: str,
    host: str,
    port: int,
    *,
    seed: int,
    extra_args: Sequence[str] = (),
    module: str = "webrl.embedded",
) -> list[str]:
    """Return the command line of the embedded server, or of a module with its options."""
    return [
        sys.executable,
        "-m",
        module,
        "--model-path",
        model_path,
        "--host",
        host,
        "--port",
        str(port),
        "--seed",
        str(seed),
        "--end-with-stdin",
        *extra_args,
    ]


def sglang_command(
    model_path: str, host: str, port: int, *, seed: int, extra_args: Sequence[str] = ()
) -> list[str]:
    """Return the command line of a real SGLang server on the GPUs that this process sees."""
    return [
        sys.executable,
        "-m",
        "webrl.servers.sglang_main",
        "--model-path",
        model_path,
        "--host",
        host,
        "--port",
        str(port),
        "--skip-server-warmup",
        "--random-seed",
        str(seed),
        *extra_args,
    ]


class ServerProcess:
    """A running inference server and its log.

    Args:
        url: Base URL that the server will answer on.
        log_path: File that receives its standard output and error.
        env: Added to this process's environment.
        token: What the server asks for.
    """

    def __init__(
        self,
        command: Sequence[str],
        *,
        url: str,
        log_path: Path,
        env: Mapping[str, str] | None = None,
        token: str | None = None,
    ) -> None:
        """Launch the command; use `wait_until_healthy` before the first request."""
        self.url = url
        self._headers = {} if token is None else {"Authorization": f"Bearer {token}"}
        self._log_path = log_path
        log_path.parent.mkdir(parents=True, exist_ok=True)
        with log_path.open("ab") as log:
            self._process = subprocess.Popen(
                list(command),
                stdout=log,
                stderr=subprocess.STDOUT,
                stdin=subprocess.PIPE,
                env={**os.environ, **(env or {})},
                start_new_session=True,
            )

    @property
    def pid(self) -> int:
        """Return the server's process id."""
        return self._process.pid

    @property
    def is_alive(self) -> bool:
        """Return whether the process still runs."""
        return self._process.poll() is None

    def describe_death(self) -> str:
        """Return one sentence and the log tail about a server that has ended."""
        return (
            f"the server at {self.url} ended with code {self._process.poll()}; the end of "
            f"{self._log_path}:\n{log_tail(self._log_path)}"
        )

    def wait_until_healthy(self, timeout_s: float) -> None:
        """Return when `/health` answers 200.

        Raises:
            ServerStartError: The process ended, or was not healthy in time.
        """
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            if not self.is_alive:
                raise ServerStartError(self.describe_death())
            if self._answers():
                return
            time.sleep(HEALTH_POLL_S)
        tail = log_tail(self._log_path)
        self.stop()
        raise ServerStartError(
            f"the server at {self.url} was not healthy within {timeout_s:g} s; the end of "
            f"{self._log_path}:\n{tail}"
        )

    def _answers(self) -> bool:
        request = urllib.request.Request(f"{self.url}/health", headers=self._headers)
        try:
            with _DIRECT.open(request, timeout=2.0) as reply:
                return reply.status == 200
        except (urllib.error.URLError, OSError):
            return False

    def stop(self) -> None:
        """End the server and its children; harmless when it has ended already."""
        for sent, grace_s in ((signal.SIGTERM, STOP_GRACE_S), (signal.SIGKILL, STOP_GRACE_S)):
            if not self.is_alive:
                return
            try:
                os.killpg(self._process.pid, sent)
            except ProcessLookupError:
                return
            try:
                self._process.wait(timeout=grace_s)
            except subprocess.TimeoutExpired:
                continue
