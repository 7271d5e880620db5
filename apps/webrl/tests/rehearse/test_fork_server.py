"""Processes that are forked off one that has imported everything."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Generator
from pathlib import Path

import pytest
from webrl.rehearse import forked_python
from webrl.rehearse.forked_python import SOCKET_VARIABLE

CLIENT = [sys.executable, "-S", "-E", forked_python.__file__]


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Generator[dict[str, str]]:
    path = tmp_path_factory.mktemp("fork") / "socket"
    server = subprocess.Popen(
        [sys.executable, "-m", "webrl.rehearse.fork_server", str(path), "json"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert server.stdin is not None
    assert server.stdout is not None
    assert server.stdout.readline() == "ready\n"
    yield {**os.environ, SOCKET_VARIABLE: str(path), "OWN": "value"}
    server.stdin.close()
    assert server.wait(10) == 0


@pytest.fixture
def script(tmp_path: Path) -> Callable[[str], list[str]]:
    """Return what writes a script, and returns the command that runs it."""

    def command(text: str, *arguments: str) -> list[str]:
        path = tmp_path / "script.py"
        path.write_text(text)
        return [*CLIENT, str(path), *arguments]

    return command


def ended(command: list[str], environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=30, check=False
    )


def test_a_script_has_arguments_streams_environment_and_exit_code_of_its_own(
    environment: dict[str, str], script: Callable[..., list[str]]
) -> None:
    command = script(
        "import os, sys\n"
        "print(sys.argv[1:], os.environ['OWN'], __name__, 'json' in sys.modules)\n"
        "sys.stderr.write(sys.stdin.read())\n"
        "sys.exit(7)\n",
        "a b",
    )
    done = subprocess.run(
        command, env=environment, input="told", capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (7, "told")
    assert done.stdout == "['a b'] value __main__ True\n"


def test_a_module_runs_and_an_exception_is_printed(
    environment: dict[str, str], script: Callable[..., list[str]]
) -> None:
    assert ended([*CLIENT, "-m", "this"], environment).stdout.startswith("The Zen of Python")
    failed = ended(script("raise ValueError('broken')"), environment)
    assert failed.returncode == 1
    assert failed.stderr.endswith("ValueError: broken\n")


_SLEEPER = "import os, time\nprint(os.getpid(), flush=True)\ntime.sleep(300)\n"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
@pytest.mark.parametrize("victim", ["client", "forked"])
def test_both_processes_end_with_either(
    number: int, victim: str, environment: dict[str, str], script: Callable[..., list[str]]
) -> None:
    client = subprocess.Popen(
        script(_SLEEPER), env=environment, stdout=subprocess.PIPE, stdin=subprocess.PIPE, text=True
    )
    assert client.stdout is not None
    pid = int(client.stdout.readline())
    os.kill(client.pid if victim == "client" else pid, number)
    assert client.wait(10) != 0
    give_up_s = time.monotonic() + 30
    while Path(f"/proc/{pid}").exists():
        assert time.monotonic() < give_up_s, "the forked process lives on"
        time.sleep(0.01)
