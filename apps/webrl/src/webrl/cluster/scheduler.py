"""The Ray scheduler: creates the workers of each role and fans calls out to them.

Invariants:
    * every call has a deadline, and a call that fails names the role, the rank and the method;
    * every worker that was created is killed by ``shutdown``, whatever happened to the run.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ray
from ray.exceptions import ActorDiedError, ActorUnavailableError, RayError, WorkerCrashedError
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from webrl.cluster.placement import RolePlacement, RoleSpec, release_layout, setup_mixed_layout
from webrl.cluster.unwrapped_group import task_scope
from webrl.cluster.worker_log import WORKER_LOG
from webrl.errors import EngineCallError, WorkerLostError
from webrl.servers.server_process import log_tail

logger = logging.getLogger(__name__)

CREATE_DEADLINE_S = 180.0
"""Importing torch and transformers in a fresh process takes up to a minute on a busy laptop."""


@dataclass(frozen=True, kw_only=True, slots=True)
class WorkerHandle:
    """One worker of a role."""

    role: str
    """Scheduler role."""
    rank: int
    """Rank within the role, in node order."""
    actor: Any
    """The Ray actor."""
    log_path: Path | None = None
    """Where its process writes; None where Ray keeps it."""

    @property
    def name(self) -> str:
        """Return the worker's name as it appears in messages, such as ``actor/0``."""
        return f"{self.role}/{self.rank}"


class RayScheduler:
    """Places roles on the connected Ray cluster and calls their workers."""

    def __init__(self, roles: Sequence[RoleSpec], log_dir: Path | None = None) -> None:
        """Create the placement groups.

        Args:
            roles: Who works.
            log_dir: Receives a log of each worker; None leaves them to Ray.

        Raises:
            PreflightError: The roles do not fit the cluster.
        """
        self._roles = {role.name: role for role in roles}
        self._log_dir = log_dir
        self._placements: dict[str, RolePlacement] = setup_mixed_layout(roles)
        self._workers: list[WorkerHandle] = []

    @property
    def node_ids(self) -> frozenset[str]:
        """Nodes that hold a worker of any role."""
        placements = self._placements.values()
        return frozenset(node for placement in placements for node in placement.node_of_rank)

    def num_workers(self, role: str) -> int:
        """Return how many workers a role has."""
        return self._roles[role].num_workers

    def create_worker(
        self,
        role: str,
        rank: int,
        actor_class: Any,
        *args: object,
        env_vars: Mapping[str, str] | None = None,
        actor_options: Mapping[str, Any] | None = None,
        **kwargs: object,
    ) -> WorkerHandle:
        """Start one worker of a role on its bundle; it is not waited for.

        Args:
            role: Scheduler role.
            rank: Rank within the role.
            actor_class: A class decorated with ``ray.remote``.
            *args: Passed to the constructor.
            env_vars: Environment of the worker's process.
            actor_options: Further Ray actor options, such as ``max_concurrency``.
            **kwargs: Passed to the constructor.
        """
        spec = self._roles[role]
        placement = self._placements[role]
        environment = dict(env_vars or {})
        log_path = self._log_dir / f"{role}-{rank}.log" if self._log_dir else None
        if log_path is not None:
            environment[WORKER_LOG] = str(log_path)
        options: dict[str, Any] = {
            "num_cpus": spec.cpus_per_worker,
            "num_gpus": spec.gpus_per_worker,
            "scheduling_strategy": PlacementGroupSchedulingStrategy(
                placement_group=placement.group,
                placement_group_bundle_index=placement.bundle_of_rank[rank],
            ),
            "runtime_env": {"env_vars": environment},
            **(actor_options or {}),
        }
        actor = actor_class.options(**options).remote(*args, **kwargs)
        handle = WorkerHandle(role=role, rank=rank, actor=actor, log_path=log_path)
        self._workers.append(handle)
        return handle

    async def async_call_engine(
        self,
        workers: Sequence[WorkerHandle],
        method: str,
        *args: object,
        timeout_s: float = CREATE_DEADLINE_S,
        **kwargs: object,
    ) -> list[Any]:
        """Call one method on several workers at once.

        Args:
            workers: The workers, in the order of the results.
            method: Method name.
            *args: Passed to each call.
            timeout_s: Deadline of the whole fan-out, in seconds.
            **kwargs: Passed to each call.

        Returns:
            One result per worker, in order.

        Raises:
            EngineCallError: A worker failed, died, or did not answer in time. It names the first.
        """
        async with task_scope() as group:
            tasks = [
                group.create_task(call_worker(worker, method, *args, timeout_s=timeout_s, **kwargs))
                for worker in workers
            ]
        return [task.result() for task in tasks]

    def forget(self, worker: WorkerHandle) -> None:
        """Kill one worker and drop it from the books."""
        _kill(worker)
        self._workers = [known for known in self._workers if known is not worker]

    def shutdown(self) -> None:
        """Kill every worker and remove the placement groups."""
        for worker in self._workers:
            _kill(worker)
        self._workers.clear()
        release_layout(self._placements)
        self._placements = {}


async def call_worker(
    worker: WorkerHandle, method: str, *args: object, timeout_s: float, **kwargs: object
) -> Any:
    """Call one method of one worker.

    Raises:
        EngineCallError: The worker failed, or did not answer within ``timeout_s`` seconds.
        WorkerLostError: Its process is gone.
    """
    reference = getattr(worker.actor, method).remote(*args, **kwargs)
    try:
        async with asyncio.timeout(timeout_s):
            return await reference
    except TimeoutError as error:
        raise EngineCallError(
            f"{worker.name}.{method} did not answer within {timeout_s:g} s. The worker hangs or "
            f"the machine is overloaded.{_last_words(worker)}"
        ) from error
    except (ActorDiedError, ActorUnavailableError, WorkerCrashedError) as error:
        raise WorkerLostError(
            f"{worker.name} is gone; {method} was asked of it: {error}{_last_words(worker)}"
        ) from error
    except RayError as error:
        raise EngineCallError(f"{worker.name}.{method} failed: {error}") from error


def _last_words(worker: WorkerHandle) -> str:
    path = worker.log_path
    return "" if path is None else f"\nThe end of {path}:\n{log_tail(path)}"


def _kill(worker: WorkerHandle) -> None:
    try:
        ray.kill(worker.actor, no_restart=True)
    except (RayError, ValueError) as error:
        logger.debug("worker %s was already gone: %s", worker.name, error)
