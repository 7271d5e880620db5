"""The Ray scheduler: creates the workers of each role and fans calls out to them.

A worker is an ordinary class. `create_worker` runs an object of it in a process of its own, and
`call_worker` and `async_call_engine` call a method of it there. The method is given as the class
has it (`RolloutWorker.set_servers`), so a type checker sees its arguments and its result.

Invariants:
    * every call has a deadline, and a call that fails names the role, the rank and the method;
    * every worker that was created is killed by `shutdown`, whatever happened to the run.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Concatenate, Generic, ParamSpec, TypeVar, overload

import ray
from awrl_rollout import UnwrappedTaskGroup
from ray.exceptions import ActorDiedError, ActorUnavailableError, RayError, WorkerCrashedError
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from webrl.cluster.placement import RolePlacement, RoleSpec, release_layout, setup_mixed_layout
from webrl.cluster.worker_log import WORKER_LOG, log_tail
from webrl.errors import EngineCallError, WorkerLostError

logger = logging.getLogger(__name__)

CREATE_DEADLINE_S = 180.0
"""Importing torch and transformers in a fresh process takes up to a minute on a busy laptop."""


WorkerT = TypeVar("WorkerT")
WorkerT_co = TypeVar("WorkerT_co", covariant=True)
ResultT = TypeVar("ResultT")
Params = ParamSpec("Params")


@dataclass(frozen=True, kw_only=True)
class WorkerHandle(Generic[WorkerT_co]):
    """One worker of a role, an object of class `WorkerT_co` in a process of its own."""

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
        """Return the worker's name as it appears in messages, such as `actor/0`."""
        return f"{self.role}/{self.rank}"


@dataclass(frozen=True, kw_only=True, slots=True)
class ProcessOptions:
    """What is special about the process of a worker."""

    environment: Mapping[str, str] = field(default_factory=dict[str, str])
    """Added to its environment."""
    max_concurrency: int | None = None
    """Calls that it answers at one moment; None for Ray's default."""


class RayScheduler:
    """Places roles on the connected Ray cluster and calls their workers.

    Args:
        log_dir: Receives a log of each worker; None leaves them to Ray.
        gpus_per_node: Most GPUs that the roles together take of one node; all of them when None.
    """

    def __init__(
        self,
        roles: Sequence[RoleSpec],
        log_dir: Path | None = None,
        *,
        gpus_per_node: int | None = None,
    ) -> None:
        """Create the placement groups.

        Raises:
            PreflightError: The roles do not fit the cluster.
        """
        self._roles = {role.name: role for role in roles}
        self._log_dir = log_dir
        self._placements: dict[str, RolePlacement] = setup_mixed_layout(
            roles, gpus_per_node=gpus_per_node
        )
        self._workers: list[WorkerHandle[object]] = []

    @property
    def node_ids(self) -> frozenset[str]:
        """Nodes that hold a worker of any role."""
        placements = self._placements.values()
        return frozenset(node for placement in placements for node in placement.node_of_rank)

    def nodes_of(self, role: str) -> tuple[str, ...]:
        """Return the nodes that hold a worker of a role, in the order of its ranks."""
        return tuple(dict.fromkeys(self._placements[role].node_of_rank))

    def num_workers(self, role: str) -> int:
        """Return how many workers a role has."""
        return self._roles[role].num_workers

    def create_worker(
        self,
        role: str,
        rank: int,
        options: ProcessOptions,
        worker_class: Callable[Params, WorkerT],
        *args: Params.args,
        **kwargs: Params.kwargs,
    ) -> WorkerHandle[WorkerT]:
        """Start one worker of a role on its bundle; it is not waited for.

        Args:
            rank: Rank within the role.
            worker_class: Built in that process.
            *args: Passed to its constructor.
            **kwargs: Passed to its constructor.
        """
        spec = self._roles[role]
        placement = self._placements[role]
        environment = dict(options.environment)
        log_path = self._log_dir / f"{role}-{rank}.log" if self._log_dir else None
        if log_path is not None:
            environment[WORKER_LOG] = str(log_path)
        actor_options: dict[str, Any] = {
            "num_cpus": spec.cpus_per_worker,
            "num_gpus": spec.gpus_per_worker,
            "scheduling_strategy": PlacementGroupSchedulingStrategy(
                placement_group=placement.group,
                placement_group_bundle_index=placement.bundle_of_rank[rank],
            ),
            "runtime_env": {"env_vars": environment},
            # Ray's head would keep 3.5 kB about each call, for days.
            "enable_task_events": False,
        }
        if options.max_concurrency is not None:
            actor_options["max_concurrency"] = options.max_concurrency
        actor_class: Any = ray.remote(worker_class)
        actor = actor_class.options(**actor_options).remote(*args, **kwargs)
        handle = WorkerHandle[WorkerT](role=role, rank=rank, actor=actor, log_path=log_path)
        self._workers.append(handle)
        return handle

    def forget(self, worker: WorkerHandle[object]) -> None:
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


