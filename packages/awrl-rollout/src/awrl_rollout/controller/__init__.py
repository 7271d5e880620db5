"""One run's admission, assignment, groups and batches over many workers."""

from __future__ import annotations

from awrl_rollout.controller.batches import GroupResult, RolloutBatch
from awrl_rollout.controller.breaker import FaultBreaker
from awrl_rollout.controller.config import ControllerConfig
from awrl_rollout.controller.controller import RolloutController
from awrl_rollout.controller.reporting import ControllerStatistics
from awrl_rollout.controller.workers import Worker

__all__ = [
    "ControllerConfig",
    "ControllerStatistics",
    "FaultBreaker",
    "GroupResult",
    "RolloutBatch",
    "RolloutController",
    "Worker",
]
