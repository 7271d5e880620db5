"""Restarts of rollout servers, and the way back to the newest weights.

A server that died, that does not answer, or that a publish left in quarantine is started again and
taken into the next group of the publisher; the weights that the ranks hold are then published once
more, under the version that they have, and only now generation goes to it.

Invariants:
    * while a server is away, requests go to the others; when it was the last one they wait;
    * a restarted server answers nothing before it holds published weights;
    * nobody publishes between an update and the publish that belongs to it: `lock`.

Called by the supervisor's loop (`restore`) and by the trainer's step (`publish`). Waits for the
start of a server, up to the start deadline, and for `lock`.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, Concatenate

from awrl_rollout import EpisodeAssignment, RolloutError, SGLangClient, UnwrappedTaskGroup
from awrl_trainer import PublishError, PublishReport, WeightPublisher

from webrl.cluster.scheduler import Params, WorkerHandle, call_worker
from webrl.errors import EngineCallError, RunFailedError
from webrl.launch.system import System, death_of
from webrl.records.live_view import LiveView
from webrl.rollout.worker import RolloutWorker
from webrl.training.publishing import SGLangReceiver

logger = logging.getLogger(__name__)

CHECK_DEADLINE_S = 30.0
"""A supervisor of a server that does not answer for this long counts as dead with its server."""

ROUTE_DEADLINE_S = 30.0
"""Telling a worker where to send its requests."""

DRAIN_S = 1.0
"""For requests that were cut to come back; SGLang's own pause would wait this long for them."""


