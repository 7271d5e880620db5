"""One rehearsal from its configuration to its report."""

from __future__ import annotations

import asyncio
import json
import os
import random
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path

import psutil
from awrl_rollout import UnwrappedTaskGroup
from awrl_trainer import latest_complete_checkpoint

from webrl.config import WebRLConfig, to_toml
from webrl.errors import ConfigError, Problem
from webrl.records.run_folder import RunFolders
from webrl.rehearse.cluster import DeclaredCluster, declared_cluster
from webrl.rehearse.engine import UPDATE_S_VARIABLE
from webrl.rehearse.fork_server import ForkServer, forking
from webrl.rehearse.injection import ChaosOutcome, Injection, RunCommand, inject_faults
from webrl.rehearse.judge import RehearsedJudge
from webrl.rehearse.manifest import manifest_of, scaled_bucket_bytes, true_manifest
from webrl.rehearse.memory import MemoryWatch
from webrl.rehearse.policy import write_policy
from webrl.rehearse.program import SERVER_ARGUMENTS
from webrl.rehearse.report import Rehearsal
from webrl.rehearse.scale import Scale, Surroundings, write_running_config
from webrl.rehearse.site import RehearsedSite
from webrl.rehearse.targets import CLUSTER_KINDS, CONTROLLER, NODE
from webrl.rehearse.verdict import examine

JUDGE, SITE = "judge", "site"
KILLS = (*CLUSTER_KINDS[:-2], JUDGE, SITE, CONTROLLER, NODE)
"""What can fail on request, in the order of `all`: what costs most comes last."""

PLACE_DEADLINE_S = 300.0
START_DEADLINE_S = 900.0
"""From the start of a run, or from a failure, to its next update on a small machine."""
NUM_TASKS = 512


@dataclass(frozen=True, kw_only=True, slots=True)
class RehearsalPlan:
    """What is rehearsed, and how."""

    config: WebRLConfig
    """The whole configuration."""
    scale: Scale | None
    """Size of the running part; None looks at the placement only."""
    num_nodes: int
    """Nodes of the declared cluster."""
    num_cpus: int
    """CPUs that each node declares."""
    num_gpus: int
    """GPUs that each node declares."""
    kills: Sequence[str]
    """What fails, in order; members of `KILLS`."""
    num_updates: int
    """Updates before the first failure, and in all when there is none."""
    update_s: float
    """Seconds of one update."""
    site_latency_s: float
    """Mean latency of the sites, in seconds."""
    blocked_share: float
    """Share of the sites that shut robots out."""
    judge_latency_s: float
    """Mean latency of the judge, in seconds."""
    server_arguments: str
    """Further arguments of the servers without a model."""
    folder: Path
    """Where everything is written; must be empty or absent."""
    seed: int = 0
    """Of what is drawn among the processes of a kind."""


def rehearse(plan: RehearsalPlan, show: Callable[[str], None]) -> Rehearsal:
    """Run a rehearsal.

    Args:
        show: Told what happens.

    Raises:
        PreflightError: The declared cluster did not start.
        ConfigError: The folder holds something, or the scaled run is none that this configuration
            allows.
    """
    if plan.folder.exists() and any(plan.folder.iterdir()):
        message = f"must be empty or absent, got {str(plan.folder)!r}. Name another folder."
        raise ConfigError([Problem(key="--folder", message=message)])
    plan.folder.mkdir(parents=True, exist_ok=True)
    found = Rehearsal(scale=plan.scale)
    show(
        f"starting a Ray cluster of {plan.num_nodes} nodes x {plan.num_cpus} CPUs, "
        f"{plan.num_gpus} GPUs (declared, not there)"
    )
    with (
        forking() as forks,
        declared_cluster(
            num_nodes=plan.num_nodes,
            num_cpus=plan.num_cpus,
            num_gpus=plan.num_gpus,
            environment={UPDATE_S_VARIABLE: str(plan.update_s), "OMP_NUM_THREADS": "1"},
        ) as cluster,
    ):
        show("placing the whole configuration")
        _place(plan, cluster, found)
        if plan.scale is not None:
            asyncio.run(_run(plan, plan.scale, cluster, forks, found, show))
    return found