@overload
async def async_call_engine(
    workers: Sequence[WorkerHandle[WorkerT]],
    timeout_s: float,
    method: Callable[Concatenate[WorkerT, Params], Coroutine[Any, Any, ResultT]],
    *args: Params.args,
    **kwargs: Params.kwargs,
) -> list[ResultT]: ...


@overload
async def async_call_engine(
    workers: Sequence[WorkerHandle[WorkerT]],
    timeout_s: float,
    method: Callable[Concatenate[WorkerT, Params], ResultT],
    *args: Params.args,
    **kwargs: Params.kwargs,
) -> list[ResultT]: ...


async def async_call_engine(
    workers: Sequence[WorkerHandle[Any]],
    timeout_s: float,
    method: Callable[..., Any],
    *args: Any,
    **kwargs: Any,
) -> list[Any]:
    """Call one method on several workers at once.

    Args:
        workers: The workers, in the order of the results.
        timeout_s: Deadline of the whole fan-out, in seconds.
        *args: Passed to each call.
        **kwargs: Passed to each call.

    Returns:
        One result per worker, in order.

    Raises:
        EngineCallError: A worker failed, died, or did not answer in time. It names the first.
    """
    async with UnwrappedTaskGroup() as group:
        tasks = [
            group.create_task(call_worker(worker, timeout_s, method, *args, **kwargs))
            for worker in workers
        ]
    return [task.result() for task in tasks]


@overload
async def call_worker(
    worker: WorkerHandle[WorkerT],
    timeout_s: float,
    method: Callable[Concatenate[WorkerT, Params], Coroutine[Any, Any, ResultT]],
    *args: Params.args,
    **kwargs: Params.kwargs,
) -> ResultT: ...


@overload
async def call_worker(
    worker: WorkerHandle[WorkerT],
    timeout_s: float,
    method: Callable[Concatenate[WorkerT, Params], ResultT],
    *args: Params.args,
    **kwargs: Params.kwargs,
) -> ResultT: ...


async def call_worker(
    worker: WorkerHandle[Any],
    timeout_s: float,
    method: Callable[..., Any],
    *args: Any,
    **kwargs: Any,
) -> Any:
    """Call one method of one worker; a caller that is cancelled cancels an `async` method too.

    Args:
        timeout_s: Deadline, in seconds.
        *args: Passed to the call.
        **kwargs: Passed to the call.

    Raises:
        EngineCallError: The worker failed, or did not answer in time.
        WorkerLostError: Its process is gone.
    """
    name = _name_of(method)
    reference = getattr(worker.actor, name).remote(*args, **kwargs)
    try:
        async with asyncio.timeout(timeout_s):
            return await reference
    except asyncio.CancelledError:
        if isinstance(reference, ray.ObjectRef):
            ray.cancel(reference)
        raise
    except TimeoutError as error:
        raise EngineCallError(
            f"{worker.name}.{name} did not answer within {timeout_s:g} s. The worker hangs or "
            f"the machine is overloaded.{_last_words(worker)}"
        ) from error
    except (ActorDiedError, ActorUnavailableError, WorkerCrashedError) as error:
        raise WorkerLostError(
            f"{worker.name} is gone; {name} was asked of it: {error}{_last_words(worker)}"
        ) from error
    except RayError as error:
        raise EngineCallError(f"{worker.name}.{name} failed: {error}") from error


def _name_of(method: object) -> str:
    name = getattr(method, "__name__", None)
    assert isinstance(name, str)
    return name


def _last_words(worker: WorkerHandle[object]) -> str:
    path = worker.log_path
    return "" if path is None else f"\nThe end of {path}:\n{log_tail(path)}"


def _kill(worker: WorkerHandle[object]) -> None:
    try:
        ray.kill(worker.actor, no_restart=True)
    except (RayError, ValueError) as error:
        logger.debug("worker %s was already gone: %s", worker.name, error)
