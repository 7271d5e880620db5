"""The server as a process: arguments, a taken port, its end, and its parent's end."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from awrl_rollout import GenerateRequest, ServerRefusedError, SGLangClient
from webrl.servers.server_actor import InferenceServer, ServerSpec

ENV = {**os.environ, "OMP_NUM_THREADS": "1"}


def start(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "webrl.embedded", *arguments],
        capture_output=True,
        text=True,
        env=ENV,
        timeout=120,
        check=False,
    )


def test_a_taken_port_is_told_before_the_model_is_loaded() -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        ended = start("--model-path", "/nowhere", "--port", str(port))
    assert ended.returncode == 2
    assert f"port {port} of 127.0.0.1 must be free, got: Address already in use" in ended.stderr
    assert "Traceback" not in ended.stderr


def test_a_wrong_setting_is_told_by_name() -> None:
    ended = start("--model-path", "/nowhere", "--max-running-requests", "0")
    assert ended.returncode == 2
    assert "max_running_requests must be >= 1, got 0" in ended.stderr


def test_an_unknown_argument_is_told_by_name() -> None:
    ended = start("--model-path", "/nowhere", "--max-running-request", "3", "--colour", "red")
    assert ended.returncode == 2
    assert "--colour" in ended.stderr


def test_a_folder_that_is_no_checkpoint_ends_the_process_with_a_clear_message(
    tmp_path: Path, unused_port: Callable[[], int]
) -> None:
    ended = start("--model-path", str(tmp_path), "--port", str(unused_port()))
    assert ended.returncode != 0
    assert "must be a checkpoint directory" in ended.stderr


def test_arguments_and_port_are_checked_without_torch() -> None:
    code = (
        "import sys, webrl.embedded.__main__\n"
        "assert not {'torch', 'transformers', 'ray'} & set(sys.modules), 'heavy import'"
    )
    subprocess.run([sys.executable, "-c", code], check=True, env=ENV, timeout=60)


def is_alive(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_a_server_ends_with_the_process_that_started_it() -> None:
    child = (
        "import time\n"
        "from webrl.lifeline import end_group_with\n"
        "end_group_with(starter=True)\n"
        "print('ready', flush=True)\n"
        "time.sleep(300)"
    )
    parent = (
        "import subprocess, sys\n"
        "pipe = subprocess.PIPE\n"
        f"child = subprocess.Popen([sys.executable, '-c', {child!r}], stdin=pipe, stdout=pipe)\n"
        "child.stdout.readline()\n"
        "print(child.pid, flush=True)\n"
        "sys.stdin.readline()"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", parent],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=ENV,
    )
    assert process.stdout is not None
    pid = int(process.stdout.readline())
    assert is_alive(pid)
    process.send_signal(signal.SIGKILL)
    process.wait(10)
    give_up = time.monotonic() + 60
    while is_alive(pid):
        assert time.monotonic() < give_up, "the orphan lives on"


@pytest.mark.slow
def test_servers_and_lives_draw_differently_and_a_run_draws_the_same_again(
    policy_path: Path, tmp_path: Path
) -> None:
    arguments = ("--context-length", "64", "--max-running-requests", "2")
    spec = ServerSpec(backend="embedded", model_path=str(policy_path), extra_args=arguments)

    async def draws(index: int, life: int) -> list[tuple[int, ...]]:
        server = InferenceServer(spec, index, f"server-{index}-{life}", str(tmp_path))
        try:
            async with SGLangClient(await server.start(life)) as client:
                with pytest.raises(ServerRefusedError, match=r"context length \(64 tokens\)"):
                    await client.generate(GenerateRequest(input_ids=[30] * 64, max_new_tokens=1))
                request = GenerateRequest(input_ids=[30, 31, 32], max_new_tokens=16)
                answers = [await client.generate(request) for _ in range(3)]
            return [tuple(answer.output_ids) for answer in answers]
        finally:
            server.stop()

    async def scenario() -> None:
        first, other, later = await draws(0, 0), await draws(1, 0), await draws(0, 1)
        assert len({*first, *other, *later}) == 9
        assert await draws(0, 0) == first

    asyncio.run(scenario())


async def is_running(client: SGLangClient) -> bool:
    states = (await client.server_info())["internal_states"]
    assert isinstance(states, list)
    return int(states[0]["num_running"]) > 0


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_a_server_with_requests_in_flight(
    policy_path: Path, unused_port: Callable[[], int], number: signal.Signals
) -> None:
    port = unused_port()
    command = [sys.executable, "-m", "webrl.embedded", "--model-path", str(policy_path)]
    process = subprocess.Popen([*command, "--port", str(port)], env=ENV)

    async def scenario() -> None:
        async with SGLangClient(f"http://127.0.0.1:{port}") as client:
            await client.wait_until_healthy(deadline_s=240)
            request = GenerateRequest(input_ids=[30, 31, 32], max_new_tokens=4000)
            async with asyncio.TaskGroup() as group:
                task = group.create_task(client.generate(request))
                while not await is_running(client):
                    pass
                process.send_signal(number)
                result = await task
            assert result.stop_reason in ("abort", "stop")

    try:
        asyncio.run(scenario())
        assert process.wait(10) == 0
    finally:
        process.kill()
        process.wait(10)
