"""One run from its configuration to its end: roles, step loop, saving, evaluation, shut-down.

`run_training` is what `webrl train` calls. It repeats `Run` from the newest checkpoint when a part
is lost that can't be replaced in place. The loops of a run are drawn in `webrl.run`.
"""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
import time
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from pathlib import Path

import msgspec
import torch
from awrl_pixelstore import PixelStoreUnavailable
from awrl_rollout import (
    CallbackServer,
    FaultBreaker,
    RolloutController,
    RolloutError,
    UnwrappedTaskGroup,
)
from awrl_staleness import StalenessManager
from awrl_trainer import PublishError, latest_complete_checkpoint
from rich.console import Console

from webrl.cluster.ray_cluster import ray_cluster, until_signalled
from webrl.config import WebRLConfig
from webrl.errors import EngineCallError, RunFailedError, WorkerLostError
from webrl.evaluation.manager import EvaluationManager
from webrl.evaluation.statistics import EvaluationResult
from webrl.launch import component_configs, run_tasks
from webrl.launch.system import System, launch, stop_each
from webrl.policy import InitPolicyConfig, WarmupConfig, init_policy
from webrl.process_log import log_to_file
from webrl.records.live_view import LiveView
from webrl.records.metrics import MetricLog, continued, is_total
from webrl.records.run_folder import RunFolders
from webrl.rollout.batch_source import (
    EverlastingRollouts,
    GroupFilter,
    RayRoundPool,
    SynchronousRollouts,
)
from webrl.rollout.task_stream import TaskStream
from webrl.rollout.worker import CallbackTarget, RolloutWorker
from webrl.run.checkpoints import Recorder
from webrl.run.server_recovery import ServerRecovery
from webrl.run.supervisor import Supervisor, WorkerPlan
from webrl.run.weight_updates import connect_weights
from webrl.training.ranks import TrainerRanks
from webrl.training.rows import AdvantageConfig, RowBuilder
from webrl.training.step_loop import (
    PPOTrainer,
    Progress,
    RolloutSource,
    StepConfig,
    keep_stepping,
)

logger = logging.getLogger(__name__)

INTERRUPTED = 130
"""Exit code after Ctrl-C, as shells use it."""

POLICY_FOLDER = "policy"
"""Folder of a made policy within the run's."""

BATCH_DEADLINE_S = 3600.0
"""A batch that does not fill for an hour ends the run with the controller's account of why."""


