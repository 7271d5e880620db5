"""One inference server for the whole test run, and the policy that it serves.

By default an embedded server is started over a tiny policy with random weights. To run the contract
suite against another server, such as a real SGLang, name both the server and the folder that it was
started with; it must be at those weights:

    WEBRL_CONTRACT_URL=http://127.0.0.1:30000 WEBRL_CONTRACT_MODEL=/path/to/policy \
    WEBRL_CONTRACT_DTYPE=bfloat16 pytest apps/webrl/tests/embedded/contract
"""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from awrl_rollout import SGLangClient
from webrl.embedded.testing import ServerUnderTest
from webrl.policy import InitPolicyConfig, PolicyProcessor, WarmupConfig, init_policy, load_policy


def free_port() -> int:
    """Return a port that was free a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


async def wait_until_healthy(url: str) -> None:
    """Return once the server answers."""
    async with SGLangClient(url) as client:
        await client.wait_until_healthy(deadline_s=240)


@pytest.fixture(scope="session")
def policy_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of a tiny policy with random weights."""
    path = tmp_path_factory.mktemp("policy")
    init_policy(path, InitPolicyConfig(warmup=WarmupConfig(num_updates=0)))
    return path


@pytest.fixture(scope="session")
def server(
    policy_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ServerUnderTest]:
    """The server under test."""
    url = os.environ.get("WEBRL_CONTRACT_URL")
    if url:
        yield ServerUnderTest(
            url=url,
            model_path=Path(os.environ["WEBRL_CONTRACT_MODEL"]),
            dtype=getattr(torch, os.environ.get("WEBRL_CONTRACT_DTYPE", "bfloat16")),
            is_embedded=False,
        )
        return
    port = free_port()
    log_path = tmp_path_factory.mktemp("server") / "server.log"
    command = [sys.executable, "-m", "webrl.embedded", "--model-path", str(policy_path)]
    command += ["--port", str(port), "--watch-parent", "--group-timeout-s", "20"]
    with log_path.open("wb") as log:
        process = subprocess.Popen(
            command, stdout=log, stderr=log, env={**os.environ, "OMP_NUM_THREADS": "1"}
        )
    url = f"http://127.0.0.1:{port}"
    try:
        asyncio.run(wait_until_healthy(url))
        yield ServerUnderTest(
            url=url, model_path=policy_path, dtype=torch.float32, is_embedded=True
        )
    finally:
        process.terminate()
        process.wait(10)


@pytest.fixture(scope="session")
def processor(server: ServerUnderTest) -> PolicyProcessor:
    """The processor of the policy under test."""
    return PolicyProcessor.from_pretrained(server.model_path)


@pytest.fixture
def reference(server: ServerUnderTest) -> torch.nn.Module:
    """A model of its own with the server's first weights."""
    torch.set_num_threads(1)
    return load_policy(server.model_path, server.dtype).requires_grad_(False)


@pytest.fixture
def unused_port() -> Callable[[], int]:
    """A function that returns a free port."""
    return free_port
