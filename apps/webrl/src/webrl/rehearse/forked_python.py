"""A stand-in for the Python interpreter: what it is to run is forked off a fork server.

    FORK_SERVER=/path/to/socket python -S -E forked_python.py -m module argument ...

It passes on its arguments, environment, folder and standard streams, hands on SIGTERM and SIGINT, ends
as the process that it stands for ends, and takes that process with it when it is killed. Only small
modules of the standard library are imported: it stays alive beside every process that it stands for.
"""

from __future__ import annotations

import array
import contextlib
import os
import signal
import socket
import sys

SOCKET_VARIABLE = "WEBRL_FORK_SERVER"
"""Environment variable with the fork server's socket."""


def main() -> int:
    """Have the command line run by the fork server; return its exit code."""
    connection = socket.socket(socket.AF_UNIX)
    connection.connect(os.environ[SOCKET_VARIABLE])
    parts = [os.getcwd(), str(len(sys.argv) - 1), *sys.argv[1:]]
    parts += [f"{name}={value}" for name, value in os.environ.items()]
    body = "\0".join(parts).encode("utf-8", "surrogateescape")
    streams = array.array("i", [0, 1, 2])
    connection.sendmsg(
        [len(body).to_bytes(8, "big")], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, streams)]
    )
    connection.sendall(body)
    pid = int.from_bytes(_read(connection, 8) or b"", "big")
    if not pid:
        return 1
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda number, _: _hand_on(pid, number))
    code = _read(connection, 1)
    return 128 + signal.SIGKILL if code is None else code[0]


def _hand_on(pid: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


def _read(connection: socket.socket, count: int) -> bytes | None:
    """Return so many bytes; None when the other side has ended before."""
    body = b""
    while len(body) < count:
        try:
            part = connection.recv(count - len(body))
        except ConnectionError:
            return None
        if not part:
            return None
        body += part
    return body


if __name__ == "__main__":
    sys.exit(main())