def _place(plan: RehearsalPlan, cluster: DeclaredCluster, found: Rehearsal) -> None:
    file = plan.folder / "configuration.toml"
    file.write_text(to_toml(plan.config))
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-m", "webrl.rehearse.program", "place", str(file)],
        env={**os.environ, **cluster.environment},
        capture_output=True,
        text=True,
        timeout=PLACE_DEADLINE_S,
        check=False,
    )
    if done.returncode == 0:
        found.placement = json.loads(done.stdout.splitlines()[-1])
    else:
        found.problems.append(f"placement: {(done.stdout or done.stderr).strip()[-2000:]}")


async def _run(
    plan: RehearsalPlan,
    scale: Scale,
    cluster: DeclaredCluster,
    forks: ForkServer,
    found: Rehearsal,
    show: Callable[[str], None],
) -> None:
    show("writing the narrow policy")
    policy = plan.folder / "policy"
    bucket_bytes = _write_policy(plan, policy, found)
    async with AsyncExitStack() as stack:
        site = await stack.enter_async_context(
            RehearsedSite(latency_s=plan.site_latency_s, blocked_share=plan.blocked_share)
        )
        judge = await stack.enter_async_context(RehearsedJudge(latency_s=plan.judge_latency_s))
        site.write_tasks(plan.folder / "tasks.jsonl", NUM_TASKS)
        run_dir = plan.folder / "run"
        surroundings = Surroundings(
            run_dir=run_dir,
            policy=policy,
            tasks=plan.folder / "tasks.jsonl",
            judge_url=judge.url,
            bucket_bytes=bucket_bytes,
        )
        file = plan.folder / "running.toml"
        write_running_config(plan.config, scale, surroundings, file)
        show(f"running {scale.describe(plan.config)}")
        command = _run_command(plan, cluster, forks, file, run_dir)
        watch = MemoryWatch(lambda: [psutil.Process()])
        async with UnwrappedTaskGroup() as group:
            looking = group.create_task(watch.keep_looking())
            found.outcome = await inject_faults(
                command,
                _injections(plan),
                rng=random.Random(plan.seed),
                show=show,
                switches={JUDGE: judge.go_down, SITE: site.go_down},
                start_deadline_s=START_DEADLINE_S,
            )
            looking.cancel()
        found.memory, found.most_bytes = watch.largest, watch.most_bytes
        _read_run(run_dir, found, found.outcome)


def _write_policy(plan: RehearsalPlan, policy: Path, found: Rehearsal) -> int:
    """Write the narrow checkpoint; return the bucket bytes that give the true number of broadcasts."""
    write_policy(policy)
    true, narrow = true_manifest(), manifest_of(policy)
    wanted = plan.config.actor.publish_bucket_bytes
    found.true_manifest, found.num_bytes = true, narrow.num_bytes
    found.num_buckets = true.num_buckets(wanted)
    return scaled_bucket_bytes(true, narrow, wanted)


def _run_command(
    plan: RehearsalPlan, cluster: DeclaredCluster, forks: ForkServer, file: Path, run_dir: Path
) -> RunCommand:
    program = (sys.executable, "-W", "ignore", "-m", "webrl.rehearse.program")
    return RunCommand(
        start=[*program, "train", str(file)],
        resume=[*program, "resume", str(run_dir)],
        environment={
            **cluster.environment,
            **forks.environment,
            SERVER_ARGUMENTS: plan.server_arguments,
        },
        roots=[cluster.process, psutil.Process(forks.pid)],
        can_resume=lambda: latest_complete_checkpoint(RunFolders(run_dir).state) is not None,
    )


def _injections(plan: RehearsalPlan) -> Iterator[Injection]:
    for number, kind in enumerate(plan.kills):
        yield Injection(kind=kind, num_versions=1 if number else plan.num_updates)


def _read_run(run_dir: Path, found: Rehearsal, outcome: ChaosOutcome) -> None:
    (run_dir.parent / "output.txt").write_text(outcome.text)
    if (run_dir / "batches.jsonl").exists():
        found.run_dir, found.verdict = run_dir, examine(run_dir)
    else:
        found.problems.append("the run trained on no batch")


def server_arguments(*, token_s: float, prefill_s: float) -> str:
    """Return arguments of the servers without a model."""
    return shlex.join(["--token-s", str(token_s), "--prefill-s", str(prefill_s)])