class Run:
    """Everything of one run inside the controller's event loop; nothing starts before `run`.

    Args:
        config: Resolved configuration.
        folders: Where its parts lie.
        policy_path: Checkpoint that training starts from.
        log: Metric sinks.
        is_resumed: Continue from the newest checkpoint.
    """

    def __init__(
        self,
        config: WebRLConfig,
        folders: RunFolders,
        policy_path: Path,
        *,
        view: LiveView,
        log: MetricLog,
        is_resumed: bool,
    ) -> None:
        self._config = config
        self._folders = folders
        self._policy_path = policy_path
        self._run_id = f"webrl-{secrets.token_hex(4)}"
        self._view = view
        self._log = log
        self._is_resumed = is_resumed
        self._controller: RolloutController | None = None
        self._deadline: float | None = None
        self._step_of_version: dict[int, int] = {}
        self.has_started = False
        """Whether training began: what fails before is not cured by starting again."""

    async def run(self) -> Progress:
        """Start the roles, train until the configured end, save, and stop everything.

        Raises:
            WorkerLostError: A trainer rank died; the newest checkpoint is where to go on.
            WebRLError: The run could not start, or had to stop.
        """
        config = self._config
        async with AsyncExitStack() as stack:
            self._view.note("starting servers, trainer and browsers")
            system = await stack.enter_async_context(self._launch())
            stream = component_configs.task_stream(config)
            ranks = TrainerRanks(system.ranks)
            recorder = self._recorder(system, ranks, stream)
            stack.callback(recorder.close)
            progress = await self._restore(recorder)
            weights = await connect_weights(
                config, self._folders, system, stack, version=progress.version, run_id=self._run_id
            )
            limit, version = config.recover.max_restarts, progress.version
            recovery = ServerRecovery(
                system, weights, self._view, version=version, max_restarts=limit
            )
            group_filter = GroupFilter(stream, recorder.note_group)
            supervisor, rollouts = await self._start_rollouts(
                system, stack, recovery, stream, group_filter, version=progress.version
            )
            trainer = self._trainer(system, rollouts, ranks, recovery, recorder, progress)
            evaluation = await self._start_evaluation(system, stack, recorder)
            if config.time_limit_s is not None:
                self._deadline = time.monotonic() + config.time_limit_s - progress.train_s
            self._view.note("training")
            self.has_started = True
            try:
                await self._train(trainer, supervisor, recorder, evaluation)
            except EngineCallError:
                await ranks.find_dead()
                raise
            except RolloutError as error:
                raise RunFailedError(
                    f"{error}\nContinue with webrl train --resume {config.run_dir}."
                ) from error
            if self._controller is not None:
                self._controller.pause_admission()
            await recorder.save(progress)
            if evaluation is not None:
                self._view.note(f"evaluating version {progress.version} on the final seeds")
                await evaluation.evaluate_last(progress.version)
            return progress

    def _launch(self) -> AbstractAsyncContextManager[System]:
        path = latest_complete_checkpoint(self._folders.state) if self._is_resumed else None
        return launch(
            self._config,
            str(self._policy_path),
            self._folders.logs,
            self._run_id,
            version=0 if path is None else int(path.name.rpartition("_")[2]),
        )

    def _recorder(self, system: System, ranks: TrainerRanks, stream: TaskStream) -> Recorder:
        return Recorder(
            self._folders,
            stream,
            ranks,
            system.pixels,
            keep=self._config.checkpoint.keep,
            sample_every=self._config.logging.sample_every,
        )

    async def _train(
        self,
        trainer: PPOTrainer,
        supervisor: Supervisor,
        recorder: Recorder,
        evaluation: EvaluationManager | None,
    ) -> None:
        before = trainer.progress.totals

        async def after_step(metrics: dict[str, float]) -> None:
            progress = trainer.progress
            self._step_of_version.setdefault(progress.version, progress.num_steps)
            metrics = continued({**metrics, **await supervisor.store_metrics()}, before)
            totals = {key: value for key, value in metrics.items() if is_total(key)}
            progress.totals = {**progress.totals, **totals}
            self._log.log(metrics, progress.num_steps)
            self._view.step(metrics)
            is_due = progress.version % self._config.checkpoint.save_every == 0
            if is_due or (evaluation is not None and evaluation.takes_checkpoint()):
                await recorder.save(progress)

        async with UnwrappedTaskGroup() as group:
            watch = group.create_task(supervisor.watch(self._controller))
            await keep_stepping(
                trainer, is_over=lambda: self._is_over(trainer.progress), after_step=after_step
            )
            watch.cancel()

    def _is_over(self, progress: Progress) -> bool:
        if progress.version >= self._config.total_steps:
            return True
        return self._deadline is not None and time.monotonic() >= self._deadline

    async def _restore(self, recorder: Recorder) -> Progress:
        """Return the counters to go on from, with everything later forgotten."""
        progress = Progress()
        if self._is_resumed:
            progress, path, is_same_data = await recorder.restore()
            if not is_same_data:
                self._view.note("warning: tasks or seeds changed; the task order starts anew")
            self._view.note(f"resumed at version {progress.version} from {path}")
        recorder.forget_after(progress)
        self._step_of_version[progress.version] = progress.num_steps
        self._log.rewind(progress.num_steps)
        return progress

    async def _start_rollouts(
        self,
        system: System,
        stack: AsyncExitStack,
        recovery: ServerRecovery,
        stream: TaskStream,
        group_filter: GroupFilter,
        *,
        version: int,
    ) -> tuple[Supervisor, RolloutSource]:
        """Start the rollout workers, and the controller where they are everlasting."""
        config = self._config
        supervisor = await self._start_workers(system, stack, recovery)
        limits = component_configs.controller_config(config)
        if config.is_synchronous:
            rounds = SynchronousRollouts(
                [RayRoundPool(handle, BATCH_DEADLINE_S) for handle in supervisor.handles],
                stream,
                group_filter,
                group_size=config.gconfig.n_samples,
                breaker=FaultBreaker(max_share=limits.max_fault_share, window=limits.fault_window),
                version=version,
            )
            return supervisor, rounds
        self._controller = await stack.enter_async_context(
            RolloutController(
                supervisor.workers.values(),
                StalenessManager(component_configs.staleness_config(config), version=version),
                source=stream.next_group,
                config=limits,
                accept_group=group_filter.accept,
                on_discarded=group_filter.discarded,
                on_group_dropped=group_filter.group_dropped,
                extra_bounds=supervisor.extra_bounds,
                on_worker_lost=supervisor.note_lost,
            )
        )
        return supervisor, EverlastingRollouts(self._controller, supervisor.workers, group_filter)

    async def _start_workers(
        self, system: System, stack: AsyncExitStack, recovery: ServerRecovery
    ) -> Supervisor:
        config = self._config
        spec = component_configs.worker_spec(
            config,
            system.server_spec,
            run_tasks.train_tasks(config),
            num_slots=config.env.slots_per_worker,
            temperature=config.gconfig.temperature,
            is_synchronous=config.is_synchronous,
        )
        target = None
        if not config.is_synchronous:
            callbacks = await stack.enter_async_context(
                CallbackServer(self._notify, host=system.network.host())
            )
            target = CallbackTarget(url=callbacks.url, token=callbacks.token)
        plan = WorkerPlan(spec=spec, target=target)
        supervisor = Supervisor(
            system, plan, recovery, self._view, max_restarts=config.recover.max_restarts
        )
        await supervisor.start_workers()
        stack.push_async_callback(_stop_workers, supervisor)
        return supervisor

    def _notify(self, worker_name: str) -> None:
        if self._controller is not None:
            self._controller.notify(worker_name)

    def _trainer(
        self,
        system: System,
        rollouts: RolloutSource,
        ranks: TrainerRanks,
        recovery: ServerRecovery,
        recorder: Recorder,
        progress: Progress,
    ) -> PPOTrainer:
        actor = self._config.actor
        advantage = AdvantageConfig(norm=actor.group_advantage_norm)
        return PPOTrainer(
            rollouts=rollouts,
            preparation=RowBuilder(system.pixels, system.processor, advantage),
            engines=ranks,
            weights=recovery,
            recorder=recorder,
            config=StepConfig(
                batch_size=self._config.rollout.consumer_batch_size,
                batch_timeout_s=BATCH_DEADLINE_S,
            ),
            progress=progress,
        )

    async def _start_evaluation(
        self, system: System, stack: AsyncExitStack, recorder: Recorder
    ) -> EvaluationManager | None:
        if not self._config.test_rollout.enabled:
            return None
        # The starting policy is the first point of the curve.
        await recorder.write_snapshot()
        evaluation = EvaluationManager(self._config, self._folders, system, self._show)
        stack.push_async_callback(evaluation.aclose)
        await evaluation.start()
        return evaluation

    def _show(self, result: EvaluationResult) -> None:
        self._view.evaluated(result.version, result.mean, result.low, result.high)
        if result.num_late:
            self._view.note(f"version {result.version}: {result.describe()}")
        self._log.log(result.metrics(), self._step_of_version.get(result.version, result.version))


