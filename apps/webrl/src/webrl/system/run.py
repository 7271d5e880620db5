"""One run from its configuration to its end: roles, step loop, saving, evaluation, shut-down.

Loops, children of one TaskGroup:
    * stepping: see ``webrl.system.trainer``;
    * supervision: consumes signs of life of servers and names of lost workers, produces restarts of
      workers and the PixelStore's reading; waits for its interval; a dead server ends the run with
      its log.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack
from pathlib import Path

from awrl_pixelstore import PixelStoreError, Pressure
from awrl_rollout import CallbackServer, RolloutController, Worker
from awrl_staleness import StalenessManager
from awrl_trainer import PublishReport, XcclPublisher, latest_complete_checkpoint
from rich.console import Console

from webrl.config import WebRLConfig
from webrl.errors import RunFailedError
from webrl.system import mapping
from webrl.system.batching import AdvantageConfig, GroupMember
from webrl.system.evaluation import EvaluationResult
from webrl.system.launch import System, create_rollout_worker, launch, stop_workers
from webrl.system.live_view import LiveView
from webrl.system.metrics import MetricLog
from webrl.system.ray_worker import RayWorker
from webrl.system.rollout_worker import CallbackTarget, WorkerSpec
from webrl.system.rollouts import (
    EverlastingRollouts,
    GroupFilter,
    RolloutSource,
    SynchronousRollouts,
)
from webrl.system.run_state import RunFolders, pack_state, unpack_state
from webrl.system.samples import write_sample
from webrl.system.scheduler import WorkerHandle
from webrl.system.task_scope import task_scope
from webrl.system.task_stream import TaskStream
from webrl.system.test_rollout import TestRolloutManager, TestRolloutSpec
from webrl.system.trainer import PPOTrainer, Progress, StepConfig, keep_stepping
from webrl.system.weights import RayWeightSource

logger = logging.getLogger(__name__)

SUPERVISION_INTERVAL_S = 1.0
"""Between two looks at servers and the PixelStore."""

SAVE_DEADLINE_S = 600.0
"""Limit of writing one checkpoint."""

TEST_STOP_S = 3.0
"""The evaluation thread ends within one poll; its worker is killed otherwise."""

FULL_STORE_SHARE = 0.9
"""Fullness of the PixelStore at which no new group starts: the rest is for those under way."""


class Run:
    """Everything of one run inside the controller's event loop."""

    def __init__(
        self,
        config: WebRLConfig,
        folders: RunFolders,
        policy_path: Path,
        *,
        run_id: str,
        view: LiveView,
        log: MetricLog,
        is_resumed: bool,
    ) -> None:
        """Prepare a run; nothing starts before ``run``.

        Args:
            config: Resolved configuration.
            folders: Where its parts lie.
            policy_path: Checkpoint that training starts from.
            run_id: Names the run on the Ray cluster.
            view: What a person sees.
            log: Metric sinks.
            is_resumed: Continue from the newest checkpoint.
        """
        self._config = config
        self._folders = folders
        self._policy_path = policy_path
        self._run_id = run_id
        self._view = view
        self._log = log
        self._is_resumed = is_resumed
        self._stream = TaskStream(
            mapping.task_draw(config),
            num_seeds=config.env.num_train_seeds,
            group_size=config.gconfig.n_samples,
            seed=config.seed,
        )
        self._filter = GroupFilter(self._stream)
        self._workers: dict[str, Worker] = {}
        self._lost: asyncio.Queue[str] = asyncio.Queue()
        self._num_restarts = 0
        self._pressure: Pressure | None = None
        self._test: TestRolloutManager | None = None
        self._num_groups = 0
        self._last_saved = -1
        self._deadline: float | None = None

    async def run(self) -> Progress:
        """Start the roles, train until the configured end, save, and stop everything.

        Raises:
            WebRLError: The run could not start, or had to stop.
        """
        config = self._config
        async with AsyncExitStack() as stack:
            self._view.note("starting servers, trainer and browsers")
            system = await stack.enter_async_context(
                launch(config, str(self._policy_path), self._folders.logs, self._run_id, version=0)
            )
            progress = await self._restore(system)
            publisher = await self._connect(system, stack, progress)
            rollouts = await self._rollouts(system, stack, progress)
            trainer = self._trainer(system, rollouts, publisher, progress)
            if system.test_worker is not None:
                self._test = self._start_test(system, system.test_worker)
                stack.callback(self._test.close, TEST_STOP_S)
            if config.time_limit_s is not None:
                self._deadline = time.monotonic() + config.time_limit_s - progress.train_s
            self._view.note("training")
            await self._train(system, trainer, rollouts)
            await self._save(system, trainer.progress)
            return trainer.progress

    async def _train(self, system: System, trainer: PPOTrainer, rollouts: RolloutSource) -> None:
        async def after_step(metrics: dict[str, float]) -> None:
            self._log.log(metrics, trainer.progress.num_steps)
            self._view.step(metrics)
            is_due = trainer.progress.version % self._config.checkpoint.save_every == 0
            if is_due or (self._test is not None and self._test.wants_checkpoint):
                await self._save(system, trainer.progress)

        async with task_scope() as group:
            watch = group.create_task(self._supervise(system, rollouts))
            await keep_stepping(
                trainer,
                is_over=lambda: self._is_over(trainer.progress),
                after_step=after_step,
            )
            watch.cancel()

    def _is_over(self, progress: Progress) -> bool:
        if progress.version >= self._config.total_steps:
            return True
        return self._deadline is not None and time.monotonic() >= self._deadline

    # -- set-up

    async def _restore(self, system: System) -> Progress:
        if not self._is_resumed:
            return Progress()
        path = latest_complete_checkpoint(self._folders.state)
        if path is None:
            raise RunFailedError(
                f"--resume must find a complete checkpoint below {str(self._folders.state)!r}, got "
                "none. The run ended before its first save: start a new one."
            )
        answers = await system.scheduler.async_call_engine(
            system.ranks, "load", str(path), timeout_s=SAVE_DEADLINE_S
        )
        version = (await system.scheduler.async_call_engine(system.ranks[:1], "version"))[0]
        progress, is_same_data = unpack_state(answers[0], version, self._stream)
        if not is_same_data:
            self._view.note("warning: tasks or seeds changed; the task order starts anew")
        self._last_saved = version
        self._view.note(f"resumed at version {version} from {path}")
        return progress

    async def _connect(
        self, system: System, stack: AsyncExitStack, progress: Progress
    ) -> XcclPublisher:
        host = "127.0.0.1" if len(system.ranks) == 1 else await self._rank_host(system)
        publisher = XcclPublisher(
            RayWeightSource(system.scheduler, system.ranks),
            system.receivers(),
            mapping.publisher_config(self._config, host, self._run_id),
        )
        stack.push_async_callback(publisher.aclose)
        await publisher.connect()
        if progress.version > 0:
            await publisher.publish(progress.version)
        return publisher

    @staticmethod
    async def _rank_host(system: System) -> str:
        answers = await system.scheduler.async_call_engine(system.ranks[:1], "rendezvous")
        return answers[0][0]

    async def _rollouts(
        self, system: System, stack: AsyncExitStack, progress: Progress
    ) -> RolloutSource:
        config = self._config
        spec = mapping.worker_spec(
            config,
            str(self._policy_path),
            mapping.train_tasks(config),
            num_slots=config.env.slots_per_worker,
            temperature=config.gconfig.temperature,
            is_synchronous=config.is_synchronous,
        )
        if config.is_synchronous:
            handles = await self._start_workers(system, stack, spec, None)
            return SynchronousRollouts(
                system.scheduler,
                handles,
                self._stream,
                self._filter,
                group_size=config.gconfig.n_samples,
                version=progress.version,
            )
        manager = StalenessManager(mapping.staleness_config(config), version=progress.version)
        controller = RolloutController(
            [],
            manager,
            source=self._stream.next_group,
            config=mapping.controller_config(config),
            accept_group=self._filter.accept,
            on_discarded=self._filter.discarded,
            on_group_dropped=self._filter.group_dropped,
            extra_bounds=self._extra_bounds,
            on_worker_lost=self._lost.put_nowait,
        )
        callbacks = await stack.enter_async_context(CallbackServer(controller.nudge))
        target = CallbackTarget(url=callbacks.url, token=callbacks.token)
        handles = await self._start_workers(system, stack, spec, target)
        for handle in handles:
            self._adopt(handle, spec.browser.num_slots)
        await stack.enter_async_context(controller)
        for worker in self._workers.values():
            controller.add_worker(worker)
        self._replacement = (spec, target)
        return EverlastingRollouts(controller, self._workers, self._filter)

    async def _start_workers(
        self,
        system: System,
        stack: AsyncExitStack,
        spec: WorkerSpec,
        target: CallbackTarget | None,
    ) -> list[WorkerHandle]:
        handles = [
            create_rollout_worker(system, spec, rank, f"worker-{rank}", target)
            for rank in range(self._config.env.num_workers)
        ]
        await system.scheduler.async_call_engine(
            handles,
            "start",
            system.server_urls,
            timeout_s=self._config.scheduler.startup_timeout_s,
        )
        self._serve(handles)
        stack.push_async_callback(stop_workers, handles)
        return handles

    def _serve(self, handles: Sequence[WorkerHandle]) -> None:
        for handle in handles:
            handle.actor.serve.remote()

    def _adopt(self, handle: WorkerHandle, num_slots: int) -> None:
        name = f"worker-{handle.rank}"
        self._workers[name] = RayWorker(handle, name, num_slots)

    def _trainer(
        self,
        system: System,
        rollouts: RolloutSource,
        publisher: XcclPublisher,
        progress: Progress,
    ) -> PPOTrainer:
        config = self._config

        async def publish(version: int) -> PublishReport:
            return await publisher.publish(version)

        return PPOTrainer(
            scheduler=system.scheduler,
            ranks=system.ranks,
            rollouts=rollouts,
            filter_=self._filter,
            publish=publish,
            pixels=system.pixels,
            processor=system.processor,
            config=StepConfig(
                batch_size=config.rollout.consumer_batch_size,
                batch_timeout_s=3600.0,
                advantage=AdvantageConfig(
                    norm=config.actor.group_advantage_norm,
                    step_length=config.actor.step_adv_const_length,
                ),
            ),
            progress=progress,
            on_batch=lambda members, advantages: self._sample(system, members, advantages),
        )

    def _start_test(self, system: System, worker: WorkerHandle) -> TestRolloutManager:
        section = self._config.test_rollout

        def show(result: EvaluationResult) -> None:
            self._view.evaluated(result.version, result.mean, result.low, result.high)

        manager = TestRolloutManager(
            spec=TestRolloutSpec(
                tasks=tuple(task.full_name for task in mapping.test_tasks(self._config)),
                num_seeds=section.num_seeds,
                interval_s=section.interval_s,
                is_greedy=section.temperature == 0,
            ),
            checkpoints=self._folders.policies,
            results=self._folders.evaluations,
            server_urls=system.test_urls,
            worker=worker,
            on_result=show,
        )
        manager.start()
        return manager

    # -- during the run

    async def _save(self, system: System, progress: Progress) -> None:
        """Write trainer state and policy snapshot of the current version, once."""
        if progress.version == self._last_saved:
            return
        keep = self._config.checkpoint.keep
        await system.scheduler.async_call_engine(
            system.ranks,
            "write_snapshot",
            str(self._folders.policies),
            keep,
            timeout_s=SAVE_DEADLINE_S,
        )
        await system.scheduler.async_call_engine(
            system.ranks,
            "save",
            str(self._folders.state),
            keep,
            pack_state(progress, self._stream),
            timeout_s=SAVE_DEADLINE_S,
        )
        self._last_saved = progress.version

    async def _sample(
        self, system: System, members: Sequence[GroupMember], advantages: dict[str, float]
    ) -> None:
        """Keep one group in so many on disk, with its screenshots."""
        groups = list(dict.fromkeys(member.group_id for member in members))
        every = self._config.logging.sample_every
        chosen = {g for i, g in enumerate(groups, self._num_groups) if i % every == 0}
        self._num_groups += len(groups)
        for member in members:
            if member.group_id not in chosen:
                continue
            keys = member.trajectory.image_keys
            try:
                images = await system.pixels.get_many_async(keys)
            except PixelStoreError as error:
                logger.info("sample of %s without screenshots: %s", member.episode_id, error)
                images = []
            write_sample(
                self._folders.samples,
                member.episode_id,
                member.trajectory,
                {k: d for k, d in zip(keys, images, strict=False) if isinstance(d, bytes)},
                {"advantage": advantages[member.episode_id], "group_id": member.group_id},
            )

    def _extra_bounds(self) -> dict[str, int]:
        """Hold back new groups while the PixelStore is nearly full."""
        is_full = self._pressure is not None and self._pressure.value >= FULL_STORE_SHARE
        return {"pixelstore": 0} if is_full else {}

    async def _supervise(self, system: System, rollouts: RolloutSource) -> None:
        while True:
            await asyncio.sleep(SUPERVISION_INTERVAL_S)
            for death in await system.scheduler.async_call_engine(system.servers, "check"):
                if death is not None:
                    raise RunFailedError(f"an inference server died: {death}")
            self._pressure = await system.pixels.pressure_async()
            while not self._lost.empty():
                assert isinstance(rollouts, EverlastingRollouts)
                await self._replace_worker(system, rollouts.controller, self._lost.get_nowait())

    async def _replace_worker(
        self, system: System, controller: RolloutController, name: str
    ) -> None:
        limit = self._config.recover.max_restarts
        if self._num_restarts >= limit:
            raise RunFailedError(
                f"rollout worker {name!r} died, and recover.max_restarts = {limit} restarts are "
                "used up. Read the log for its last words."
            )
        self._num_restarts += 1
        self._view.note(f"rollout worker {name} died; restart {self._num_restarts} of {limit}")
        dead = self._workers[name]
        assert isinstance(dead, RayWorker)
        system.scheduler.forget(dead.handle)
        spec, target = self._replacement
        handle = create_rollout_worker(system, spec, dead.handle.rank, name, target)
        await system.scheduler.async_call_engine(
            [handle],
            "start",
            system.server_urls,
            timeout_s=self._config.scheduler.startup_timeout_s,
        )
        self._serve([handle])
        self._adopt(handle, spec.browser.num_slots)
        controller.add_worker(self._workers[name])


def describe_end(progress: Progress, folders: RunFolders, console: Console) -> None:
    """Print where the results are."""
    console.print(
        f"trained {progress.num_steps} batches of {progress.num_trained_episodes} episodes in "
        f"{progress.train_s:.0f} s; weight version {progress.version}"
    )
    console.print(f"  metrics       {folders.root / 'metrics.jsonl'}")
    console.print(f"  evaluations   {folders.evaluations}")
    console.print(f"  trajectories  {folders.samples}")
    console.print(f"  policy        {latest_complete_checkpoint(folders.policies)}")
