"""The test rollout of one run: background evaluations, and one at the end on more seeds."""

from __future__ import annotations

import asyncio
from dataclasses import replace

from awrl_trainer import latest_complete_checkpoint

from webrl.cluster.scheduler import WorkerHandle, call_worker
from webrl.config import WebRLConfig
from webrl.errors import WorkerLostError
from webrl.evaluation.manager import (
    CALL_DEADLINE_S,
    Snapshot,
    TestRolloutManager,
    TestRolloutSpec,
    evaluate_snapshot,
)
from webrl.evaluation.statistics import EvaluationResult, append_result
from webrl.launch import component_configs
from webrl.launch.launch import start_test_worker
from webrl.launch.running_system import System, start_test_servers_again
from webrl.records.live_view import LiveView
from webrl.records.run_folder import RunFolders

STOP_S = 3.0
"""The evaluation thread ends within one poll; its worker is killed otherwise."""


class TestRole:
    """Starts and ends the evaluation of a run."""

    __test__ = False

    def __init__(
        self,
        config: WebRLConfig,
        folders: RunFolders,
        system: System,
        worker: WorkerHandle,
        view: LiveView,
    ) -> None:
        """Start the background evaluation.

        Args:
            config: The run's.
            folders: Where checkpoints and results lie.
            system: The started roles.
            worker: The test role's rollout worker.
            view: Shows each result.
        """
        section = config.test_rollout
        self._config = config
        self._folders = folders
        self._system = system
        self._view = view
        self._spec = TestRolloutSpec(
            tasks=component_configs.test_tasks(config),
            num_seeds=section.num_seeds,
            interval_s=section.interval_s,
            is_greedy=section.temperature == 0,
            reach=system.reach,
        )
        self._manager = TestRolloutManager(
            spec=self._spec,
            checkpoints=folders.policies,
            results=folders.evaluations,
            server_urls=system.test_urls,
            worker=worker,
            on_result=self._show,
            revive=self._revive,
        )
        self._manager.start()

    def takes_checkpoint(self) -> bool:
        """Return whether a fresh checkpoint would be evaluated at once; asked once per step."""
        return self._manager.takes_checkpoint()

    def close(self) -> None:
        """End the background evaluation."""
        self._manager.close(STOP_S)

    async def evaluate_last(self, version: int) -> None:
        """Evaluate the newest checkpoint on the final seeds, once training is over.

        Args:
            version: Its weight version.

        Raises:
            RolloutError: The server refused the checkpoint, or gave no answer.
            EngineCallError: The worker is gone.
        """
        num_seeds = self._config.test_rollout.num_final_seeds
        path = latest_complete_checkpoint(self._folders.policies)
        await asyncio.to_thread(self.close)
        if not num_seeds or path is None:
            return
        worker, urls = await self._revive()
        self._view.note(f"evaluating version {version} on {num_seeds} held-out seeds")
        result = await evaluate_snapshot(
            replace(self._spec, num_seeds=num_seeds),
            worker,
            urls,
            Snapshot(path=path, version=version),
            previous=None,
        )
        append_result(self._folders.evaluations, result)
        self._show(result)

    async def _revive(self) -> tuple[WorkerHandle, list[str]]:
        """Start anew what is dead of the role; return its worker and the servers' addresses."""
        system = self._system
        urls = await start_test_servers_again(self._config, system)
        assert system.test_worker is not None
        try:
            await call_worker(system.test_worker, "set_servers", urls, timeout_s=CALL_DEADLINE_S)
        except WorkerLostError:
            system.scheduler.forget(system.test_worker)
            system.test_worker = await start_test_worker(
                self._config, system.scheduler, system.server_spec, urls
            )
        return system.test_worker, urls

    def _show(self, result: EvaluationResult) -> None:
        self._view.evaluated(result.version, result.mean, result.low, result.high)