async def _stop_workers(supervisor: Supervisor) -> None:
    await stop_each(supervisor.handles, RolloutWorker.stop)


def run_training(config: WebRLConfig, *, resume: bool, console: Console) -> int:
    """Train until the configured end.

    Args:
        config: Resolved configuration.
        resume: Continue from the newest checkpoint of `config.run_dir`.
        console: Where to draw.

    Returns:
        0, or 130 after Ctrl-C.

    Raises:
        WebRLError: The run could not start, or had to stop.
    """
    folders = RunFolders(Path(config.run_dir).resolve())
    with log_to_file(folders.root / "run.log", config.logging.level):
        return _run_logged(config, folders, resume=resume, console=console)


def _run_logged(config: WebRLConfig, folders: RunFolders, *, resume: bool, console: Console) -> int:
    log = MetricLog.open(folders.root, config.logging.tracker, config=msgspec.to_builtins(config))
    try:
        with LiveView(console, title=str(config.run_dir)) as view:
            for name in log.num_failures:
                view.note(f"warning: {name} could not be opened, see run.log; training goes on")
            view.note("preparing the policy")
            policy_path = ensure_policy(config, folders.root)
            view.note("starting Ray")
            with ray_cluster(namespace=f"webrl-{secrets.token_hex(4)}"):
                progress = _run_to_its_end(config, folders, policy_path, resume, view, log)
    except (KeyboardInterrupt, asyncio.CancelledError):
        console.print(f"interrupted; continue with: webrl train --resume {config.run_dir}")
        return INTERRUPTED
    finally:
        log.close()
    _describe_end(progress, folders, console)
    return 0


