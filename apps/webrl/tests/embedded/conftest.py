"""One inference server for the whole test run, and the policy that it serves.

Each test runs against an embedded server over a tiny policy with random weights and, where the extra
`sglang` is installed, against a real SGLang over the same one (on its CPU engine without a GPU). To
take a server that runs already, name it and the folder that it was started with; it must be at those
weights:

    WEBRL_CONTRACT_URL=http://127.0.0.1:30000 WEBRL_CONTRACT_MODEL=/path/to/policy \
    WEBRL_CONTRACT_DTYPE=bfloat16 pytest -m sglang apps/webrl/tests/embedded/contract
"""

from __future__ import annotations

import asyncio
import importlib.util
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from awrl_rollout import SGLangClient
from serving import ServerUnderTest
from webrl.policy import InitPolicyConfig, PolicyProcessor, WarmupConfig, init_policy, load_policy
from webrl.servers.server_actor import InferenceServer, ServerSpec

NEEDS_SGLANG = pytest.mark.skipif(
    importlib.util.find_spec("sglang") is None and "WEBRL_CONTRACT_URL" not in os.environ,
    reason="the extra sglang is not installed",
)

START_S = 400.0
"""A real SGLang takes a minute to start on two quiet cores, and several on busy ones."""


_STOPS: list[Callable[[], None]] = []
"""Stop what the last test here leaves: an idle SGLang takes a fifth of a core from all later tests."""


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """Stop the real server once no test of this folder follows, after the last test's fixtures."""
    del item
    if nextitem is None or Path(__file__).parent not in nextitem.path.parents:
        for stop in _STOPS:
            stop()


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


@pytest.fixture(
    scope="session",
    params=[
        "embedded",
        "rehearsed",
        pytest.param("sglang", marks=[pytest.mark.sglang, NEEDS_SGLANG]),
    ],
)
def server(
    request: pytest.FixtureRequest, policy_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ServerUnderTest]:
    """The server under test: the embedded one, then a real SGLang where it is installed."""
    url = os.environ.get("WEBRL_CONTRACT_URL")
    if url and request.param != "sglang":
        pytest.skip("WEBRL_CONTRACT_URL names another server")
    if url:
        yield ServerUnderTest(
            url=url,
            model_path=Path(os.environ["WEBRL_CONTRACT_MODEL"]),
            dtype=getattr(torch, os.environ.get("WEBRL_CONTRACT_DTYPE", "bfloat16")),
            is_embedded=False,
        )
        return
    logs = tmp_path_factory.mktemp(f"server-{request.param}")
    if request.param != "sglang":
        has_model = request.param == "embedded"
        with embedded_server(policy_path, logs, has_model=has_model) as url:
            yield ServerUnderTest(
                url=url,
                model_path=policy_path,
                dtype=torch.float32,
                is_embedded=True,
                has_model=has_model,
            )
        return
    spec = ServerSpec(
        backend="sglang",
        model_path=str(policy_path),
        start_timeout_s=START_S,
        extra_args=("--dtype", "float32"),
    )
    supervisor = InferenceServer(spec, 0, "contract", str(logs))
    _STOPS.append(supervisor.stop)
    try:
        url = asyncio.run(supervisor.start())
        yield ServerUnderTest(
            url=url, model_path=policy_path, dtype=torch.float32, is_embedded=False
        )
    finally:
        supervisor.stop()


@contextmanager
def embedded_server(
    policy_path: Path, logs: Path, *arguments: str, has_model: bool = True
) -> Generator[str]:
    """Run an embedded server, or one without a model, with the options that the contract asks for."""
    port = free_port()
    module = "webrl.embedded" if has_model else "webrl.rehearse.server"
    command = [sys.executable, "-m", module, "--model-path", str(policy_path)]
    command += [] if has_model else ["--token-s", "0.002", "--prefill-s", "0"]
    command += ["--port", str(port), "--end-with-stdin", "--group-timeout-s", "20", *arguments]
    with (logs / "server.log").open("wb") as log:
        process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=log,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )
    url = f"http://127.0.0.1:{port}"
    try:
        asyncio.run(wait_until_healthy(url))
        yield url
    finally:
        process.terminate()
        process.wait(10)


NEEDS_MANY_CORES = pytest.mark.skipif(
    (os.cpu_count() or 1) < 8, reason="two ranks of a real SGLang start for minutes on few cores"
)


@pytest.fixture(
    params=[
        "embedded",
        pytest.param(
            "sglang",
            marks=[
                pytest.mark.sglang,
                NEEDS_SGLANG,
                NEEDS_MANY_CORES,
                pytest.mark.timeout(2 * START_S),
            ],
        ),
    ]
)
def two_device_server(
    request: pytest.FixtureRequest, policy_path: Path, tmp_path: Path
) -> Iterator[ServerUnderTest]:
    """A tensor parallel server of size 2: an embedded one that stands for one, then a real SGLang."""
    is_embedded = request.param == "embedded"
    if is_embedded:
        with embedded_server(policy_path, tmp_path, "--tp-size", "2") as url:
            yield ServerUnderTest(
                url=url, model_path=policy_path, dtype=torch.float32, is_embedded=True
            )
        return
    spec = ServerSpec(
        backend="sglang",
        model_path=str(policy_path),
        tp_size=2,
        start_timeout_s=START_S,
        extra_args=("--dtype", "float32"),
    )
    supervisor = InferenceServer(spec, 0, "two-devices", str(tmp_path))
    try:
        url = asyncio.run(supervisor.start())
        yield ServerUnderTest(
            url=url, model_path=policy_path, dtype=torch.float32, is_embedded=False
        )
    finally:
        supervisor.stop()


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
