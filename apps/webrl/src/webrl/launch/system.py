"""The started parts of a run: `launch` brings them up and takes them down again.

Invariants:
    * everything that was started is stopped when the block ends, in the reverse order, each part
      within its own limit, whatever went wrong in between;
    * servers, ranks, browsers and the PixelStore start at the same time: the slowest one counts.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

import ray
from awrl_pixelstore import PixelStoreClient, end_pixel_stores, get_or_create_pixel_store
from awrl_rollout import SGLangClient, UnwrappedTaskGroup

from webrl.cluster.network import NetworkConfig, network_of
from webrl.cluster.placement import check_node_count
from webrl.cluster.ray_cluster import cluster_nodes
from webrl.cluster.scheduler import (
    ProcessOptions,
    RayScheduler,
    WorkerHandle,
    WorkerT,
    async_call_engine,
    call_worker,
)
from webrl.config import WebRLConfig
from webrl.errors import EngineCallError, WorkerLostError
from webrl.launch import component_configs, run_tasks
from webrl.policy import PolicyProcessor
from webrl.rollout.worker import CallbackTarget, RolloutWorker, WorkerSpec
from webrl.servers.server_actor import InferenceServer, ServerSpec
from webrl.training.actor_rank import UpdateEngine
from webrl.training.publishing import SGLangReceiver

logger = logging.getLogger(__name__)

STOP_DEADLINE_S = 4.0
"""A part that does not stop within this time is killed with its Ray actor."""

WORKER_OPTIONS = ProcessOptions(environment={"OMP_NUM_THREADS": "1"}, max_concurrency=64)
"""Torch in a worker only decodes and tokenises; `serve` is one of its calls for its whole life."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Parts:
    """The programs of a run; a rehearsal has others for what would need devices."""

    engine: type[UpdateEngine] = UpdateEngine
    """Class of a trainer rank."""
    server: Callable[[ServerSpec], ServerSpec] = lambda spec: spec
    """Says how the configured servers are started."""
    has_devices: bool = True
    """Whether servers and ranks compute on the devices that they are placed on."""


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
    start_timeout_s: float
    """Limit of each start, in seconds."""
    log_dir: Path
    """Folder of the servers' logs."""
    parts: Parts = Parts()
    """Its programs."""
    ranks: list[WorkerHandle[UpdateEngine]] = field(
        default_factory=list[WorkerHandle[UpdateEngine]]
    )
    """Update engine, rank 0 first."""
    servers: list[WorkerHandle[InferenceServer]] = field(
        default_factory=list[WorkerHandle[InferenceServer]]
    )
    """Supervisors of the rollout servers."""
    server_urls: list[str] = field(default_factory=list[str])
    """Their addresses, in order."""
    clients: list[SGLangClient] = field(default_factory=list[SGLangClient])
    """The controller's clients of them, in order."""
    evaluation_servers: list[WorkerHandle[InferenceServer]] = field(
        default_factory=list[WorkerHandle[InferenceServer]]
    )
    """Supervisors of the servers of the role `test-rollout`."""
    num_restarts: Counter[str] = field(default_factory=Counter[str])
    """Restarts of each server, by its supervisor's name."""
    evaluation_urls: list[str] = field(default_factory=list[str])
    """Their addresses, in order."""

    @property
    def network(self) -> NetworkConfig:
        """Return where its parts listen, and what they ask for."""
        return self.server_spec.network

    def receivers(self) -> list[SGLangReceiver]:
        """Return the rollout servers as weight receivers."""
        return [
            SGLangReceiver(handle.name, client, num_ranks=self.server_spec.tp_size)
            for handle, client in zip(self.servers, self.clients, strict=True)
        ]

    def create_servers(self, role: str) -> list[WorkerHandle[InferenceServer]]:
        """Create (not start) the servers of a role."""
        return [self._create_server(role, rank) for rank in range(self.scheduler.num_workers(role))]

    def create_rollout_worker(
        self, spec: WorkerSpec, rank: int, name: str, callback: CallbackTarget | None
    ) -> WorkerHandle[RolloutWorker]:
        """Create (not start) one rollout worker of a run."""
        return self.scheduler.create_worker(
            component_configs.WORKER,
            rank,
            WORKER_OPTIONS,
            RolloutWorker,
            name,
            spec,
            self.pixels,
            callback,
        )

    async def restart_server(self, index: int) -> str:
        """Restart a dead rollout server, with its supervisor when that is gone too.

        Returns:
            The new address. The server holds the weights that training started from.

        Raises:
            EngineCallError: It did not start.
        """
        self.servers[index], url = await self._restart(self.servers[index])
        return url

    async def restart_evaluation_servers(self) -> list[str]:
        """Restart every dead server of the role `test-rollout`; return the addresses of all.

        Raises:
            EngineCallError: One did not start.
        """
        for index, server in enumerate(self.evaluation_servers):
            if await death_of(server, self.start_timeout_s) is not None:
                restarted, url = await self._restart(server)
                self.evaluation_servers[index], self.evaluation_urls[index] = restarted, url
        return list(self.evaluation_urls)

    def _create_server(self, role: str, rank: int) -> WorkerHandle[InferenceServer]:
        # Numbered over both roles, so that servers on given ports never share one.
        is_first_role = role == component_configs.ROLLOUT
        first = 0 if is_first_role else self.scheduler.num_workers(component_configs.ROLLOUT)
        return self.scheduler.create_worker(
            role,
            rank,
            ProcessOptions(),
            InferenceServer,
            self.server_spec,
            first + rank,
            f"{role}-{rank}",
            str(self.log_dir),
        )

    async def _restart(
        self, server: WorkerHandle[InferenceServer]
    ) -> tuple[WorkerHandle[InferenceServer], str]:
        deadline_s = self.start_timeout_s
        self.num_restarts[server.name] += 1
        life = self.num_restarts[server.name]
        try:
            return server, await call_worker(server, deadline_s, InferenceServer.start, life)
        except WorkerLostError:
            self.scheduler.forget(server)
            server = self._create_server(server.role, server.rank)
            return server, await call_worker(server, deadline_s, InferenceServer.start, life)


