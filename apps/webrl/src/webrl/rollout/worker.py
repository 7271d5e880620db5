"""The rollout worker of a run: everlasting slots with browsers, as a Ray actor.

Invariants:
    * one driver and one browser serve all slots for the worker's whole life; a session belongs to
      its slot and lives across episodes and weight versions;
    * a finished record is kept until the controller acknowledges it: a lost callback costs a poll
      interval, never the episode.

Loops (children of `serve`): the executor's slots and its notify loop, which posts callbacks. A
synchronous worker serves no slots of its own between rounds.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack, aclosing
from dataclasses import dataclass, field

import torch
from awrl_pixelstore import PixelStoreClient
from awrl_rollout import (
    CallbackNotifier,
    EpisodeRecord,
    EpisodeRequest,
    ExecutorStatistics,
    InterruptibleGenerator,
    RetryPolicy,
    SlotTime,
    StickyRouter,
    SyncPool,
    UnwrappedTaskGroup,
    WorkflowExecutor,
)

from webrl.browser import BrowserConfig, BrowserPool
from webrl.cluster.network import LOCAL, NetworkConfig
from webrl.cluster.worker_log import open_worker_log, worker_log_folder
from webrl.config import JudgeSection
from webrl.judge import Judge, JudgedFolder
from webrl.judge.kept import FOLDER as JUDGED
from webrl.policy import PolicyProcessor
from webrl.rollout.broken_pages import BrokenPages
from webrl.rollout.workflow import WebTaskWorkflow, WorkflowConfig
from webrl.tasks import Task

logger = logging.getLogger(__name__)

POLL_S = 0.2
"""Between two looks at the finished episodes of an evaluation."""

PATIENT = RetryPolicy(max_retries=8, base_delay_s=0.05, max_delay_s=2.0, jitter=0.0)
"""About 7 s of waits: by then a server's death is known and requests are held. An episode stays on
one server, so that its prefix cache serves every turn; siblings do not: a group on one server leaves
others without work, since groups are few beside many servers."""

RETRY_DELAY_S = 0.2
"""Before a faulted episode runs again in its slot; a restarted browser is back by then."""


@dataclass(frozen=True, kw_only=True, slots=True)
class CallbackTarget:
    """Where to say that episodes ended."""

    url: str
    """Endpoint of the controller."""
    token: str = field(repr=False)
    """Bearer token that it asks for."""


@dataclass(frozen=True, kw_only=True, slots=True)
class WorkerSpec:
    """What every rollout worker is built from."""

    policy_path: str
    """Checkpoint directory with the tokenizer and processor."""
    first_task: Task | None
    """What a new session shows; None where no task lives on the task server."""
    browser: BrowserConfig
    """How browsers are run; its `num_slots` is the worker's."""
    workflow: WorkflowConfig
    """How the policy is asked."""
    judge: JudgeSection | None
    """Who judges the episodes of tasks with a rubric; None when there are none."""
    episode_timeout_s: float
    """Deadline of one run of an episode, in seconds."""
    max_attempts: int
    """Runs of one episode in its slot before its fault is recorded."""
    is_synchronous: bool = False
    """Sessions are spawned and torn down around each round, instead of living on."""
    network: NetworkConfig = LOCAL
    """How to talk to the inference servers."""

    @property
    def num_episodes(self) -> int:
        """Return the episodes that the worker may have at once: in slots, and waiting for a verdict."""
        if self.judge is None or self.is_synchronous:
            return self.browser.num_slots
        return self.browser.num_slots + self.judge.max_waiting


class EpochClock:
    """Seconds since the epoch that never run backwards: what all logs of a run are written in."""

    def __init__(self) -> None:
        self._origin_s = time.time() - time.monotonic()

    def time(self) -> float:
        """Return the time now."""
        return self._origin_s + time.monotonic()

    async def sleep(self, delay_s: float) -> None:
        """Return `delay_s` seconds from now."""
        await asyncio.sleep(delay_s)


