"""Signs of life of servers and workers, their restarts, and the PixelStore's reading.

Loops, children of `watch`, each with an interval of its own:
    * servers: consumes their signs of life, produces restarted ones (`webrl.run.server_recovery`);
    * workers: consumes names of lost workers, produces replacements;
    * store: consumes the PixelStore's fullness, produces an admission bound.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from awrl_pixelstore import PixelStoreError, Pressure
from awrl_rollout import RolloutController, UnwrappedTaskGroup, Worker

from webrl.cluster.scheduler import WorkerHandle, async_call_engine
from webrl.errors import RunFailedError
from webrl.launch import component_configs
from webrl.launch.system import System
from webrl.records.live_view import LiveView
from webrl.rollout.batch_source import RayWorker
from webrl.rollout.worker import CallbackTarget, RolloutWorker, WorkerSpec
from webrl.run.server_recovery import ServerRecovery

logger = logging.getLogger(__name__)

INTERVAL_S = 1.0
"""Between two looks at servers and the PixelStore."""

FULL_STORE_SHARE = 0.9
"""Fullness of the PixelStore at which no new group starts: the rest is for those under way."""


@dataclass(frozen=True, kw_only=True, slots=True)
class WorkerPlan:
    """What a rollout worker of this run is made of."""

    spec: WorkerSpec
    """Equal on every worker."""
    target: CallbackTarget | None
    """Where it reports; None in a synchronous run."""


class Supervisor:
    """Starts the rollout workers of a run and keeps them and the servers under watch.

    Args:
        recovery: Restarts servers.
        view: Shows restarts.
        max_restarts: Of one worker.
    """

    def __init__(
        self,
        system: System,
        plan: WorkerPlan,
        recovery: ServerRecovery,
        view: LiveView,
        *,
        max_restarts: int,
    ) -> None:
        self._recovery = recovery
        self._system = system
        self._plan = plan
        self._view = view
        self._max_restarts = max_restarts
        self._lost: asyncio.Queue[str] = asyncio.Queue()
        self._num_restarts: Counter[str] = Counter()
        self._pressure: Pressure | None = None
        self._assignment = recovery.assignment
        self.workers: dict[str, Worker] = {}
        """The live workers by name."""
        self.handles: list[WorkerHandle[RolloutWorker]] = []
        """Their actors; a replacement takes the place of the dead one."""

    def note_lost(self, name: str) -> None:
        """Note that a worker died; a controller calls this."""
        self._lost.put_nowait(name)

    def extra_bounds(self) -> dict[str, int]:
        """Return the admission bound of a nearly full PixelStore, none otherwise."""
        is_full = self._pressure is not None and self._pressure.value >= FULL_STORE_SHARE
        return {"pixelstore": 0} if is_full else {}

    async def metrics(self) -> dict[str, float]:
        """Return how full the fullest server is, and what the PixelStore holds while it answers."""
        own = {"inference/load_max_over_mean": self._assignment.max_over_mean}
        try:
            return {**own, **(await self._system.pixels.statistics_async()).as_metrics()}
        except PixelStoreError:
            return own

    async def start_workers(self) -> list[WorkerHandle[RolloutWorker]]:
        """Start every rollout worker and return the actors.

        Raises:
            EngineCallError: One did not start; the message holds its error.
        """
        ranks = range(self._system.scheduler.num_workers(component_configs.WORKER))
        await self._start([self._create(rank) for rank in ranks])
        return self.handles

    async def watch(self, controller: RolloutController | None) -> None:
        """Watch until cancelled.

        Args:
            controller: Takes the replacements of dead workers; None in a synchronous run, whose
                calls fail by themselves when a worker dies.

        Raises:
            PublishError: A restarted server could not be brought to the newest weights.
            RunFailedError: A server or a worker died once too often.
        """
        async with UnwrappedTaskGroup() as group:
            group.create_task(self._watch_servers())
            group.create_task(self._watch_store())
            if controller is not None:
                group.create_task(self._watch_workers(controller))

    async def _watch_servers(self) -> None:
        while True:
            await asyncio.sleep(INTERVAL_S)
            await self._recovery.restore()

    async def _watch_store(self) -> None:
        while True:
            await asyncio.sleep(INTERVAL_S)
            try:
                self._pressure = await self._system.pixels.pressure_async()
            except PixelStoreError as error:
                # Ray starts a dead shard again; who needs its screenshots finds out what is lost.
                logger.warning("the PixelStore gives no reading: %s", error)

    async def _watch_workers(self, controller: RolloutController) -> None:
        while True:
            name = await self._lost.get()
            await self._replace(name)
            controller.add_worker(self.workers[name])

    def _create(self, rank: int) -> WorkerHandle[RolloutWorker]:
        plan = self._plan
        return self._system.create_rollout_worker(plan.spec, rank, _name(rank), plan.target)

    async def _start(self, handles: Sequence[WorkerHandle[RolloutWorker]]) -> None:
        await async_call_engine(
            handles,
            self._system.start_timeout_s,
            RolloutWorker.start,
            self._system.server_urls,
        )
        for handle in handles:
            handle.actor.serve.remote()
            name = _name(handle.rank)
            self.workers[name] = RayWorker(
                handle, name, self._plan.spec.num_episodes, self._assignment
            )
            self.handles = [known for known in self.handles if known.rank != handle.rank]
            self.handles.append(handle)
        self._recovery.workers = self.handles

    async def _replace(self, name: str) -> None:
        limit = self._max_restarts
        if self._num_restarts[name] >= limit:
            raise RunFailedError(
                f"rollout worker {name!r} died, and recover.max_restarts = {limit} restarts are "
                "used up. Read run.log for its last words."
            )
        self._num_restarts[name] += 1
        self._view.note(f"rollout {name} died; restart {self._num_restarts[name]} of {limit}")
        self._assignment.release_worker(name)
        dead = next(handle for handle in self.handles if _name(handle.rank) == name)
        self._system.scheduler.forget(dead)
        await self._start([self._create(dead.rank)])


def _name(rank: int) -> str:
    return f"worker-{rank}"