async def death_of(server: WorkerHandle[InferenceServer], deadline_s: float) -> str | None:
    """Return why a server counts as dead, None while it runs; its supervisor may be gone with it."""
    try:
        return await call_worker(server, deadline_s, InferenceServer.check)
    except EngineCallError as error:
        return str(error)


@asynccontextmanager
async def launch(
    config: WebRLConfig,
    policy_path: str,
    log_dir: Path,
    run_id: str,
    *,
    version: int = 0,
    parts: Parts = Parts(),
) -> AsyncGenerator[System]:
    """Start PixelStore, servers and ranks, all at version 0; workers come later.

    Args:
        policy_path: Checkpoint that training started from.
        log_dir: Folder of the logs of servers and workers.
        run_id: Names the PixelStore.
        version: Weight version that the run goes on from.
        parts: Its programs.

    Yields:
        The started system.

    Raises:
        ConfigError: Screenshots leave no room for an answer.
        PreflightError: A machine is missing, or the roles do not fit.
        ServerStartError: A server did not start.
        EngineCallError: A worker did not start.
    """
    deadline_s = config.scheduler.startup_timeout_s
    processor = PolicyProcessor.from_pretrained(policy_path)
    component_configs.check_pictures(config, processor)
    async with AsyncExitStack() as stack:
        scheduler = _scheduler(config, log_dir)
        stack.callback(scheduler.shutdown)
        network = network_of(scheduler.node_ids)
        pixels = await asyncio.to_thread(_pixel_store, config, scheduler, run_id)
        # Shards that were lost with a node, or whose store was not closed in time, may be back.
        stack.push_async_callback(_quietly, lambda: asyncio.to_thread(_end_stores, run_id))
        stack.push_async_callback(_quietly, pixels.aclose)
        system = System(
            scheduler=scheduler,
            pixels=pixels,
            processor=processor,
            server_spec=parts.server(
                component_configs.server_spec(config, policy_path, network, version=version)
            ),
            parts=parts,
            start_timeout_s=deadline_s,
            log_dir=log_dir,
        )
        system.servers = system.create_servers(component_configs.ROLLOUT)
        if config.test_rollout.enabled:
            system.evaluation_servers = system.create_servers(component_configs.TEST_ROLLOUT)
        stack.push_async_callback(_stop_servers, system)
        system.ranks = _create_ranks(config, system)
        async with UnwrappedTaskGroup() as group:
            urls = group.create_task(_start_servers(system.servers, deadline_s))
            evaluation_urls = group.create_task(
                _start_servers(system.evaluation_servers, deadline_s)
            )
            group.create_task(_start_ranks(system.ranks, deadline_s))
        system.server_urls, system.evaluation_urls = urls.result(), evaluation_urls.result()
        system.clients = [network.client(url) for url in system.server_urls]
        stack.push_async_callback(_close_clients, system)
        yield system


def _end_stores(run_id: str) -> int:
    """End the shards of every run of this folder; return how many there were."""
    return end_pixel_stores(f"{run_id.rpartition('-')[0]}-")


