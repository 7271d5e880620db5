"""`webrl eval`: success of one checkpoint on held-out seeds, with its interval."""

from __future__ import annotations

import asyncio
import secrets
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path

import ray

from webrl.cluster.network import network_of
from webrl.cluster.ray_cluster import ray_cluster
from webrl.cluster.scheduler import ProcessOptions, RayScheduler, async_call_engine
from webrl.config import WebRLConfig
from webrl.evaluation.run_evaluation import EvaluationSpec, PolicyCheckpoint, run_evaluation
from webrl.evaluation.statistics import EvaluationResult
from webrl.launch import component_configs
from webrl.launch.system import start_evaluation_workers, stop_each
from webrl.rollout.worker import RolloutWorker
from webrl.servers.server_actor import InferenceServer
from webrl.stop_signals import StopSignals


def evaluate_checkpoint(
    config: WebRLConfig, checkpoint: PolicyCheckpoint, *, num_seeds: int, log_dir: Path
) -> EvaluationResult:
    """Start servers and workers, run the episodes, and return the result.

    Args:
        config: Tasks, browsers and limits.
        num_seeds: Held-out seeds, spread over the tasks; 0 takes every task once.
        log_dir: Folder of the logs of servers and workers.

    Raises:
        WebRLError: Server or browser did not start.
        asyncio.CancelledError: Ctrl-C.
    """
    resolved = replace(checkpoint, path=checkpoint.path.resolve())
    with StopSignals() as signals, ray_cluster(namespace=f"webrl-eval-{secrets.token_hex(4)}"):
        return asyncio.run(signals.run(_evaluate(config, resolved, num_seeds, log_dir)))


async def _evaluate(
    config: WebRLConfig, checkpoint: PolicyCheckpoint, num_seeds: int, log_dir: Path
) -> EvaluationResult:
    async with AsyncExitStack() as stack:
        num_cpus = ray.cluster_resources().get("CPU", 1.0)
        scheduler = RayScheduler(component_configs.evaluation_role_specs(config, num_cpus), log_dir)
        stack.callback(scheduler.shutdown)
        spec = component_configs.server_spec(
            config, str(checkpoint.path), network_of(scheduler.node_ids)
        )
        role = component_configs.TEST_ROLLOUT
        servers = [
            scheduler.create_worker(
                role,
                rank,
                ProcessOptions(),
                InferenceServer,
                spec,
                rank,
                f"eval-{rank}",
                str(log_dir),
            )
            for rank in range(scheduler.num_workers(role))
        ]
        stack.push_async_callback(stop_each, servers, InferenceServer.stop)
        urls = await async_call_engine(servers, spec.start_timeout_s, InferenceServer.start)
        workers = await start_evaluation_workers(config, scheduler, spec, urls)
        stack.push_async_callback(stop_each, workers, RolloutWorker.stop)
        return await run_evaluation(workers, EvaluationSpec.of(config, num_seeds), checkpoint)