def _run_to_its_end(
    config: WebRLConfig,
    folders: RunFolders,
    policy_path: Path,
    resume: bool,
    view: LiveView,
    log: MetricLog,
) -> Progress:
    """Run; when a part is lost that can't be replaced in place, go on from the newest checkpoint."""
    num_restarts, limit = 0, config.recover.max_restarts
    while True:
        run = Run(config, folders, policy_path, view=view, log=log, is_resumed=resume)
        try:
            return asyncio.run(until_signalled(run.run()))
        except (WorkerLostError, PublishError, PixelStoreUnavailable) as error:
            if not run.has_started or num_restarts >= limit:
                raise
            num_restarts += 1
            logger.exception("the run starts again")
            first_line = str(error).partition("\n")[0]
            view.note(f"{first_line}; restart {num_restarts} of {limit} from the newest checkpoint")
            resume = latest_complete_checkpoint(folders.state) is not None


def ensure_policy(config: WebRLConfig, run_dir: Path) -> Path:
    """Return the folder of the starting policy, made when the configuration names none.

    A made policy appears by rename: a run that was killed in mid-warm-up makes it again.
    """
    if config.policy.path is not None:
        return Path(config.policy.path).resolve()
    folder = (run_dir / POLICY_FOLDER).resolve()
    if folder.is_dir():
        return folder
    section = config.policy.init
    # A tiny model gains nothing from threads, and loses much when they wait for each other.
    torch.set_num_threads(1)
    partial = folder.with_name(f".{POLICY_FOLDER}-{os.getpid()}")
    init_policy(
        partial,
        InitPolicyConfig(
            seed=config.seed if section.seed is None else section.seed,
            warmup=WarmupConfig(
                num_updates=section.num_updates,
                batch_size=section.batch_size,
                learning_rate=section.lr,
            ),
        ),
    )
    partial.rename(folder)
    return folder


def _describe_end(progress: Progress, folders: RunFolders, console: Console) -> None:
    """Print where the results are."""
    console.print(
        f"trained {progress.num_steps} batches of {progress.num_trained_episodes} episodes in "
        f"{progress.train_s:.0f} s; weight version {progress.version}"
    )
    console.print(f"  metrics       {folders.root / 'metrics.jsonl'}")
    console.print(f"  evaluations   {folders.evaluations}")
    console.print(f"  trajectories  {folders.samples}")
    console.print(f"  policy        {latest_complete_checkpoint(folders.policies)}")
