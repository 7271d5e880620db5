"""The policy on one data-parallel rank.

Invariants:

* Every method that says so is called on all ranks, with the same arguments, in the same order.
* `version` rises by one for each update that changed the policy, and never otherwise: one that fails
  after an optimizer step has changed it, so no two policies ever go by one version.
* What one rank finds wrong is the same error on all of them, at once.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh

from awrl_trainer.checkpoint import load_checkpoint
from awrl_trainer.config import ActorConfig
from awrl_trainer.optimizer import SteppedOptimizer
from awrl_trainer.policy_module import PolicyModule
from awrl_trainer.rows import Collate, TrainRow
from awrl_trainer.saving import CheckpointSaver, SaveReport
from awrl_trainer.sharding import (
    WeightReader,
    data_parallel_mesh,
    freeze_modules,
    materialize,
    shard_module,
)
from awrl_trainer.update import UpdateResult, UpdateRunner
from awrl_trainer.weights.sender import WeightSender
from awrl_trainer.weights.snapshot import SnapshotWriter

_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


class FSDPActor:
    """Trains a causal or image-text policy, sharded over the ranks of a mesh.

    Every rank builds one. A process without a process group becomes a world of one.

    Args:
        model: The policy, equal on every rank: a transformers model, or a module with `backbone`
            and `head` methods. It is sharded in place and belongs to the actor afterwards.
        collate: Turns rows into a batch; called once per micro-batch.
        mesh: One-dimensional mesh of the ranks; None takes all ranks of the default group.
        device: Where to compute; None takes the CPU.
        reference: Frozen policy of the KL term; None copies the model when the coefficient is > 0.
        version: Version of the weights that the model holds.
        rename: Maps the model's parameter names to those that servers know.
        read_weight: Reads a weight by name, for a model (and reference) whose parameters are on the
            meta device (`parameters_on_meta`); None for a model that holds its weights.
        runner: Computes updates; another one than the default computes something else.

    Raises:
        ValueError: A prefix of `frozen_modules` that no parameter has.
    """

    def __init__(
        self,
        model: nn.Module,
        config: ActorConfig,
        *,
        collate: Collate,
        mesh: DeviceMesh | None = None,
        device: torch.device | str | None = None,
        reference: nn.Module | None = None,
        version: int = 0,
        rename: Callable[[str], str] | None = None,
        read_weight: WeightReader | None = None,
        runner: type[UpdateRunner] = UpdateRunner,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.config = config
        self.device = torch.device(device or "cpu")
        self.mesh = mesh if mesh is not None else data_parallel_mesh(self.device.type)
        self._version = version
        if config.loss.kl_coefficient and reference is None:
            reference = copy.deepcopy(model)
        freeze_modules(model, config.frozen_modules)
        self.policy = self._shard(model, read_weight)
        self.reference = None
        if config.loss.kl_coefficient and reference is not None:
            self.reference = self._shard(reference.requires_grad_(False), read_weight)
        self.optimizer = SteppedOptimizer(self.policy, config.optimizer)
        self._saver = CheckpointSaver(
            self.policy,
            self.optimizer,
            self.mesh.get_group(),
            timeout_s=config.save_timeout_s,
        )
        self._runner = runner(
            policy=self.policy,
            reference=self.reference,
            optimizer=self.optimizer,
            collate=collate,
            config=config,
            device=self.device,
            group=self.mesh.get_group(),
            clock=clock,
        )
        self.sender: WeightSender = self._make_sender(rename, clock)
        """What a `WeightSource` calls in order to publish this rank's weights."""

    @property
    def version(self) -> int:
        """Version of the weights: updates that changed them."""
        return self._version

    @property
    def rank(self) -> int:
        """Rank of this process in the mesh."""
        return dist.get_rank(self.mesh.get_group())

    @property
    def world_size(self) -> int:
        """Number of ranks in the mesh."""
        return dist.get_world_size(self.mesh.get_group())

    def update(self, rows: Sequence[TrainRow]) -> UpdateResult:
        """Update the policy on rows; the version rises unless every step was skipped.

        Called on all ranks with the same rows: each takes its share.

        Returns:
            Version and metrics, equal on every rank.

        Raises:
            BatchError: On every rank: no rows, other rows than another rank was given, a row that
                this policy can't read or can't have sampled, one without the versions that the loss needs, two of
                one `prefix_id` that begin differently, or a `collate` that failed or answered with
                other tokens than the rows hold. Nothing was updated, unless an optimizer step came
                before; then the version has risen.
        """
        num_steps = self.optimizer.num_steps
        try:
            metrics = self._runner.run(rows, self._version)
        finally:
            self._version += self.optimizer.num_steps > num_steps
        return UpdateResult(version=self._version, metrics=metrics)

    def logprobs(self, rows: Sequence[TrainRow]) -> list[np.ndarray]:
        """Return the policy's log-probs of every row's trainable tokens.

        Called on all ranks with the same rows; every rank computes and returns all of them.

        Returns:
            For each row float32 `[N]`.

        Raises:
            BatchError: On every rank: other rows than another rank was given, one that this policy
                can't read, or a `collate` that failed.
        """
        return self._runner.logprobs(rows, self._version)

    def save(
        self, root: Path | str, *, keep: int | None = 3, extra: Mapping[str, Any] | None = None
    ) -> Path:
        """Write a complete checkpoint for resuming; called on all ranks.

        Args:
            root: Directory of the checkpoints, shared by all ranks.
            keep: Complete checkpoints that stay beside the written one; None or a negative number
                keeps all.
            extra: JSON values of the caller, which `load` returns.

        Returns:
            The checkpoint's directory.

        Raises:
            CheckpointError: The disk refused a write on some rank; the previous checkpoints are
                whole.
            TypeError: A value in `extra` that JSON can't hold.
            ValueError: `keep` is 0 or not a whole number.
        """
        report = self._saver.save(Path(root), version=self._version, extra=extra or {}, keep=keep)
        assert report.path is not None
        return report.path

    def start_save(
        self,
        root: Path | str | None,
        *,
        keep: int | None = 3,
        extra: Mapping[str, Any] | None = None,
        snapshots: SnapshotWriter | None = None,
    ) -> float:
        """Copy what `save` would write to host memory, and write it while training goes on.

        Called on all ranks. The copy takes as much host memory as the rank's part of the checkpoint;
        on a GPU it is pinned and stays. A save that is not finished is waited for.

        Args:
            root: Directory of the checkpoints; None writes none.
            keep: As for `save`.
            extra: As for `save`.
            snapshots: Writes a snapshot too, before the checkpoint; rank 0 holds a copy of the whole
                policy meanwhile.

        Returns:
            Seconds that it took until training could go on.

        Raises:
            TypeError: A value in `extra` that JSON can't hold.
            ValueError: `keep` is 0 or not a whole number.
        """
        return self._saver.start(
            None if root is None else Path(root),
            version=self._version,
            extra=extra or {},
            keep=keep,
            stage_snapshot=None
            if snapshots is None
            else lambda: self.sender.stage_snapshot(snapshots, self._version),
        )

    @property
    def is_saved(self) -> bool:
        """Whether the write that `start_save` began has come to its end on this rank."""
        return self._saver.is_written

    def finish_save(self) -> SaveReport | None:
        """Wait for the write that `start_save` began; called on all ranks.

        Returns:
            Where it is and how long it took; None when none was started.

        Raises:
            CheckpointError: The disk refused a write on some rank; the previous checkpoints are whole.
        """
        return self._saver.finish()

    def load(self, path: Path | str) -> dict[str, Any]:
        """Load a complete checkpoint, on any number of ranks; called on all ranks.

        Optimizer settings stay those of this actor's configuration. Optimizer state of a parameter
        that had none, such as one that was frozen, starts at zero.

        Args:
            path: What `save` or `latest_complete_checkpoint` returned.

        Returns:
            The caller's extra values.

        Raises:
            CheckpointError: It is missing, incomplete, damaged, of a newer format, or of another
                model; nothing has changed.
        """
        self._version, extra = load_checkpoint(
            Path(path), self.policy, self.optimizer, group=self._saver.group
        )
        return extra

    def write_snapshot(self, writer: SnapshotWriter) -> Path | None:
        """Write the policy in the Hugging Face format under its version; called on all ranks.

        Returns:
            The directory on rank 0, None on others.

        Raises:
            CheckpointError: The disk refused a write.
        """
        return self.sender.write_snapshot(writer, self._version)

    def _make_sender(
        self, rename: Callable[[str], str] | None, clock: Callable[[], float]
    ) -> WeightSender:
        return WeightSender(
            list(self.policy.model.named_parameters()),
            is_source=self.rank == 0,
            dtype=self.config.publish_dtype,
            bucket_bytes=self.config.publish_bucket_bytes,
            rename=rename,
            is_overlapped=self.config.is_publish_overlapped,
            clock=clock,
        )

    def _shard(self, model: nn.Module, read_weight: WeightReader | None) -> PolicyModule:
        loss = self.config.loss
        policy = PolicyModule(
            model if read_weight else model.to(self.device),
            temperature=loss.temperature,
            masked_token_ids=loss.masked_token_ids,
            num_head_tokens=self.config.num_head_tokens,
        )
        shard_module(
            policy,
            self.mesh,
            compute_dtype=_DTYPES[self.config.compute_dtype],
            checkpointed_share=self.config.checkpointed_block_share,
            is_compiled=self.config.is_compiled,
        )
        if read_weight is not None:
            materialize(policy, self.device, lambda name: read_weight(name.removeprefix("model.")))
        # Dropout would make the proximal policy differ from the current one at the start.
        return policy.eval()
