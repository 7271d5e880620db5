"""Everlasting rollout pool, interruptible generation and the rollout controller."""

from __future__ import annotations

from awrl_rollout.admission import ExtraBounds, TaskSource
from awrl_rollout.batch import GroupResult, RolloutBatch
from awrl_rollout.breaker import FaultBreaker
from awrl_rollout.callback import CallbackNotifier, CallbackServer
from awrl_rollout.clock import Clock, RealClock, VirtualClock
from awrl_rollout.controller import RolloutController
from awrl_rollout.controller_config import ControllerConfig
from awrl_rollout.episode import EpisodeRecord, EpisodeRequest, EpisodeResult, Outcome
from awrl_rollout.errors import (
    BatchTimeoutError,
    ClosedError,
    DataExhaustedError,
    EpisodeFaultError,
    FaultShareError,
    GenerationDeadlineError,
    RolloutError,
    ServerRefusedError,
    ServerUnavailableError,
    StarvedError,
)
from awrl_rollout.executor import WorkflowExecutor
from awrl_rollout.faults import Fault, FaultKind
from awrl_rollout.generation import GenerationConfig, GenerationStatistics, InterruptibleGenerator
from awrl_rollout.groups import CompleteGroup, GroupPolicy
from awrl_rollout.hooks import AcceptGroup, DiscardHook, GroupDropHook
from awrl_rollout.logs import LOGGER_NAME
from awrl_rollout.protocol import GenerateClient, GenerateRequest, GenerateResult, StopReason
from awrl_rollout.resume import ControllerSnapshot
from awrl_rollout.retry import RetryPolicy
from awrl_rollout.sglang import SGLangClient
from awrl_rollout.sglang_transport import PauseMode, SGLangClientConfig
from awrl_rollout.sglang_wire import WeightBucket, WeightChecksums
from awrl_rollout.slot import EpisodeContext, Workflow
from awrl_rollout.sources import EpochSource
from awrl_rollout.statistics import ControllerStatistics, ExecutorStatistics, SlotView
from awrl_rollout.sticky_router import StickyRouter
from awrl_rollout.sync_pool import SyncPool, SyncPoolStatistics
from awrl_rollout.worker import GenerationSwitch, LocalWorker, NotifyingWorker, Worker

__all__ = [
    "AcceptGroup",
    "BatchTimeoutError",
    "CallbackNotifier",
    "CallbackServer",
    "Clock",
    "ClosedError",
    "CompleteGroup",
    "ControllerConfig",
    "ControllerSnapshot",
    "ControllerStatistics",
    "DataExhaustedError",
    "DiscardHook",
    "EpisodeContext",
    "EpisodeFaultError",
    "EpisodeRecord",
    "EpisodeRequest",
    "EpisodeResult",
    "EpochSource",
    "ExecutorStatistics",
    "ExtraBounds",
    "Fault",
    "FaultBreaker",
    "FaultKind",
    "FaultShareError",
    "GenerateClient",
    "GenerateRequest",
    "GenerateResult",
    "GenerationConfig",
    "GenerationDeadlineError",
    "GenerationStatistics",
    "GenerationSwitch",
    "GroupDropHook",
    "GroupPolicy",
    "GroupResult",
    "InterruptibleGenerator",
    "LOGGER_NAME",
    "LocalWorker",
    "NotifyingWorker",
    "Outcome",
    "PauseMode",
    "RealClock",
    "RetryPolicy",
    "RolloutBatch",
    "RolloutController",
    "RolloutError",
    "SGLangClient",
    "SGLangClientConfig",
    "ServerRefusedError",
    "ServerUnavailableError",
    "SlotView",
    "StarvedError",
    "StickyRouter",
    "StopReason",
    "SyncPool",
    "SyncPoolStatistics",
    "TaskSource",
    "VirtualClock",
    "WeightBucket",
    "WeightChecksums",
    "Worker",
    "Workflow",
    "WorkflowExecutor",
]
