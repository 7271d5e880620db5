"""A process that has imported what a run's processes need, and forks each of them off.

Invariants:

* a forked process runs what its `forked_python` was told to, with that one's environment, folder and
  standard streams, and shares the memory of the imports;
* it ends with that `forked_python`, however this ends;
* the server itself is single-threaded and holds no connection open but while it reads a request; it
  imports nothing that reads the environment of its process, as Ray does.

With 48 inference servers, each takes 14 MB of its own then in place of 290; a Ray worker that imports
the policy takes 56 in place of 400.
"""

from __future__ import annotations

import array
import contextlib
import gc
import importlib
import logging
import os
import runpy
import select
import shlex
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import traceback
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from webrl.errors import PreflightError
from webrl.rehearse import forked_python
from webrl.rehearse.forked_python import SOCKET_VARIABLE

logger = logging.getLogger(__name__)

MODULES = (
    "aiohttp",
    "awrl_rollout",
    "awrl_trainer.hf",
    "awrl_trainer.testing.nudging",
    "playwright.async_api",
    "webrl.policy",
    "webrl.rehearse.scripted",
)
"""What servers, ranks and rollout workers have in common."""

FORKED_VARIABLE = "WEBRL_FORKED"
"""Environment variable with the process id of a process that was forked off."""

_COMM_LENGTH = 15
"""Characters that the kernel keeps of a process's name."""

_ENDED = 1
"""Exit code of a process that an exception ended."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ForkServer:
    """A fork server that runs."""

    pid: int
    """Its process: that of every forked one's parent."""
    environment: Mapping[str, str]
    """Variables: a process that joins Ray with them has its workers forked, and so are servers without
    a model that they start."""


@contextmanager
def forking() -> Generator[ForkServer]:
    """Run a fork server for the block.

    Raises:
        PreflightError: It did not start.
    """
    with tempfile.TemporaryDirectory(prefix="webrl-") as folder:
        path = f"{folder}/fork"
        process = subprocess.Popen(
            [sys.executable, "-m", "webrl.rehearse.fork_server", path, *MODULES],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            if not process.stdout.readline():
                raise PreflightError(
                    "the fork server must start, got its end. Its error stands above this one."
                )
            hook = {"RAY_RUNTIME_ENV_HOOK": f"{__name__}.run_forked"}
            yield ForkServer(pid=process.pid, environment={SOCKET_VARIABLE: path, **hook})
        finally:
            process.stdin.close()
            process.stdout.close()
            process.wait()


def run_forked(runtime_env: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return the environment of Ray's workers with which they are forked; Ray calls it."""
    given = dict(runtime_env or {})
    variables = {**given.get("env_vars", {}), SOCKET_VARIABLE: os.environ[SOCKET_VARIABLE]}
    return {**given, "env_vars": variables, "py_executable": shlex.join(_COMMAND)}


def fork_instead(module: str, arguments: Sequence[str]) -> None:
    """Go on as the `forked_python` of this module, where there is a fork server; else return."""
    if SOCKET_VARIABLE in os.environ and os.environ.get(FORKED_VARIABLE) != str(os.getpid()):
        os.execv(_COMMAND[0], [*_COMMAND, "-m", module, *arguments])


_COMMAND = [sys.executable, "-S", "-E", forked_python.__file__]


def main(arguments: Sequence[str] | None = None) -> int:
    """Import the modules, listen, print a line, and fork until standard input closes.

    Args:
        arguments: Path of the socket, then names of modules; those of this process when None.
    """
    path, *modules = sys.argv[1:] if arguments is None else arguments
    for module in modules:
        importlib.import_module(module)
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(path)
    listener.listen(1024)
    # Children are reaped by the kernel: whoever asked for one is told by the child itself.
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    gc.collect()
    gc.freeze()
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    while True:
        ready, _, _ = select.select([listener, sys.stdin], [], [])
        if sys.stdin in ready:
            return os.EX_OK
        connection, _ = listener.accept()
        with connection:
            _fork(listener, connection)


def _fork(listener: socket.socket, connection: socket.socket) -> None:
    connection.settimeout(10.0)
    try:
        folder, arguments, environment, streams = _request(connection)
    except (OSError, ValueError) as error:
        logger.warning("a request was cut short: %s", error)
        return
    if os.fork() == 0:
        listener.close()
        _become(connection, folder, arguments, environment, streams)
    for stream in streams:
        os.close(stream)


def _request(
    connection: socket.socket,
) -> tuple[str, list[str], dict[str, str], list[int]]:
    """Return folder, arguments, environment and standard streams of what is to run."""
    streams = array.array("i")
    head, ancillary, _, _ = connection.recvmsg(8, socket.CMSG_SPACE(3 * streams.itemsize))
    for level, kind, data in ancillary:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
            streams.frombytes(data)
    wanted, body = int.from_bytes(head, "big"), b""
    while len(body) < wanted:
        part = connection.recv(wanted - len(body))
        if not part:
            raise ValueError(f"a request must have {wanted} bytes, got {len(body)}")
        body += part
    folder, count, *rest = body.decode("utf-8", "surrogateescape").split("\0")
    arguments = rest[: int(count)]
    pairs = (entry.partition("=") for entry in rest[int(count) :])
    return folder, arguments, {name: value for name, _, value in pairs}, list(streams)


def _become(
    connection: socket.socket,
    folder: str,
    arguments: list[str],
    environment: dict[str, str],
    streams: list[int],
) -> NoReturn:
    """Run the command line in this process, and end it."""
    os.setsid()
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment, **{FORKED_VARIABLE: str(os.getpid())})
    # Its command line stays the fork server's; this is what `ps` shows beside it.
    Path("/proc/self/comm").write_text(arguments[:2][-1].rpartition("/")[2][-_COMM_LENGTH:])
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    connection.settimeout(None)
    connection.sendall(os.getpid().to_bytes(8, "big"))
    # A thread: it must notice the end of the other process whatever this one is in.
    threading.Thread(target=_end_with, args=(connection,), daemon=True).start()  # noqa: TID251
    code = _run(arguments)
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    connection.sendall(bytes([code]))
    os._exit(code)


def _end_with(connection: socket.socket) -> None:
    """End this process and its group once the other side of the connection is gone."""
    with contextlib.suppress(OSError):
        connection.recv(1)
    os.killpg(0, signal.SIGKILL)


def _run(arguments: list[str]) -> int:
    """Run a module or a script as the interpreter would; return its exit code."""
    try:
        if arguments[0] == "-m":
            sys.argv = arguments[1:]
            runpy.run_module(arguments[1], run_name="__main__", alter_sys=True)
        else:
            sys.argv = arguments
            sys.path[0] = os.path.dirname(arguments[0])
            runpy.run_path(arguments[0], run_name="__main__")
    except SystemExit as error:
        if error.code is None or isinstance(error.code, int):
            return error.code or 0
        sys.stderr.write(f"{error.code}\n")
        return _ENDED
    except BaseException:  # noqa: BLE001 - the boundary: the interpreter prints it, and ends
        traceback.print_exc()
        return _ENDED
    return 0


if __name__ == "__main__":
    sys.exit(main())
