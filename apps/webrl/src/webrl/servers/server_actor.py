"""The Ray actor that owns one inference server of a role (`rollout` or `test-rollout`)."""

from __future__ import annotations

import asyncio
import base64
import io
import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from awrl_rollout import GenerateRequest, RolloutError, SGLangClientConfig
from PIL import Image

from webrl.cluster.network import LOCAL, NetworkConfig
from webrl.embedded.config import TOKEN_VARIABLE
from webrl.errors import ServerStartError
from webrl.servers.server_process import (
    ServerProcess,
    embedded_command,
    find_free_port,
    sglang_command,
)
from webrl.servers.sglang_cpu import CPU_ARGUMENTS, build_cpu_shims, has_gpu_driver

_WARM_UP_SIZE = (160, 224)
"""Pixels of the first picture."""

START_ATTEMPTS = 3
"""A port picked, released and taken by another costs one attempt."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ServerSpec:
    """How to start one inference server."""

    backend: str
    """`embedded` or `sglang`."""
    module: str = "webrl.embedded"
    """What `embedded` runs."""
    model_path: str
    """Local checkpoint directory."""
    network: NetworkConfig = LOCAL
    """Where to listen, and what to ask for."""
    num_threads: int = 1
    """Torch threads of an embedded server."""
    start_timeout_s: float = 120.0
    """Deadline for the first healthy answer, in seconds."""
    tp_size: int = 1
    """Tensor-parallel size: devices of one server."""
    base_port: int = 0
    """Port of the first server of the run, the others follow; 0 lets the system choose."""
    extra_args: tuple[str, ...] = ()
    """Further arguments of its program."""
    env_vars: tuple[tuple[str, str], ...] = ()
    """Names and values that its environment has besides."""
    seeds: tuple[int, ...] = (0,)
    """What all draws of a server follow from, together with its number and its life: the run's seed,
    and the version that the run went on from."""

    def seed(self, index: int, life: int) -> int:
        """Return the seed of server `index` in its `life`-th life: no two of a run are equal."""
        sequence = np.random.SeedSequence((*self.seeds, index, life))
        # SGLang seeds NumPy with it, which takes 32 bits; a sign is no part of it.
        return int(sequence.generate_state(1)[0] >> 1)

    @property
    def environment(self) -> dict[str, str]:
        """Return what the server's process gets in its environment.

        SGLang keeps the vision tower's output by image and no update clears it, so a screenshot that
        comes back after an update of a trained vision tower would get log-probs of other weights.
        Its `/health` would generate a token, which a paused server does not: it says here whether it
        is up, and the first request of `start` whether it generates. After a crash of its scheduler it
        would stay for a minute to dump the GPU's memory, and its death go unnoticed.
        """
        return {
            **dict(self.env_vars),
            "OMP_NUM_THREADS": str(self.num_threads),
            "SGLANG_VLM_CACHE_SIZE_MB": "0",
            "SGLANG_ENABLE_HEALTH_ENDPOINT_GENERATION": "0",
            "SGLANG_CUDA_COREDUMP_BEFORE_CRASH": "0",
            TOKEN_VARIABLE: self.network.token or "",
        }


class InferenceServer:
    """Supervises one server process; the class behind the Ray actor.

    Args:
        index: Number of the server over all roles; added to a given base port.
        name: Name for its log file, such as `rollout-0`.
    """

    def __init__(self, spec: ServerSpec, index: int, name: str, log_dir: str) -> None:
        self._spec = spec
        self._index = index
        self._log_path = Path(log_dir) / f"{name}.log"
        self._process: ServerProcess | None = None

    async def start(self, life: int = 0) -> str:
        """Start (or restart) the server and return its base URL once it has answered a request.

        Args:
            life: How often it was started before; another life draws other tokens.

        Raises:
            ServerStartError: It ended or was not healthy in time; the log's tail is attached.
        """
        for attempt in range(START_ATTEMPTS):
            self.stop()
            spec = self._spec
            host = spec.network.host()
            port = spec.base_port + self._index if spec.base_port else find_free_port(host)
            command, environment = await asyncio.to_thread(self._launch, host, port, life)
            self._process = ServerProcess(
                command,
                url=f"http://{host}:{port}",
                log_path=self._log_path,
                env=spec.network.environment() | environment,
                token=spec.network.token,
            )
            try:
                await asyncio.to_thread(self._process.wait_until_healthy, spec.start_timeout_s)
                if spec.backend == "sglang":
                    await _warm_up(self._process, spec)
            except ServerStartError as error:
                if "in use" not in str(error) or attempt == START_ATTEMPTS - 1:
                    raise
            else:
                return self._process.url
        raise AssertionError("unreachable: the last attempt returns or raises")

    def _launch(self, host: str, port: int, life: int) -> tuple[list[str], dict[str, str]]:
        """Return command line and environment of the server."""
        spec = self._spec
        seed = spec.seed(self._index, life)
        arguments = (*spec.extra_args, "--tp-size", str(spec.tp_size))
        if spec.backend == "embedded":
            arguments = (*arguments, "--num-threads", str(spec.num_threads))
            command = embedded_command(
                spec.model_path,
                host,
                port,
                seed=seed,
                extra_args=arguments,
                module=spec.module,
            )
            return command, spec.environment
        environment = spec.environment
        if not has_gpu_driver():
            arguments += CPU_ARGUMENTS
            environment |= build_cpu_shims(
                self._log_path.parent / "sglang-cpu", tp_size=spec.tp_size
            )
        command = sglang_command(spec.model_path, host, port, seed=seed, extra_args=arguments)
        return command, environment

    async def check(self) -> str | None:
        """Return None while the server runs, else a description of its death."""
        if self._process is None:
            return "the server was never started"
        return None if self._process.is_alive else self._process.describe_death()

    async def pid(self) -> int | None:
        """Return the server's process id, None before its start."""
        return self._process.pid if self._process else None

    def stop(self) -> None:
        """End the server process."""
        if self._process is not None:
            self._process.stop()
            self._process = None


async def _warm_up(process: ServerProcess, spec: ServerSpec) -> None:
    """Send the first request with an image: SGLang compiles kernels and imports its processors then.

    Raises:
        ServerStartError: It had no answer in time.
    """
    config = json.loads((Path(spec.model_path) / "config.json").read_text(encoding="utf-8"))
    names = ("vision_start_token_id", "image_token_id", "vision_end_token_id")
    picture = io.BytesIO()
    Image.new("RGB", _WARM_UP_SIZE, "white").save(picture, format="PNG")
    request = GenerateRequest(
        input_ids=[config[name] for name in names],
        images=[base64.b64encode(picture.getvalue()).decode()],
        max_new_tokens=2,
    )
    limits = SGLangClientConfig(generate_deadline_s=spec.start_timeout_s)
    try:
        async with spec.network.client(process.url, limits) as client:
            await client.generate(request)
    except RolloutError as error:
        death = "" if process.is_alive else f"\n{process.describe_death()}"
        raise ServerStartError(f"the first request failed: {error}{death}") from error
