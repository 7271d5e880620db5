"""The started parts of a run, and how its inference servers start, the first time and again."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from awrl_pixelstore import PixelStoreClient
from awrl_rollout import SGLangClient

from webrl.cluster.network import Reach
from webrl.cluster.scheduler import RayScheduler, WorkerHandle, call_worker
from webrl.config import WebRLConfig
from webrl.errors import EngineCallError, WorkerLostError
from webrl.launch import component_configs
from webrl.policy import PolicyProcessor
from webrl.servers.server_actor import InferenceServerActor, ServerSpec
from webrl.training.publishing import SGLangReceiver

PROBE_DEADLINE_S = 5.0
"""For a rank to say that it lives, once another one's call has failed."""


@dataclass(kw_only=True)
class System:
    """The started parts of a run."""

    scheduler: RayScheduler
    """Placed the roles."""
    pixels: PixelStoreClient
    """The run's PixelStore."""
    processor: PolicyProcessor
    """Prompts, image tokens, decoding."""
    server_spec: ServerSpec
    """How every server is started."""
    log_dir: Path
    """Folder of the servers' logs."""
    ranks: list[WorkerHandle] = field(default_factory=list[WorkerHandle])
    """Update engine, rank 0 first."""
    servers: list[WorkerHandle] = field(default_factory=list[WorkerHandle])
    """Supervisors of the rollout servers."""
    server_urls: list[str] = field(default_factory=list[str])
    """Their addresses, in order."""
    clients: list[SGLangClient] = field(default_factory=list[SGLangClient])
    """The controller's clients of them, in order."""
    test_servers: list[WorkerHandle] = field(default_factory=list[WorkerHandle])
    """Supervisors of the test-rollout servers."""
    test_urls: list[str] = field(default_factory=list[str])
    """Their addresses."""
    test_worker: WorkerHandle | None = None
    """Runs evaluation episodes."""

    @property
    def reach(self) -> Reach:
        """Return where its parts listen, and what they ask for."""
        return self.server_spec.reach

    def receivers(self) -> list[SGLangReceiver]:
        """Return the rollout servers as weight receivers."""
        return [
            SGLangReceiver(handle.name, client)
            for handle, client in zip(self.servers, self.clients, strict=True)
        ]


def server_workers(system: System, role: str) -> list[WorkerHandle]:
    """Create (not start) the servers of a role."""
    return [
        _server_worker(system, role, rank) for rank in range(system.scheduler.num_workers(role))
    ]


def _server_worker(system: System, role: str, rank: int) -> WorkerHandle:
    # Numbered over both roles, so that servers on given ports never share one.
    first = (
        0
        if role == component_configs.ROLLOUT
        else system.scheduler.num_workers(component_configs.ROLLOUT)
    )
    return system.scheduler.create_worker(
        role,
        rank,
        InferenceServerActor,
        system.server_spec,
        first + rank,
        f"{role}-{rank}",
        str(system.log_dir),
    )


async def death_of(server: WorkerHandle, deadline_s: float) -> str | None:
    """Return why a server counts as dead, None while it runs; its supervisor may be gone with it."""
    try:
        return await call_worker(server, "check", timeout_s=deadline_s)
    except EngineCallError as error:
        return str(error)


async def _start_again(
    system: System, server: WorkerHandle, deadline_s: float
) -> tuple[WorkerHandle, str]:
    try:
        return server, await call_worker(server, "start", timeout_s=deadline_s)
    except WorkerLostError:
        system.scheduler.forget(server)
        server = _server_worker(system, server.role, server.rank)
        return server, await call_worker(server, "start", timeout_s=deadline_s)


async def start_server_again(config: WebRLConfig, system: System, index: int) -> str:
    """Start a dead rollout server anew, with its supervisor when that is gone too.

    Args:
        config: The run's.
        system: Its server ``index`` is replaced.
        index: Which of the rollout servers.

    Returns:
        The new address. The server holds the weights that training started from.

    Raises:
        EngineCallError: It did not start.
    """
    deadline_s = config.scheduler.startup_timeout_s
    system.servers[index], url = await _start_again(system, system.servers[index], deadline_s)
    return url


async def start_test_servers_again(config: WebRLConfig, system: System) -> list[str]:
    """Start every dead server of the test role anew; returns the addresses of all.

    Raises:
        EngineCallError: One did not start.
    """
    deadline_s = config.scheduler.startup_timeout_s
    for index, server in enumerate(system.test_servers):
        if await death_of(server, deadline_s) is not None:
            system.test_servers[index], system.test_urls[index] = await _start_again(
                system, server, deadline_s
            )
    return list(system.test_urls)


async def find_dead_rank(system: System) -> None:
    """Raise for the first trainer rank that is gone; its siblings only report a broken collective.

    Raises:
        WorkerLostError: A rank is gone.
    """
    for rank in system.ranks:
        try:
            await call_worker(rank, "version", timeout_s=PROBE_DEADLINE_S)
        except WorkerLostError:
            raise
        except EngineCallError:
            continue  # It lives, and hangs or refuses: the first error says more.
