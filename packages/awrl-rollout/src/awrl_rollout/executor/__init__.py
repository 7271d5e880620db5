"""Slots that run episodes: everlasting ones, and synchronous rounds as the baseline."""

from __future__ import annotations

from awrl_rollout.executor.executor import ExecutorStatistics, WorkflowExecutor
from awrl_rollout.executor.local_worker import LocalWorker
from awrl_rollout.executor.slot import EpisodeContext, SlotTime, SlotView, Workflow
from awrl_rollout.executor.sync_pool import SyncPool

__all__ = [
    "EpisodeContext",
    "ExecutorStatistics",
    "LocalWorker",
    "SlotTime",
    "SlotView",
    "SyncPool",
    "Workflow",
    "WorkflowExecutor",
]
