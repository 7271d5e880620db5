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
from awrl_trainer.materialize import WeightReader, materialize, parameters_on_meta
from awrl_trainer.metrics import UpdateMetrics, UpdateResult
from awrl_trainer.micro_batches import MicroBatch, RowSize, plan_micro_batches
from awrl_trainer.model_batches import RowInputs, collate_model_inputs
from awrl_trainer.policy_module import SplitModel
from awrl_trainer.rows import Batch, Collate, TrainRow
from awrl_trainer.sharding import data_parallel_mesh
from awrl_trainer.text_batches import collate_packed_text, collate_text
from awrl_trainer.weights.checksum import tensor_checksum
from awrl_trainer.weights.disk import (
    DiskPublisher,
    complete_checkpoints,
    latest_complete_checkpoint,
)
from awrl_trainer.weights.group import bind_store, connect_store
from awrl_trainer.weights.manifest import Bucket, PublishPlan, TensorSpec, plan_publish
from awrl_trainer.weights.protocols import (
    BucketTiming,
    GroupMembership,
    GroupRequest,
    IndexedReceiver,
    VerifiableReceiver,
    WeightReceiver,
    WeightSource,
)
from awrl_trainer.weights.publisher import XcclPublisher
from awrl_trainer.weights.report import PublisherConfig, PublishReport
from awrl_trainer.weights.sender import LocalWeightSource
from awrl_trainer.weights.window import WindowState

__all__ = [
    "ActorConfig",
    "Batch",
    "BatchError",
    "Bucket",
    "BucketTiming",
    "CheckpointError",
    "Collate",
    "DiskPublisher",
    "FSDPActor",
    "GroupMembership",
    "GroupRequest",
    "IndexedReceiver",
    "LocalWeightSource",
    "LossConfig",
    "ManifestMismatchError",
    "MicroBatch",
    "OptimizerConfig",
    "PublishError",
    "PublishPlan",
    "PublishReport",
    "PublishTimeoutError",
    "PublisherConfig",
    "RanksDisagreeError",
    "RowInputs",
    "RowSize",
    "SplitModel",
    "TensorSpec",
    "TrainRow",
    "TrainerError",
    "UpdateMetrics",
    "UpdateResult",
    "VerifiableReceiver",
    "WeightReader",
    "WeightReceiver",
    "WeightSource",
    "WindowState",
    "XcclPublisher",
    "bind_store",
    "collate_model_inputs",
    "collate_packed_text",
    "collate_text",
    "complete_checkpoints",
    "connect_store",
    "data_parallel_mesh",
    "latest_complete_checkpoint",
    "materialize",
    "parameters_on_meta",
    "plan_micro_batches",
    "plan_publish",
    "tensor_checksum",
]

logging.getLogger(__name__).addHandler(logging.NullHandler())
