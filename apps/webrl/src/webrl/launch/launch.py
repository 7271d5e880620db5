"""Brings up every role of a run and takes it down again.

Invariants:
    * everything that was started is stopped when the block ends, in the reverse order, each part
      within its own limit, whatever went wrong in between;
    * servers, ranks, browsers and the PixelStore start at the same time: the slowest one counts.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path

import ray
from awrl_pixelstore import get_or_create_pixel_store

from webrl.cluster.network import reach_of
from webrl.cluster.scheduler import RayScheduler, WorkerHandle, call_worker
from webrl.cluster.unwrapped_group import task_scope
from webrl.config import WebRLConfig
from webrl.launch import component_configs
from webrl.launch.running_system import System, server_workers
from webrl.policy import PolicyProcessor
from webrl.rollout.worker import CallbackTarget, RolloutWorkerActor, WorkerSpec
from webrl.servers.server_actor import ServerSpec
from webrl.training.actor_rank import UpdateEngineActor

logger = logging.getLogger(__name__)

STOP_DEADLINE_S = 4.0
"""A part that does not stop within this time is killed with its Ray actor."""

WORKER_ENV = {"OMP_NUM_THREADS": "1"}
"""Torch in a worker only decodes and tokenises."""


RANK_ENV = {"NCCL_CUMEM_ENABLE": "0"}
"""SGLang turns this off in its servers; a nccl group whose members differed in it hung in its first
broadcast."""

WORKER_CALLS = 64
"""Calls that a rollout worker answers at one moment; ``serve`` is one of them for its whole life."""


@asynccontextmanager
async def launch(
    config: WebRLConfig, policy_path: str, log_dir: Path, run_id: str, *, version: int
) -> AsyncGenerator[System]:
    """Start PixelStore, servers, ranks and the test worker; rollout workers come later.

    Args:
        config: The run's.
        policy_path: Checkpoint that training started from.
        log_dir: Folder of the logs of servers and workers.
        run_id: Names the PixelStore.
        version: Weight version that the ranks start at.

    Yields:
        The started system.

    Raises:
        PreflightError: The roles do not fit.
        ServerStartError: A server did not start.
        EngineCallError: A worker did not start.
    """
    deadline_s = config.scheduler.startup_timeout_s
    processor = PolicyProcessor.from_pretrained(policy_path)
    async with AsyncExitStack() as stack:
        num_cpus = ray.cluster_resources().get("CPU", 1.0)
        scheduler = RayScheduler(component_configs.role_specs(config, num_cpus), log_dir)
        stack.callback(scheduler.shutdown)
        reach = reach_of(scheduler.node_ids)
        pixels = await asyncio.to_thread(
            get_or_create_pixel_store,
            run_id,
            num_shards=config.pixelstore.num_shards,
            config=component_configs.pixelstore_config(config),
            timeout_s=deadline_s,
        )
        stack.push_async_callback(_quietly, pixels.aclose)
        system = System(
            scheduler=scheduler,
            pixels=pixels,
            processor=processor,
            server_spec=component_configs.server_spec(config, policy_path, reach),
            log_dir=log_dir,
        )
        system.servers = server_workers(system, component_configs.ROLLOUT)
        if config.test_rollout.enabled:
            system.test_servers = server_workers(system, component_configs.TEST_ROLLOUT)
        stack.push_async_callback(_stop_all_servers, system)
        system.ranks = _rank_workers(config, system)
        async with task_scope() as group:
            urls = group.create_task(_start(scheduler, system.servers, deadline_s))
            test_urls = group.create_task(_start(scheduler, system.test_servers, deadline_s))
            group.create_task(_start_ranks(scheduler, system.ranks, version, deadline_s))
        system.server_urls, system.test_urls = urls.result(), test_urls.result()
        if config.test_rollout.enabled:
            system.test_worker = await start_test_worker(
                config, scheduler, system.server_spec, system.test_urls
            )
            stack.push_async_callback(_stop_test_worker, system)
        system.clients = [reach.client(url) for url in system.server_urls]
        stack.push_async_callback(_close_clients, system)
        yield system


def create_rollout_worker(
    system: System, spec: WorkerSpec, rank: int, name: str, callback: CallbackTarget | None
) -> WorkerHandle:
    """Create (not start) one rollout worker of a run."""
    return system.scheduler.create_worker(
        component_configs.WORKER,
        rank,
        RolloutWorkerActor,
        name,
        spec,
        system.pixels,
        callback,
        env_vars=WORKER_ENV,
        actor_options={"max_concurrency": WORKER_CALLS},
    )


async def start_test_worker(
    config: WebRLConfig, scheduler: RayScheduler, servers: ServerSpec, server_urls: Sequence[str]
) -> WorkerHandle:
    """Start the worker that runs evaluation episodes, and its slots.

    Args:
        config: The run's.
        scheduler: Holds the role.
        servers: What the servers were started with.
        server_urls: Their addresses.

    Raises:
        EngineCallError: It did not start.
    """
    spec = component_configs.worker_spec(
        config,
        servers,
        component_configs.test_tasks(config),
        num_slots=config.test_rollout.max_concurrent,
        temperature=config.test_rollout.temperature or 1.0,
        is_synchronous=False,
    )
    worker = scheduler.create_worker(
        component_configs.TEST_WORKER,
        0,
        RolloutWorkerActor,
        "test",
        spec,
        None,
        None,
        env_vars=WORKER_ENV,
        actor_options={"max_concurrency": WORKER_CALLS},
    )
    await call_worker(
        worker, "start", list(server_urls), timeout_s=config.scheduler.startup_timeout_s
    )
    worker.actor.serve.remote()
    return worker


async def stop_workers(workers: Sequence[WorkerHandle]) -> None:
    """Let rollout workers close their browsers, and supervisors their servers, each within its limit."""
    async with task_scope() as group:
        for worker in workers:
            group.create_task(_quietly(partial(_stop, worker)))


async def _stop_test_worker(system: System) -> None:
    assert system.test_worker is not None
    await stop_workers([system.test_worker])


async def _stop_all_servers(system: System) -> None:
    await stop_workers([*system.servers, *system.test_servers])


async def _close_clients(system: System) -> None:
    for client in system.clients:
        await _quietly(client.aclose)


def _rank_workers(config: WebRLConfig, system: System) -> list[WorkerHandle]:
    count = system.scheduler.num_workers(component_configs.ACTOR)
    spec = component_configs.engine_spec(config, system.server_spec, system.processor)
    return [
        system.scheduler.create_worker(
            component_configs.ACTOR,
            rank,
            UpdateEngineActor,
            spec,
            rank,
            count,
            system.pixels,
            env_vars={"OMP_NUM_THREADS": str(config.actor.num_threads), **RANK_ENV},
        )
        for rank in range(count)
    ]


async def _start(
    scheduler: RayScheduler, servers: Sequence[WorkerHandle], deadline_s: float
) -> list[str]:
    return await scheduler.async_call_engine(servers, "start", timeout_s=deadline_s)


async def _start_ranks(
    scheduler: RayScheduler, ranks: Sequence[WorkerHandle], version: int, deadline_s: float
) -> None:
    host, port = await call_worker(ranks[0], "rendezvous", timeout_s=deadline_s)
    await scheduler.async_call_engine(ranks, "start", host, port, version, timeout_s=deadline_s)


async def _stop(worker: WorkerHandle) -> None:
    await call_worker(worker, "stop", timeout_s=STOP_DEADLINE_S)


async def _quietly(step: Callable[[], Awaitable[object]]) -> None:
    """Await a clean-up step; its failure must not hide why the run ends."""
    try:
        async with asyncio.timeout(STOP_DEADLINE_S):
            await step()
    except Exception as error:  # noqa: BLE001 - the named boundary: shut-down goes on
        logger.info("clean-up step failed: %s", error)
