"""One run from its configuration to its end: roles, step loop, saving, evaluation, shut-down.

`run_training` is what `webrl train` calls. It repeats `Run` from the newest checkpoint when a part
is lost that can't be replaced in place. The loops of a run are drawn in `webrl.run`.
"""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
from contextlib import AbstractAsyncContextManager, AsyncExitStack, suppress
from pathlib import Path
from typing import Literal

import msgspec
from awrl_pixelstore import PixelStoreUnavailable
from awrl_rollout import (
    CallbackServer,
    RolloutController,
    RolloutError,
    UnwrappedTaskGroup,
)
from awrl_staleness import StalenessManager
from awrl_trainer import PublishError, latest_complete_checkpoint
from rich.console import Console

from webrl.cluster.ray_cluster import ray_cluster
from webrl.config import WebRLConfig, to_toml
from webrl.errors import EngineCallError, RunFailedError, WebRLError, WorkerLostError
from webrl.evaluation.manager import EvaluationManager
from webrl.evaluation.statistics import EvaluationResult
from webrl.launch import component_configs, run_tasks
from webrl.launch.system import Parts, System, launch, stop_each
from webrl.process_log import log_to_file
from webrl.records.live_view import LiveView
from webrl.records.metrics import MetricLog, continued, is_total
from webrl.records.run_folder import RunEnd, RunFolders, read_end, write_end, write_whole
from webrl.rollout.batch_source import (
    EverlastingRollouts,
    GroupFilter,
    RayRoundPool,
    SynchronousRollouts,
)
from webrl.rollout.site_ledger import OpenSites, SiteLedger
from webrl.rollout.task_stream import TaskStream
from webrl.rollout.worker import CallbackTarget, RolloutWorker
from webrl.run.checkpoints import Recorder
from webrl.run.ending import describe_end
from webrl.run.first_policy import ensure_policy
from webrl.run.kept_groups import KeptGroups
from webrl.run.server_recovery import ServerRecovery
from webrl.run.supervisor import Supervisor, WorkerPlan
from webrl.run.weight_updates import connect_weights
from webrl.stop_signals import StopSignals
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

