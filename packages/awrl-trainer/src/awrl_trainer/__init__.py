"""FSDP2 policy trainer with exact batches and weight publishing."""

import logging

from awrl_trainer.actor import FSDPActor
from awrl_trainer.config import ActorConfig, LossConfig, OptimizerConfig
from awrl_trainer.errors import (
    BatchError,
    CheckpointError,
    ManifestMismatchError,
    PublishError,
    PublishTimeoutError,
    RanksDisagreeError,
    TrainerError,
)
from awrl_trainer.metrics import UpdateMetrics
from awrl_trainer.micro_batches import MicroBatch, RowSize, plan_micro_batches
from awrl_trainer.rows import Batch, Collate, TrainRow
from awrl_trainer.text_batches import collate_packed_text, collate_text

__all__ = [
    "ActorConfig",
    "Batch",
    "BatchError",
    "CheckpointError",
    "Collate",
    "FSDPActor",
    "LossConfig",
    "ManifestMismatchError",
    "MicroBatch",
    "OptimizerConfig",
    "PublishError",
    "PublishTimeoutError",
    "RanksDisagreeError",
    "RowSize",
    "TrainRow",
    "TrainerError",
    "UpdateMetrics",
    "collate_packed_text",
    "collate_text",
    "plan_micro_batches",
]

logging.getLogger(__name__).addHandler(logging.NullHandler())
