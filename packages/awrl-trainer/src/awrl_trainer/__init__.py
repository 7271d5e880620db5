"""FSDP2 policy trainer with exact batches and weight publishing."""

from __future__ import annotations

import logging

from awrl_trainer.actor import FSDPActor
from awrl_trainer.collate import collate_model_inputs, collate_text
from awrl_trainer.config import ActorConfig, LossConfig, OptimizerConfig
from awrl_trainer.errors import BatchError, CheckpointError, PublishError
from awrl_trainer.folders import incomplete_checkpoints, latest_complete_checkpoint, new_folder
from awrl_trainer.rows import Batch, Collate, TrainRow
from awrl_trainer.saving import SaveReport
from awrl_trainer.update import UpdateResult, UpdateRunner
from awrl_trainer.weights.config import PublisherConfig, PublishReport
from awrl_trainer.weights.group import open_store
from awrl_trainer.weights.plan import Bucket, TensorSpec, tensor_checksum
from awrl_trainer.weights.protocols import (
    WHOLE,
    GroupMembership,
    LocalSource,
    WeightReceiver,
    WeightSource,
)
from awrl_trainer.weights.publisher import WeightPublisher
from awrl_trainer.weights.sender import WeightSender
from awrl_trainer.weights.snapshot import SnapshotWriter

__all__ = [
    "ActorConfig",
    "Batch",
    "BatchError",
    "Bucket",
    "CheckpointError",
    "Collate",
    "FSDPActor",
    "GroupMembership",
    "LocalSource",
    "LossConfig",
    "OptimizerConfig",
    "PublishError",
    "PublishReport",
    "PublisherConfig",
    "SaveReport",
    "SnapshotWriter",
    "TensorSpec",
    "TrainRow",
    "UpdateResult",
    "UpdateRunner",
    "WHOLE",
    "WeightPublisher",
    "WeightReceiver",
    "WeightSender",
    "WeightSource",
    "collate_model_inputs",
    "collate_text",
    "incomplete_checkpoints",
    "latest_complete_checkpoint",
    "new_folder",
    "open_store",
    "tensor_checksum",
]

logging.getLogger(__name__).addHandler(logging.NullHandler())
