"""The rollout worker of a run: everlasting slots with browsers, as a Ray actor.

Invariants:
    * one driver and one browser serve all slots for the worker's whole life; a session belongs to
      its slot and lives across episodes and weight versions;
    * a finished record is kept until the controller acknowledges it: a lost callback costs a poll
      interval, never the episode.

Loops (children of ``serve``): the executor's slots and its notify loop, which posts callbacks.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass

import aiohttp
import msgspec
import ray
import torch
from awrl_pixelstore import PixelStoreClient
from awrl_rollout import (
    EpisodeRecord,
    EpisodeRequest,
    ExecutorStatistics,
    InterruptibleGenerator,
    RetryPolicy,
    WorkflowExecutor,
)

from webrl.browser import BrowserConfig, BrowserPool
from webrl.policy import PolicyProcessor
from webrl.system.routing import ServerRouter, make_generator
from webrl.system.workflow import WebTaskWorkflow, WorkflowConfig
from webrl.tasks import Task

logger = logging.getLogger(__name__)

CALLBACK_DEADLINE_S = 5.0
"""A callback that takes longer is given up; polling brings the record."""


@dataclass(frozen=True, kw_only=True, slots=True)
class CallbackTarget:
    """Where to say that episodes ended."""

    url: str
    """Endpoint of the controller."""
    token: str
    """Bearer token that it asks for."""


@dataclass(frozen=True, kw_only=True, slots=True)
class WorkerSpec:
    """What every rollout worker is built from."""

    policy_path: str
    """Checkpoint directory with the tokenizer and processor."""
    tasks: tuple[Task, ...]
    """Every task that may be asked for."""
    browser: BrowserConfig
    """How browsers are run; its ``num_slots`` is the worker's."""
    workflow: WorkflowConfig
    """How the policy is asked."""
    episode_timeout_s: float
    """Deadline of one run of an episode, in seconds."""
    max_attempts: int
    """Runs of one episode in its slot before its fault is recorded."""
    initial_version: int = 0
    """Version of tokens from a server that was never updated."""


class RolloutWorker:
    """Slots, browsers, generation and callbacks; the class behind the Ray actor."""

    def __init__(
        self,
        name: str,
        spec: WorkerSpec,
        pixels: PixelStoreClient | None,
        callback: CallbackTarget | None,
    ) -> None:
        """Remember what to build; ``serve`` builds it.

        Args:
            name: Unique among the controller's workers.
            spec: Equal on every worker.
            pixels: Where screenshots go; None keeps none (evaluation).
            callback: Where to say that episodes ended; None for a worker that is only polled.
        """
        torch.set_num_threads(1)
        self._name = name
        self._spec = spec
        self._pixels = pixels
        self._callback = callback
        self._stack = AsyncExitStack()
        self._router: ServerRouter | None = None
        self._generator: InterruptibleGenerator | None = None
        self._executor: WorkflowExecutor | None = None
        self._http: aiohttp.ClientSession | None = None

    async def start(self, server_urls: Sequence[str]) -> int:
        """Start browser and generation; returns the process id of this worker.

        Raises:
            BrowserError: No browser could be started.
        """
        spec = self._spec
        pool = await self._stack.enter_async_context(BrowserPool(spec.browser))
        self._http = await self._stack.enter_async_context(aiohttp.ClientSession())
        self._router = ServerRouter(server_urls, initial_version=spec.initial_version)
        self._stack.push_async_callback(self._router.aclose)
        self._generator = make_generator(self._router, deadline_s=spec.episode_timeout_s)
        workflow = WebTaskWorkflow(
            pool=pool,
            tasks={task.full_name: task for task in spec.tasks},
            generator=self._generator,
            pixels=self._pixels,
            processor=PolicyProcessor.from_pretrained(spec.policy_path),
            config=spec.workflow,
        )
        self._stack.push_async_callback(workflow.aclose)
        self._executor = WorkflowExecutor(
            workflow,
            num_slots=spec.browser.num_slots,
            name=self._name,
            deadline_s=spec.episode_timeout_s,
            on_finished=self._announce if self._callback else None,
            retry=RetryPolicy(max_attempts=spec.max_attempts),
        )
        await workflow.warm_up(spec.browser.num_slots)
        return os.getpid()

    async def serve(self) -> None:
        """Run the slots until ``stop``; awaited by the controller as the sign of life."""
        async with self._stack:
            await self._built.serve()

    async def stop(self) -> None:
        """End every episode as cancelled and close browser and connections."""
        if self._executor is not None:
            await self._executor.aclose(timeout_s=3.0)

    async def respawn(self) -> None:
        """Close every session and open new ones: what a synchronous pool pays each round."""
        workflow = self._built.workflow
        assert isinstance(workflow, WebTaskWorkflow)
        await workflow.respawn(self._spec.browser.num_slots)

    async def submit(self, requests: Sequence[EpisodeRequest]) -> None:
        """Accept episode requests."""
        self._built.submit(requests)

    async def take_finished(self, acknowledged: Sequence[str]) -> list[EpisodeRecord]:
        """Forget the acknowledged records and return all others."""
        return self._built.take_finished(acknowledged)

    async def cancel(self, episode_ids: Sequence[str]) -> None:
        """End these episodes as cancelled."""
        self._built.cancel(episode_ids)

    async def pause(self) -> None:
        """Send no further attempt to an inference server."""
        self._generation.pause()

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

    async def _announce(self, records: Sequence[EpisodeRecord]) -> None:
        assert self._callback is not None
        assert self._http is not None
        body = {"worker": self._name, "episode_ids": [record.episode_id for record in records]}
        try:
            await self._http.post(
                self._callback.url,
                data=msgspec.json.encode(body),
                headers={"Authorization": f"Bearer {self._callback.token}"},
                timeout=aiohttp.ClientTimeout(total=CALLBACK_DEADLINE_S),
            )
        except (aiohttp.ClientError, TimeoutError) as error:
            logger.info("callback to %s was lost: %s", self._callback.url, error)


RolloutWorkerActor = ray.remote(RolloutWorker)
"""The class as a Ray actor; every method but ``serve`` returns at once."""
