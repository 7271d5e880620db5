"""Everlasting rollout pool, interruptible generation and the rollout controller."""

from __future__ import annotations

import logging

from awrl_rollout.callback import (
    CallbackNotifier,
    CallbackServer,
)
from awrl_rollout.clock import Clock, RealClock, VirtualClock
from awrl_rollout.concurrency import UnwrappedTaskGroup
from awrl_rollout.controller import (
    ControllerConfig,
    FaultBreaker,
    GroupResult,
    RolloutBatch,
    RolloutController,
    Worker,
)
from awrl_rollout.episode import (
    EpisodeRecord,
    EpisodeRequest,
    EpisodeResult,
    Fault,
    FaultKind,
    Outcome,
)
from awrl_rollout.errors import (
    BatchTimeoutError,
    EpisodeFaultError,
    RolloutError,
    ServerRefusedError,
    ServerUnavailableError,
    StarvedError,
)
from awrl_rollout.executor import (
    EpisodeContext,
    ExecutorStatistics,
    LocalWorker,
    SlotTime,
    SyncPool,
    WorkflowExecutor,
)
from awrl_rollout.generation import (
    EpisodeAssignment,
    GenerateRequest,
    GenerateResult,
    InterruptibleGenerator,
    StickyRouter,
)
from awrl_rollout.retry import (
    RetryPolicy,
)
from awrl_rollout.sglang import (
    SGLangClient,
    SGLangClientConfig,
    WeightBucket,
)

__all__ = [
    "BatchTimeoutError",
    "CallbackNotifier",
    "CallbackServer",
    "Clock",
    "ControllerConfig",
    "EpisodeAssignment",
    "EpisodeContext",
    "EpisodeFaultError",
    "EpisodeRecord",
    "EpisodeRequest",
    "EpisodeResult",
    "ExecutorStatistics",
    "Fault",
    "FaultBreaker",
    "FaultKind",
    "GenerateRequest",
    "GenerateResult",
    "GroupResult",
    "InterruptibleGenerator",
    "LocalWorker",
    "Outcome",
    "RealClock",
    "RetryPolicy",
    "RolloutBatch",
    "RolloutController",
    "RolloutError",
    "SGLangClient",
    "SGLangClientConfig",
    "ServerRefusedError",
    "ServerUnavailableError",
    "SlotTime",
    "StarvedError",
    "StickyRouter",
    "SyncPool",
    "UnwrappedTaskGroup",
    "VirtualClock",
    "WeightBucket",
    "Worker",
    "WorkflowExecutor",
]

logging.getLogger(__name__).addHandler(logging.NullHandler())