def _pixel_store(config: WebRLConfig, scheduler: RayScheduler, run_id: str) -> PixelStoreClient:
    """Return the run's store, its shards on the nodes that put to it.

    On a cluster that outlives a run, one whose process was killed has left its shards behind.
    """
    if num_left := _end_stores(run_id):
        logger.warning("ended %d shards that a killed process of this run left", num_left)
    return get_or_create_pixel_store(
        run_id,
        num_shards=config.pixelstore.num_shards,
        node_ids=scheduler.nodes_of(component_configs.WORKER),
        config=component_configs.pixelstore_config(config),
        timeout_s=config.scheduler.startup_timeout_s,
    )


def _scheduler(config: WebRLConfig, log_dir: Path) -> RayScheduler:
    """Return the roles' places on the joined cluster."""
    cluster = config.cluster
    check_node_count(cluster.n_nodes, cluster.n_gpus_per_node, cluster_nodes())
    num_cpus = ray.cluster_resources().get("CPU", 1.0)
    return RayScheduler(
        component_configs.role_specs(config, num_cpus),
        log_dir,
        gpus_per_node=cluster.n_gpus_per_node if cluster.num_gpus else None,
    )


async def start_evaluation_workers(
    config: WebRLConfig, scheduler: RayScheduler, servers: ServerSpec, server_urls: Sequence[str]
) -> list[WorkerHandle[RolloutWorker]]:
    """Start the workers that run evaluation episodes, and their slots.

    Args:
        scheduler: Holds the role.
        servers: What the servers were started with.

    Raises:
        EngineCallError: One did not start.
    """
    async with UnwrappedTaskGroup() as group:
        starts = [
            group.create_task(
                start_evaluation_worker(config, scheduler, servers, server_urls, rank)
            )
            for rank in range(scheduler.num_workers(component_configs.TEST_WORKER))
        ]
    return [start.result() for start in starts]


async def start_evaluation_worker(
    config: WebRLConfig,
    scheduler: RayScheduler,
    servers: ServerSpec,
    server_urls: Sequence[str],
    rank: int,
) -> WorkerHandle[RolloutWorker]:
    """Start one of them.

    Raises:
        EngineCallError: It did not start.
    """
    spec = component_configs.worker_spec(
        config,
        servers,
        run_tasks.test_tasks(config),
        num_slots=config.test_rollout.max_concurrent,
        temperature=config.test_rollout.temperature or 1.0,
        is_synchronous=False,
    )
    role, name = component_configs.TEST_WORKER, "test" if rank == 0 else f"test-{rank}"
    worker = scheduler.create_worker(
        role, rank, WORKER_OPTIONS, RolloutWorker, name, spec, None, None
    )
    await call_worker(
        worker, config.scheduler.startup_timeout_s, RolloutWorker.start, list(server_urls)
    )
    worker.actor.serve.remote()
    return worker


async def stop_each(
    workers: Sequence[WorkerHandle[WorkerT]], method: Callable[[WorkerT], object]
) -> None:
    """Call the method that ends a worker in order on each of them, within `STOP_DEADLINE_S`."""
    async with UnwrappedTaskGroup() as group:
        for worker in workers:
            group.create_task(_quietly(partial(call_worker, worker, STOP_DEADLINE_S, method)))


async def _stop_servers(system: System) -> None:
    await stop_each([*system.servers, *system.evaluation_servers], InferenceServer.stop)


async def _close_clients(system: System) -> None:
    for client in system.clients:
        await _quietly(client.aclose)


def _create_ranks(config: WebRLConfig, system: System) -> list[WorkerHandle[UpdateEngine]]:
    count = system.scheduler.num_workers(component_configs.ACTOR)
    spec = component_configs.engine_spec(config, system.server_spec, system.processor)
    spec = replace(spec, use_cuda=spec.use_cuda and system.parts.has_devices)
    options = ProcessOptions(environment=component_configs.rank_environment(config))
    return [
        system.scheduler.create_worker(
            component_configs.ACTOR,
            rank,
            options,
            system.parts.engine,
            spec,
            rank,
            count,
            system.pixels,
        )
        for rank in range(count)
    ]


async def _start_servers(
    servers: Sequence[WorkerHandle[InferenceServer]], deadline_s: float
) -> list[str]:
    return await async_call_engine(servers, deadline_s, InferenceServer.start)


async def _start_ranks(ranks: Sequence[WorkerHandle[UpdateEngine]], deadline_s: float) -> None:
    host, port = await call_worker(ranks[0], deadline_s, UpdateEngine.rendezvous)
    await async_call_engine(ranks, deadline_s, UpdateEngine.start, host, port)


async def _quietly(step: Callable[[], Awaitable[object]]) -> None:
    """Await a clean-up step; its failure must not hide why the run ends."""
    try:
        async with asyncio.timeout(STOP_DEADLINE_S):
            await step()
    except Exception as error:  # noqa: BLE001 - the named boundary: shut-down goes on
        logger.info("clean-up step failed: %s", error)