SHOW_CURSOR = "\x1b[?25h"
"""Undoes what the live panel did to a terminal."""

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
        parts: Programs of its servers and ranks.
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
        parts: Parts,
    ) -> None:
        self._parts = parts
        self._config = config
        self._folders = folders
        self._policy_path = policy_path
        self._run_id = folders.new_run_id()
        self._view = view
        self._log = log
        self._is_resumed = is_resumed
        self._controller: RolloutController | None = None
        self._trainer: PPOTrainer | None = None
        self._step_of_version: dict[int, int] = {}
        self._stop = asyncio.Event()
        self._is_asked = False
        self._is_time_over = False
        self._phase: Literal["starting", "training", "evaluating"] = "starting"

    @property
    def has_started(self) -> bool:
        """Whether training began: what fails before is not cured by starting again."""
        return self._phase != "starting"

    def ask_to_stop(self) -> bool:
        """Finish the update at hand, save, and end; answer whether this will come to an end so."""
        if self._phase != "training":
            return False
        self._is_asked = True
        self._stop.set()
        self._view.note(
            "stopping: an update that has begun is finished, then all is saved; a second signal ends "
            "at once"
        )
        return True

    async def run(self) -> Progress:
        """Start the roles, train until the configured end, save, and stop everything.

        Raises:
            WorkerLostError: A trainer rank died; the newest checkpoint is where to go on.
            WebRLError: The run could not start, or had to stop.
        """
        async with UnwrappedTaskGroup() as group:
            telling = group.create_task(self._view.keep_telling(self._waits_for))
            try:
                return await self._run()
            finally:
                telling.cancel()

    def _waits_for(self) -> str | None:
        """Return what training waits for; None before and after it."""
        if self._trainer is None or self._phase != "training":
            return None
        return self._trainer.describe()

    async def _run(self) -> Progress:
        config = self._config
        async with AsyncExitStack() as stack:
            self._view.note("starting servers, trainer and browsers")
            system = await stack.enter_async_context(self._launch())
            stream = component_configs.task_stream(config)
            ranks = TrainerRanks(system.ranks, disk_deadline_s=config.checkpoint.deadline_s)
            recorder = self._recorder(system, ranks, stream)
            stack.callback(recorder.close)
            progress = await self._restore(recorder)
            self._view.note("connecting servers and trainer, starting browsers")
            weights = await connect_weights(
                config, self._folders, system, stack, version=progress.version, run_id=self._run_id
            )
            limit, version = config.recover.max_restarts, progress.version
            recovery = ServerRecovery(
                system, weights, self._view, version=version, max_restarts=limit
            )
            num_before = progress.num_finished_episodes
            sites = SiteLedger(self._folders.sites, expiry_s=config.sites.expiry_s)
            stack.callback(sites.save, is_last=True)
            group_filter = GroupFilter(
                recorder.kept,
                recorder.note_group,
                on_accepted=(lambda _: None) if config.is_synchronous else recorder.kept.keep,
                most_useless=config.rollout.max_useless_groups,
                on_hopeless=self._stop.set,
                on_ended=sites.note,
                site_metrics=sites.metrics,
            )
            supervisor, rollouts = await self._start_rollouts(
                system, stack, recovery, recorder.kept, group_filter, sites, progress
            )
            trainer = self._trainer_of(system, rollouts, ranks, recovery, recorder, progress)
            evaluation = await self._start_evaluation(system, stack, recorder)
            self._view.note("training")
            self._trainer, self._phase = trainer, "training"
            await self._train_and_save(trainer, ranks, supervisor, recorder, evaluation)
            totals = {"rollout/episodes_total": num_before + float(group_filter.num_episodes)}
            progress.totals = {**progress.totals, **totals}
            group_filter.check()
            if not self._is_asked:
                await self._finish(progress, evaluation)
            return progress

    async def _train_and_save(
        self,
        trainer: PPOTrainer,
        ranks: TrainerRanks,
        supervisor: Supervisor,
        recorder: Recorder,
        evaluation: EvaluationManager | None,
    ) -> None:
        """Train, and save also when there are no more batches to be had.

        Raises:
            WebRLError: Training had to stop, or the disk refused what it reached.
        """
        failure: RolloutError | None = None
        try:
            await self._train(trainer, supervisor, recorder, evaluation)
        except EngineCallError:
            await ranks.find_dead()
            raise
        except RolloutError as error:
            failure = error
        if self._controller is not None:
            self._controller.pause_admission()
        if recorder.has_news(trainer.progress):
            self._view.note(f"saving version {trainer.progress.version}")
        await recorder.save(trainer.progress)
        if failure is not None:
            raise RunFailedError(str(failure)) from failure

    async def _finish(self, progress: Progress, evaluation: EvaluationManager | None) -> None:
        """Evaluate for the last time, and note that the run has reached its end."""
        self._phase = "evaluating"
        if evaluation is not None:
            self._view.note(f"evaluating version {progress.version} on the final seeds")
            await evaluation.evaluate_last(progress.version)
        limit_s = self._config.time_limit_s if self._is_time_over else None
        write_end(self._folders, RunEnd(version=progress.version, time_limit_s=limit_s))

    def _launch(self) -> AbstractAsyncContextManager[System]:
        path = latest_complete_checkpoint(self._folders.state) if self._is_resumed else None
        return launch(
            self._config,
            str(self._policy_path),
            self._folders.logs,
            self._run_id,
            version=0 if path is None else int(path.name.rpartition("_")[2]),
            parts=self._parts,
        )

    def _recorder(self, system: System, ranks: TrainerRanks, stream: TaskStream) -> Recorder:
        return Recorder(
            self._folders,
            stream,
            ranks,
            system.pixels,
            KeptGroups(self._folders.groups, stream, system.pixels),
            keep=self._config.checkpoint.keep,
            save_every=self._config.checkpoint.save_every,
            save_every_s=self._config.checkpoint.save_every_s,
            sample_every=self._config.logging.sample_every,
            decode=system.processor.decode,
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
            metrics = continued({**metrics, **await supervisor.metrics()}, before)
            totals = {key: value for key, value in metrics.items() if is_total(key)}
            progress.totals = {**progress.totals, **totals}
            metrics["rollout/trained_share"] = progress.trained_share
            metrics |= recorder.take_metrics()
            self._log.log(metrics, progress.num_steps)
            self._view.step(metrics)
            if recorder.num_refused_lines:
                self._view.note(
                    f"warning: {recorder.num_refused_lines} lines of episodes.jsonl or "
                    "batches.jsonl found no room on the disk"
                )
            await self._save_or_warn(recorder, progress, evaluation)

        loop, limit_s = asyncio.get_running_loop(), self._config.time_limit_s
        timer = None
        if limit_s is not None:
            rest_s = max(0.0, limit_s - trainer.progress.train_s)
            timer = loop.call_later(rest_s, self._reach_time_limit)
        try:
            async with UnwrappedTaskGroup() as group:
                watch = group.create_task(supervisor.watch(self._controller))
                group.create_task(recorder.kept.keep_writing())
                await keep_stepping(
                    trainer, is_over=lambda: self._is_over(trainer.progress), after_step=after_step
                )
                watch.cancel()
                recorder.kept.close()
        finally:
            if timer is not None:
                timer.cancel()

    async def _save_or_warn(
        self, recorder: Recorder, progress: Progress, evaluation: EvaluationManager | None
    ) -> None:
        """Begin to save what is due, and see how the last one went.

        A disk that has no room now may have some after the next update.

        Raises:
            EngineCallError: A rank is gone, or hangs.
        """
        try:
            await recorder.look()
            if recorder.is_due(progress):
                await recorder.start_save(progress)
            elif evaluation and not recorder.is_writing and evaluation.takes_checkpoint():
                await recorder.start_snapshot()
        except EngineCallError as error:
            if isinstance(error, WorkerLostError) or isinstance(error.__cause__, TimeoutError):
                raise
            logger.warning("a version up to %d is not saved: %s", progress.version, error)
            self._view.note(
                "warning: the newest version is not saved; the next one will be. See run.log"
            )

    def _reach_time_limit(self) -> None:
        self._view.note("time_limit_s is reached: an update that has begun is finished")
        self._is_time_over = True
        self._stop.set()

    def _is_over(self, progress: Progress) -> bool:
        return self._stop.is_set() or progress.version >= self._config.total_steps

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
        kept: KeptGroups,
        group_filter: GroupFilter,
        sites: SiteLedger,
        progress: Progress,
    ) -> tuple[Supervisor, RolloutSource]:
        """Start the rollout workers, and the controller where they are everlasting."""
        config = self._config
        supervisor = await self._start_workers(system, stack, recovery)
        if config.is_synchronous:
            rounds = SynchronousRollouts(
                [RayRoundPool(handle, BATCH_DEADLINE_S) for handle in supervisor.handles],
                OpenSites(kept, sites),
                group_filter,
                group_size=config.gconfig.n_samples,
                breaker=component_configs.fault_breaker(config),
                version=progress.version,
            )
            return supervisor, rounds
        controller = RolloutController(
            supervisor.workers.values(),
            StalenessManager(component_configs.staleness_config(config), version=progress.version),
            source=OpenSites(kept, sites).next_group,
            on_ended=sites.note,
            config=component_configs.controller_config(config),
            accept_group=group_filter.accept,
            on_discarded=group_filter.discarded,
            on_group_dropped=group_filter.group_dropped,
            extra_bounds=supervisor.extra_bounds,
            on_worker_lost=supervisor.note_lost,
        )
        if count := await kept.restore(progress, controller, group_filter.count_restored):
            self._view.note(f"{count} finished episodes need not run again")
        self._controller = await stack.enter_async_context(controller)
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

    def _trainer_of(
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
            stop=self._stop,
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


def run_training(
    config: WebRLConfig,
    *,
    resume: bool,
    console: Console,
    parts: Parts = Parts(),  # noqa: B008 - frozen
) -> int:
    """Train until the configured end.

    Args:
        config: Resolved configuration; it is written to the run's folder.
        resume: Continue from the newest checkpoint of `config.run_dir`.
        console: Where to draw.
        parts: Programs of its servers and ranks.

    Returns:
        0, or 128 and the number of the signal that ended it: 130 after Ctrl-C.

    Raises:
        WebRLError: The run could not start, or had to stop.
    """
    folders = RunFolders(Path(config.run_dir).resolve())
    with folders.locked():
        if resume:
            folders.newest_checkpoint()
            if (sentence := _finished(config, folders)) is not None:
                console.print(sentence)
                return 0
        write_whole(folders.config, to_toml(config).encode())
        folders.end.unlink(missing_ok=True)
        with log_to_file(folders.log, config.logging.level):
            return _run_logged(config, folders, resume=resume, console=console, parts=parts)


def _finished(config: WebRLConfig, folders: RunFolders) -> str | None:
    """Return the sentence about a run that has nothing left to do, None otherwise."""
    end = read_end(folders)
    if end is None:
        return None
    if end.version >= config.total_steps:
        reached, key = f"{end.version} of {config.total_steps} updates", "total_steps"
    elif None not in (end.time_limit_s, config.time_limit_s) and (
        (end.time_limit_s or 0.0) >= (config.time_limit_s or 0.0)
    ):
        reached, key = f"time_limit_s={end.time_limit_s:g} at update {end.version}", "time_limit_s"
    else:
        return None
    return f"{config.run_dir} is finished: {reached}. Raise {key} to go on."


def _run_logged(
    config: WebRLConfig, folders: RunFolders, *, resume: bool, console: Console, parts: Parts
) -> int:
    def at_once() -> None:
        text = f"\nended at once; {_what_is_left(config, folders)}\n"
        with suppress(OSError):
            os.write(2, (SHOW_CURSOR if console.is_terminal else "").encode() + text.encode())

    with StopSignals(at_once) as signals:
        values = msgspec.to_builtins(config)
        log = MetricLog.open(folders.root, config.logging.tracker, config=values)
        try:
            with LiveView(console, title=str(config.run_dir)) as view:
                for name in log.num_failures:
                    view.note(f"warning: {name} could not be opened, see run.log; training goes on")
                view.note("preparing the policy")
                policy_path = ensure_policy(config, folders.root)
                view.note("starting Ray")
                with ray_cluster(namespace=f"webrl-{secrets.token_hex(4)}"):
                    progress = _run_to_its_end(
                        config, folders, policy_path, resume, view, log, signals, parts
                    )
        except (KeyboardInterrupt, asyncio.CancelledError):
            if signals.received is None:
                raise
            progress = None
        except WebRLError as error:
            error.add_note(
                f"Logs: {folders.log}, and {folders.logs} with pictures of pages that broke. The run: {_what_is_left(config, folders)}."
            )
            raise
        finally:
            log.close()
        if signals.received is not None:
            console.print(f"interrupted; {_what_is_left(config, folders)}")
            return signals.exit_code
    assert progress is not None
    describe_end(progress, folders, console)
    return 0


def _what_is_left(config: WebRLConfig, folders: RunFolders) -> str:
    """Return what a stopped run can go on from."""
    newest = latest_complete_checkpoint(folders.state)
    if newest is None:
        return "nothing was saved yet, so there is nothing to continue"
    version = newest.name.rpartition("_")[2]
    return f"saved at version {version}; continue with: webrl train --resume {config.run_dir}"


def _run_to_its_end(
    config: WebRLConfig,
    folders: RunFolders,
    policy_path: Path,
    resume: bool,
    view: LiveView,
    log: MetricLog,
    signals: StopSignals,
    parts: Parts,
) -> Progress:
    """Run; when a part is lost that can't be replaced in place, go on from the newest checkpoint."""
    num_restarts, limit = 0, config.recover.max_restarts
    while True:
        run = Run(config, folders, policy_path, view=view, log=log, is_resumed=resume, parts=parts)
        try:
            return asyncio.run(signals.run(run.run(), run.ask_to_stop))
        except (WorkerLostError, PublishError, PixelStoreUnavailable) as error:
            is_hopeless = not run.has_started or num_restarts >= limit
            if is_hopeless or signals.received is not None:
                raise RunFailedError(str(error)) from error
            num_restarts += 1
            logger.exception("the run starts again")
            first_line = str(error).partition("\n")[0]
            view.note(f"{first_line}; restart {num_restarts} of {limit} from the newest checkpoint")
            resume = latest_complete_checkpoint(folders.state) is not None