class RolloutWorker:
    """Slots, browsers, generation and callbacks; `start` builds them.

    Args:
        name: Unique among the controller's workers.
        spec: Equal on every worker.
        pixels: Where screenshots go; None keeps none (evaluation).
        callback: Where to say that episodes ended; None for a worker without a controller.
    """

    def __init__(
        self,
        name: str,
        spec: WorkerSpec,
        pixels: PixelStoreClient | None,
        callback: CallbackTarget | None,
    ) -> None:
        open_worker_log()
        torch.set_num_threads(1)
        self._name = name
        self._spec = spec
        self._pixels = pixels
        self._callback = callback
        self._stack = AsyncExitStack()
        self._router: StickyRouter | None = None
        self._generator: InterruptibleGenerator | None = None
        self._workflow: WebTaskWorkflow | None = None
        self._executor: WorkflowExecutor | None = None
        self._pool: SyncPool | None = None

    async def ready(self) -> str:
        """Return the worker's name: its process has started."""
        return self._name

    async def start(self, server_urls: Sequence[str]) -> int:
        """Start browser and generation; returns the process id of this worker.

        Raises:
            RunFailedError: No browser could be started.
            JudgeError: The environment lacks the judge's key.
        """
        spec = self._spec
        judge = None
        if spec.judge is not None:
            judge = await self._stack.enter_async_context(aclosing(Judge(spec.judge)))
        pool = await self._stack.enter_async_context(BrowserPool(spec.browser))
        self._router = StickyRouter(server_urls, connect=spec.network.client)
        self._stack.push_async_callback(self._router.aclose)
        limit_s = spec.episode_timeout_s
        self._generator = InterruptibleGenerator(self._router, deadline_s=limit_s, retry=PATIENT)
        self._workflow = workflow = WebTaskWorkflow(
            pool=pool,
            first_task=spec.first_task,
            generator=self._generator,
            pixels=self._pixels,
            processor=PolicyProcessor.from_pretrained(spec.policy_path),
            config=spec.workflow,
            judge=judge,
            broken_pages=BrokenPages(worker_log_folder()),
            judged=self._judged_folder(),
        )
        self._stack.push_async_callback(workflow.aclose)
        retry = RetryPolicy(max_retries=spec.max_attempts - 1, base_delay_s=RETRY_DELAY_S)
        if spec.is_synchronous:
            self._pool = SyncPool(
                workflow,
                num_slots=spec.browser.num_slots,
                name=self._name,
                spawn=workflow.open_session,
                tear_down=workflow.close_session,
                deadline_s=limit_s,
                retry=retry,
            )
        self._executor = WorkflowExecutor(
            workflow,
            num_slots=spec.browser.num_slots,
            name=self._name,
            deadline_s=limit_s,
            on_finished=self._notifier(),
            retry=retry,
            clock=EpochClock(),
            max_detached=0 if spec.judge is None else spec.judge.max_waiting,
        )
        if not spec.is_synchronous:
            async with UnwrappedTaskGroup() as group:
                for slot in range(spec.browser.num_slots):
                    group.create_task(workflow.open_session(slot))
        return os.getpid()

    def _judged_folder(self) -> JudgedFolder | None:
        """Return where judged episodes are kept: beside the logs, in the run's folder."""
        logs, judge = worker_log_folder(), self._spec.judge
        if logs is None or judge is None:
            return None
        return JudgedFolder(logs.parent / JUDGED / self._name, judge.kept_bytes)

    def _notifier(self) -> CallbackNotifier | None:
        """Return what tells the controller that episodes ended, where there is one."""
        if self._callback is None:
            return None
        target = self._callback
        notifier = CallbackNotifier(target.url, token=target.token, worker=self._name)
        self._stack.push_async_callback(notifier.aclose)
        return notifier

    async def serve(self) -> None:
        """Run the slots until `stop`; awaited by the controller as the sign of life."""
        async with self._stack:
            await self._built.serve()

    async def stop(self) -> None:
        """End every episode as cancelled and close browser and connections."""
        if self._executor is not None:
            await self._executor.aclose(timeout_s=3.0)

    async def run_round(self, requests: Sequence[EpisodeRequest]) -> list[EpisodeRecord]:
        """Run one synchronous round: spawn sessions, wait for the slowest, tear down."""
        if self._pool is None:
            raise RuntimeError("run_round needs a synchronous worker, got an everlasting one.")
        return await self._pool.run_round(requests)

    async def round_statistics(self) -> SlotTime:
        """Return rounds and slot time of a synchronous worker."""
        if self._pool is None:
            raise RuntimeError("round_statistics needs a synchronous worker.")
        return self._pool.statistics()

    async def run_episodes(
        self, requests: Sequence[EpisodeRequest], deadline_s: float
    ) -> list[EpisodeRecord]:
        """Run episodes on the everlasting slots; return the records of those that ended in time.

        The others are cancelled, and so are all when the call is.
        """
        executor, records = self._built, dict[str, EpisodeRecord]()
        wanted = {request.episode_id for request in requests}
        executor.submit(requests)
        try:
            async with asyncio.timeout(deadline_s):
                while len(records) < len(wanted):
                    await asyncio.sleep(POLL_S)
                    ended = executor.take_finished(list(records))
                    records |= {r.episode_id: r for r in ended if r.episode_id in wanted}
        except TimeoutError:
            logger.warning("%d episodes ran out of time", len(wanted) - len(records))
        finally:
            executor.cancel([key for key in wanted if key not in records])
            executor.take_finished(list(records))
        return list(records.values())

    async def submit(self, requests: Sequence[EpisodeRequest], servers: Mapping[str, str]) -> None:
        """Accept episode requests, and the servers that some of the episodes are to ask."""
        assert self._router is not None
        self._router.assign(servers)
        self._built.submit(requests)

    async def take_finished(self, acknowledged: Sequence[str]) -> list[EpisodeRecord]:
        """Forget the acknowledged records and return all others."""
        if self._router is not None:
            self._router.forget(acknowledged)
        return self._built.take_finished(acknowledged)

    async def cancel(self, episode_ids: Sequence[str]) -> None:
        """End these episodes as cancelled."""
        self._built.cancel(episode_ids)

    async def pause(self) -> None:
        """Send no further attempt to an inference server."""
        self._generation.pause()

    async def drained(self, deadline_s: float) -> bool:
        """Return whether no attempt is at a server any more, at the latest after `deadline_s`."""
        return await self._generation.drained(deadline_s=deadline_s)

    async def resume(self) -> None:
        """Send attempts again."""
        self._generation.resume()

    async def set_servers(self, urls: Sequence[str]) -> None:
        """Route to these servers from now on."""
        assert self._router is not None
        self._router.set_servers(urls)

    async def statistics(self) -> ExecutorStatistics:
        """Return what the slots do now."""
        return self._built.statistics()

    @property
    def _built(self) -> WorkflowExecutor:
        if self._executor is None:
            raise RuntimeError("start must be called before any other method, got none yet.")
        return self._executor

    @property
    def _generation(self) -> InterruptibleGenerator:
        if self._generator is None:
            raise RuntimeError("start must be called before any other method, got none yet.")
        return self._generator
