"""``webrl eval``: success of one checkpoint on held-out seeds, with its interval."""

from __future__ import annotations

import asyncio
import secrets
import time
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path

import ray

from webrl.cluster.network import reach_of
from webrl.cluster.placement import RoleSpec
from webrl.cluster.ray_cluster import ray_cluster
from webrl.cluster.scheduler import RayScheduler
from webrl.config import WebRLConfig
from webrl.evaluation.manager import (
    TestRolloutSpec,
    evaluation_requests,
    outcomes_of,
    run_evaluation,
)
from webrl.evaluation.statistics import EvaluationResult, summarise
from webrl.launch import component_configs
from webrl.launch.launch import start_test_worker, stop_workers
from webrl.run.signals import until_signalled
from webrl.servers.server_actor import InferenceServerActor


@dataclass(frozen=True, kw_only=True, slots=True)
class EvaluationJob:
    """What ``webrl eval`` evaluates."""

    policy_path: Path
    """Checkpoint directory."""
    version: int
    """Weight version to report."""
    num_seeds: int
    """Held-out seeds, spread over the tasks."""
    log_dir: Path
    """Folder of the server's log."""


def evaluate_checkpoint(config: WebRLConfig, job: EvaluationJob) -> EvaluationResult:
    """Start one server and one worker, run the episodes, and return the result.

    Args:
        config: Tasks, browsers and limits.
        job: What to evaluate.

    Raises:
        WebRLError: Server or browser did not start.
        asyncio.CancelledError: Ctrl-C.
    """
    with ray_cluster(namespace=f"webrl-eval-{secrets.token_hex(4)}"):
        return asyncio.run(until_signalled(_evaluate(config, job)))


def _roles(config: WebRLConfig) -> list[RoleSpec]:
    """Return one server and one worker, on half of the cluster's CPUs each, up to one."""
    cpus = min(1.0, ray.cluster_resources().get("CPU", 1.0) / 2)
    server = RoleSpec(
        name=component_configs.TEST_ROLLOUT,
        num_workers=1,
        cpus_per_worker=cpus,
        gpus_per_worker=1.0 if config.cluster.num_gpus else 0.0,
    )
    return [
        server,
        RoleSpec(name=component_configs.TEST_WORKER, num_workers=1, cpus_per_worker=cpus),
    ]


async def _evaluate(config: WebRLConfig, job: EvaluationJob) -> EvaluationResult:
    deadline_s = config.scheduler.startup_timeout_s
    policy_path = str(job.policy_path.resolve())
    spec = TestRolloutSpec(
        tasks=component_configs.test_tasks(config),
        num_seeds=job.num_seeds,
        interval_s=0.0,
        is_greedy=config.test_rollout.temperature == 0,
    )
    async with AsyncExitStack() as stack:
        scheduler = RayScheduler(_roles(config), job.log_dir)
        stack.callback(scheduler.shutdown)
        server_spec = component_configs.server_spec(
            config, policy_path, reach_of(scheduler.node_ids)
        )
        server = scheduler.create_worker(
            component_configs.TEST_ROLLOUT,
            0,
            InferenceServerActor,
            server_spec,
            0,
            "eval-0",
            str(job.log_dir),
        )
        stack.push_async_callback(stop_workers, [server])
        urls = await scheduler.async_call_engine([server], "start", timeout_s=deadline_s)
        worker = await start_test_worker(config, scheduler, server_spec, urls)
        stack.push_async_callback(stop_workers, [worker])
        started = time.monotonic()
        records = await run_evaluation(
            worker, evaluation_requests(spec, "eval"), deadline_s=spec.deadline_s
        )
        outcomes = outcomes_of(records)
        return summarise(
            outcomes,
            version=job.version,
            checkpoint=policy_path,
            num_faults=job.num_seeds - len(outcomes),
            duration_s=time.monotonic() - started,
            previous=None,
        )
