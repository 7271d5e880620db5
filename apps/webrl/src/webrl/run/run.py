"""One run from its configuration to its end: roles, step loop, saving, evaluation, shut-down.

Loops, children of one TaskGroup:
    * stepping: see ``webrl.training.step_loop``;
    * watching: see ``webrl.run.supervisor``.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import AsyncExitStack
from pathlib import Path

from awrl_rollout import CallbackServer, FaultBreaker, RolloutController, RolloutError
from awrl_staleness import StalenessManager
from awrl_trainer import TrainRow, latest_complete_checkpoint

from webrl.cluster.scheduler import WorkerHandle
from webrl.cluster.unwrapped_group import task_scope
from webrl.config import WebRLConfig
from webrl.errors import EngineCallError, RunFailedError
from webrl.evaluation.role import TestRole
from webrl.launch import component_configs
from webrl.launch.launch import launch, stop_workers
from webrl.launch.running_system import System, find_dead_rank
from webrl.records.episode_log import BatchLog, EpisodeLog
from webrl.records.live_view import LiveView
from webrl.records.metrics import MetricLog
from webrl.records.run_folder import RunFolders, unpack_state
from webrl.rollout.batch_source import (
    EverlastingRollouts,
    GroupFilter,
    RolloutSource,
)
from webrl.rollout.synchronous import SynchronousRollouts
from webrl.rollout.task_stream import TaskStream
from webrl.rollout.worker import CallbackTarget
from webrl.run.checkpoints import SAVE_DEADLINE_S, Recorder
from webrl.run.server_recovery import ServerRecovery
from webrl.run.supervisor import Supervisor, WorkerPlan
from webrl.run.weight_updates import connect_weights
from webrl.training.rows import AdvantageConfig
from webrl.training.step_loop import PPOTrainer, Progress, StepConfig, keep_stepping

BATCH_DEADLINE_S = 3600.0
"""A batch that does not fill for an hour ends the run with the controller's account of why."""


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
            component_configs.task_draw(config),
            num_seeds=config.env.num_train_seeds,
            group_size=config.gconfig.n_samples,
            seed=config.seed,
        )
        self._episodes = EpisodeLog(folders.root / "episodes.jsonl")
        self._batches = BatchLog(folders.root / "batches.jsonl")
        self._filter = GroupFilter(self._stream, self._episodes.note)
        self._controller: RolloutController | None = None
        self._deadline: float | None = None
        self.has_started = False
        """Whether training began: what fails before is not cured by starting again."""

    async def run(self) -> Progress:
        """Start the roles, train until the configured end, save, and stop everything.

        Raises:
            WorkerLostError: A trainer rank died; the newest checkpoint is where to go on.
            WebRLError: The run could not start, or had to stop.
        """
        config, policy = self._config, str(self._policy_path)
        async with AsyncExitStack() as stack:
            stack.callback(self._episodes.close)
            stack.callback(self._batches.close)
            self._view.note("starting servers, trainer and browsers")
            system = await stack.enter_async_context(
                launch(config, policy, self._folders.logs, self._run_id, version=0)
            )
            recorder = Recorder(config, self._folders, system, self._stream)
            progress = await self._restore(system, recorder)
            weights = await connect_weights(
                config, self._folders, system, stack, version=progress.version, run_id=self._run_id
            )
            recovery = ServerRecovery(config, system, weights, self._view, version=progress.version)
            supervisor, rollouts = await self._rollouts(system, stack, progress, recovery)
            trainer = self._trainer(system, rollouts, recovery, recorder, progress)
            test = None
            if system.test_worker is not None:
                # The starting policy is the first point of the curve.
                await recorder.write_snapshot()
                test = TestRole(config, self._folders, system, system.test_worker, self._view)
                stack.callback(test.close)
            if config.time_limit_s is not None:
                self._deadline = time.monotonic() + config.time_limit_s - progress.train_s
            self._view.note("training")
            self.has_started = True
            try:
                await self._train(trainer, supervisor, recorder, test)
            except EngineCallError:
                await find_dead_rank(system)
                raise
            except RolloutError as error:
                raise RunFailedError(
                    f"{error}\nContinue with webrl train --resume {config.run_dir}."
                ) from error
            if self._controller is not None:
                self._controller.pause_admission()
            await recorder.save(progress)
            if test is not None:
                await test.evaluate_last(progress.version)
            return progress

    async def _train(
        self,
        trainer: PPOTrainer,
        supervisor: Supervisor,
        recorder: Recorder,
        test: TestRole | None,
    ) -> None:
        async def after_step(metrics: dict[str, float]) -> None:
            progress = trainer.progress
            self._log.log(metrics, progress.num_steps)
            self._view.step(metrics)
            is_due = progress.version % self._config.checkpoint.save_every == 0
            if is_due or (test is not None and test.takes_checkpoint()):
                await recorder.save(progress)

        async with task_scope() as group:
            watch = group.create_task(supervisor.watch(self._controller))
            await keep_stepping(
                trainer, is_over=lambda: self._is_over(trainer.progress), after_step=after_step
            )
            watch.cancel()

    def _is_over(self, progress: Progress) -> bool:
        if progress.version >= self._config.total_steps:
            return True
        return self._deadline is not None and time.monotonic() >= self._deadline

    async def _restore(self, system: System, recorder: Recorder) -> Progress:
        if not self._is_resumed:
            self._forget_after(Progress())
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
        recorder.resumed_at(version)
        self._forget_after(progress)
        self._view.note(f"resumed at version {version} from {path}")
        return progress

    def _forget_after(self, progress: Progress) -> None:
        """Drop what was written after the checkpoint that the run goes on from."""
        self._log.rewind(progress.num_steps)
        self._batches.rewind(progress.num_steps)
        self._folders.forget_later_weights(progress.version)

    async def _rollouts(
        self,
        system: System,
        stack: AsyncExitStack,
        progress: Progress,
        recovery: ServerRecovery,
    ) -> tuple[Supervisor, RolloutSource]:
        config = self._config
        spec = component_configs.worker_spec(
            config,
            system.server_spec,
            component_configs.train_tasks(config),
            num_slots=config.env.slots_per_worker,
            temperature=config.gconfig.temperature,
            is_synchronous=config.is_synchronous,
        )
        if config.is_synchronous:
            plan = WorkerPlan(spec=spec, target=None)
            supervisor = Supervisor(config, system, plan, recovery, self._view)
            handles = await supervisor.start_workers()
            stack.push_async_callback(stop_workers, handles)
            return supervisor, self._rounds(system, handles, progress)
        callback_server = CallbackServer(self._nudge, host=system.reach.host())
        callbacks = await stack.enter_async_context(callback_server)
        target = CallbackTarget(url=callbacks.url, token=callbacks.token)
        plan = WorkerPlan(spec=spec, target=target)
        supervisor = Supervisor(config, system, plan, recovery, self._view)
        await supervisor.start_workers()
        stack.push_async_callback(_stop_all, supervisor)
        self._controller = await stack.enter_async_context(
            RolloutController(
                supervisor.workers.values(),
                StalenessManager(
                    component_configs.staleness_config(config), version=progress.version
                ),
                source=self._stream.next_group,
                config=component_configs.controller_config(config),
                accept_group=self._filter.accept,
                on_discarded=self._filter.discarded,
                on_group_dropped=self._filter.group_dropped,
                extra_bounds=supervisor.extra_bounds,
                on_worker_lost=supervisor.note_lost,
            )
        )
        rollouts = EverlastingRollouts(self._controller, supervisor.workers, self._filter)
        return supervisor, rollouts

    def _rounds(
        self, system: System, handles: Sequence[WorkerHandle], progress: Progress
    ) -> SynchronousRollouts:
        config = self._config
        window = component_configs.controller_config(config).fault_window
        return SynchronousRollouts(
            system.scheduler,
            handles,
            self._stream,
            self._filter,
            group_size=config.gconfig.n_samples,
            breaker=FaultBreaker(max_share=config.rollout.max_fault_share, window=window),
            version=progress.version,
        )

    def _note_update(self, rows: Sequence[TrainRow], before: Progress) -> None:
        self._batches.note(rows, step=before.num_steps + 1, version=before.version)

    def _nudge(self, worker_name: str) -> None:
        if self._controller is not None:
            self._controller.notify(worker_name)

    def _trainer(
        self,
        system: System,
        rollouts: RolloutSource,
        recovery: ServerRecovery,
        recorder: Recorder,
        progress: Progress,
    ) -> PPOTrainer:
        actor = self._config.actor
        return PPOTrainer(
            scheduler=system.scheduler,
            ranks=system.ranks,
            rollouts=rollouts,
            filter_=self._filter,
            publish=recovery.publish,
            weights_lock=recovery.weights_lock,
            pixels=system.pixels,
            processor=system.processor,
            config=StepConfig(
                batch_size=self._config.rollout.consumer_batch_size,
                batch_timeout_s=BATCH_DEADLINE_S,
                advantage=AdvantageConfig(
                    norm=actor.group_advantage_norm, step_length=actor.step_adv_const_length
                ),
            ),
            progress=progress,
            on_batch=recorder.sample,
            on_update=self._note_update,
        )


async def _stop_all(supervisor: Supervisor) -> None:
    await stop_workers(supervisor.handles)