class ServerRecovery:
    """Keeps the rollout servers of a run alive and up to date.

    Args:
        system: The started roles; its servers, addresses and clients are kept up to date.
        version: What the servers hold now.
        max_restarts: Of one server.
    """

    def __init__(
        self,
        system: System,
        weights: WeightPublisher,
        view: LiveView,
        *,
        version: int,
        max_restarts: int,
    ) -> None:
        """Watch over the started servers; nothing is owned."""
        self._max_restarts = max_restarts
        self._system = system
        self._weights = weights
        self._view = view
        self._version = version
        self._restarting = asyncio.Lock()
        self._num_restarts: Counter[int] = Counter()
        self._waiting: dict[str, SGLangReceiver] = {}
        self.lock = asyncio.Lock()
        """Held from the start of an update to the end of its publish."""
        self.assignment = EpisodeAssignment(system.server_urls)
        """Which server each episode is on."""
        self.workers: Sequence[WorkerHandle[RolloutWorker]] = ()
        """Rollout workers whose requests are routed; a worker that is away is passed over."""

    async def publish(self, version: int) -> PublishReport:
        """Publish the ranks' weights; with `lock` held.

        Servers that were restarted meanwhile take part. When no server is left, those that are lost
        are started again first.

        Raises:
            PublishError: No server could be brought to the version.
            RunFailedError: A server died once too often.
        """
        has_joined = await self._join()
        try:
            report = await self._publish(version, has_joined=has_joined)
            lost = self._weights.quarantined
            if {server.name for server in self._system.servers} <= lost.keys():
                raise PublishError(f"no server holds it: {dict(lost)}", phase="verify")
        except PublishError as error:
            self._view.note(f"publishing version {version} reached no server; starting them again")
            logger.warning("publish of version %d: %s", version, error)
            await self._restart_lost()
            has_joined |= await self._join()
            report = await self._publish(version, has_joined=has_joined)
        self._version = version
        return report

    async def _publish(self, version: int, *, has_joined: bool) -> PublishReport:
        """Publish with nothing in flight, then let workers ask again, at joined servers too.

        SGLang's pause sleeps a second whenever it finds a request in flight. So the workers hold theirs
        back, those in flight are cut, and the pause finds none; the report's window holds all of it.
        """
        if self._system.server_spec.backend != "sglang":
            report = await self._weights.publish(version)
            if has_joined:
                await self._route()
                await self._notify(RolloutWorker.resume)
            return report
        started = time.perf_counter()
        await self._notify(RolloutWorker.pause)
        try:
            async with UnwrappedTaskGroup() as group:
                for client in self._system.clients:
                    group.create_task(_abort_requests(client))
            await self._notify(RolloutWorker.drained, DRAIN_S)
            held_s = time.perf_counter() - started
            report = await self._weights.publish(version)
            published = time.perf_counter()
            if has_joined:
                await self._route()
        finally:
            await self._notify(RolloutWorker.resume)
        resumed_s = time.perf_counter() - published
        return replace(
            report,
            pause_s=report.pause_s + held_s,
            resume_s=report.resume_s + resumed_s,
            window_s=report.window_s + held_s + resumed_s,
        )

    async def restore(self) -> bool:
        """Restart what is lost and bring it to the newest weights; return whether something was.

        Raises:
            PublishError: No server could be brought to the newest weights.
            RunFailedError: A server died once too often, or does not start any more.
        """
        is_lost = await self._restart_lost()
        if not is_lost and not self._waiting:
            return False
        async with self.lock:
            if self._waiting:
                await self.publish(self._version)
        return True

    async def _restart_lost(self) -> bool:
        async with self._restarting:
            lost = await self._lost()
            if not lost:
                return False
            well = [url for i, url in enumerate(self._system.server_urls) if i not in lost]
            if well:
                await self._use(well)
            else:
                await self._notify(RolloutWorker.pause)
            async with UnwrappedTaskGroup() as group:
                for index, reason in lost.items():
                    group.create_task(self._restart(index, reason))
            return True

    async def _lost(self) -> dict[int, str]:
        """Return why each lost server is lost, by its index."""
        servers, quarantined = self._system.servers, self._weights.quarantined
        async with UnwrappedTaskGroup() as group:
            checks = [group.create_task(death_of(server, CHECK_DEADLINE_S)) for server in servers]
        reasons = {
            index: check.result() or quarantined.get(server.name)
            for index, (server, check) in enumerate(zip(servers, checks, strict=True))
            if server.name not in self._waiting
        }
        return {index: reason for index, reason in reasons.items() if reason is not None}

    async def _restart(self, index: int, reason: str) -> None:
        limit, name = self._max_restarts, self._system.servers[index].name
        logger.warning("server %s is lost: %s", name, reason)
        if self._num_restarts[index] >= limit:
            raise RunFailedError(
                f"inference server {name!r} died, and recover.max_restarts = {limit} restarts are "
                f"used up: {reason}"
            )
        self._num_restarts[index] += 1
        self._view.note(f"server {name} is lost; restart {self._num_restarts[index]} of {limit}")
        url = await self._system.restart_server(index)
        client, before = self._system.network.client(url), self._system.clients[index]
        self._system.clients[index], self._system.server_urls[index] = client, url
        await before.aclose()
        self._waiting[name] = SGLangReceiver(name, client)

    async def _join(self) -> bool:
        """Take restarted servers into the next publish; return whether there were any."""
        receivers = list(self._waiting.values())
        for receiver in receivers:
            try:
                await self._weights.rejoin(receiver)
            finally:
                # Not before: until it has joined, its quarantine is that of the process before.
                self._waiting.pop(receiver.name, None)
        return bool(receivers)

    async def _route(self) -> None:
        """Send requests to all servers that hold published weights."""
        away = self._weights.quarantined.keys() | self._waiting.keys()
        urls = [
            url
            for server, url in zip(self._system.servers, self._system.server_urls, strict=True)
            if server.name not in away
        ]
        await self._use(urls)

    async def _use(self, urls: Sequence[str]) -> None:
        """Send requests to these servers alone, from now on."""
        self.assignment.set_servers(urls)
        await self._notify(RolloutWorker.set_servers, urls)

    async def _notify(
        self,
        method: Callable[Concatenate[RolloutWorker, Params], Coroutine[Any, Any, object]],
        *args: Params.args,
        **kwargs: Params.kwargs,
    ) -> None:
        """Call a method of every worker; one that is dead is passed over.

        Its replacement starts with the addresses of the moment.
        """
        async with UnwrappedTaskGroup() as group:
            for worker in self.workers:
                call = call_worker(worker, ROUTE_DEADLINE_S, method, *args, **kwargs)
                group.create_task(_log_error(worker.name, call))


async def _log_error(worker: str, call: Coroutine[Any, Any, object]) -> None:
    try:
        await call
    except EngineCallError as error:
        logger.warning("%s was not notified: %s", worker, error)


async def _abort_requests(client: SGLangClient) -> None:
    """End what a server has in flight; one that is gone is the publish's to notice."""
    with suppress(RolloutError):
        await client.abort_all()
