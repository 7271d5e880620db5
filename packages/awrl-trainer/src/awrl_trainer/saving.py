"""Saves one rank's part of checkpoints, in the background where asked.

Invariants:

* While a checkpoint is written the actor goes on: what is written is a copy in host memory, and the
  ranks of the writing threads meet in a group of their own, so no collective of theirs comes between
  two of the training's.
* One save runs at a time, on all ranks the same one: the next one waits for it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.checkpoint.staging import BlockingAsyncStager

from awrl_trainer.checkpoint import CheckpointContent, checkpoint_content, write_checkpoint
from awrl_trainer.errors import CheckpointError
from awrl_trainer.folders import check_keep
from awrl_trainer.optimizer import SteppedOptimizer


@dataclass(frozen=True, kw_only=True, slots=True)
class SaveReport:
    """How a save went on this rank."""

    path: Path | None
    """The checkpoint's directory; None when only a snapshot was written."""
    stall_s: float
    """Until the actor could go on: copying to host memory, and waiting for the save before."""
    write_s: float
    """Writing, in the background or not."""
    num_bytes: int
    """Bytes of this rank's weights and optimizer state."""


class CheckpointSaver:
    """Saves on one rank; it is made and its methods are called on all ranks, with the same arguments.

    Args:
        module: The sharded policy.
        optimizer: Its optimizer.
        group: The ranks.
        timeout_s: Limit of one write: ranks that are done wait so long for the others.
    """

    def __init__(
        self,
        module: nn.Module,
        optimizer: SteppedOptimizer,
        group: dist.ProcessGroup,
        *,
        timeout_s: float,
    ) -> None:
        self._module = module
        self._optimizer = optimizer
        ranks = dist.get_process_group_ranks(group)
        own_group = dist.new_group(
            ranks,
            backend="gloo",
            timeout=timedelta(seconds=timeout_s),
            # A name from a hash counts the groups in the process, and only the first rank joins the
            # one with the servers.
            use_local_synchronization=len(ranks) < dist.get_world_size(),
        )
        assert isinstance(own_group, dist.ProcessGroup)
        self.group: dist.ProcessGroup = own_group
        """The ranks, over gloo, with the time that a disk may take."""
        self._stager: BlockingAsyncStager | None = None
        self._staged_names: frozenset[str] = frozenset()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="checkpoint")
        self._pending: Future[SaveReport] | None = None

    @property
    def is_saving(self) -> bool:
        """Whether a save has been started and not finished."""
        return self._pending is not None

    @property
    def is_written(self) -> bool:
        """Whether the save that was started has come to its end, good or bad, on this rank."""
        return self._pending is not None and self._pending.done()

    def save(
        self, root: Path, *, version: int, extra: Mapping[str, Any], keep: int | None
    ) -> SaveReport:
        """Write a checkpoint; return when it is there.

        Raises:
            CheckpointError: The disk refused a write on some rank; the previous checkpoints are whole.
            TypeError: A value in `extra` that JSON can't hold.
            ValueError: `keep` is 0 or not a whole number.
        """
        self._begin(keep)
        content = checkpoint_content(self._module, self._optimizer, version=version, extra=extra)
        started_s = time.perf_counter()
        report = self._write(root, content, keep, 0.0)
        return replace(report, stall_s=time.perf_counter() - started_s)

    def start(
        self,
        root: Path | None,
        *,
        version: int,
        extra: Mapping[str, Any],
        keep: int | None,
        stage_snapshot: Callable[[], Callable[[], Path | None]] | None = None,
    ) -> float:
        """Copy to host memory and begin to write; return the seconds that took.

        A save that has not been finished is waited for, and what became of it is lost: call `finish`.

        Args:
            root: Directory of the checkpoints; None writes none.
            stage_snapshot: Copies a snapshot, and returns what writes it.

        Raises:
            TypeError: A value in `extra` that JSON can't hold.
            ValueError: `keep` is 0 or not a whole number.
        """
        started_s = time.perf_counter()
        self._begin(keep)
        content = None
        if root is not None:
            content = checkpoint_content(
                self._module, self._optimizer, version=version, extra=extra
            )
            content = replace(content, tensors=self._staged(content.tensors))
        write_snapshot = None if stage_snapshot is None else stage_snapshot()
        stall_s = time.perf_counter() - started_s

        def write() -> SaveReport:
            began_s = time.perf_counter()
            error: CheckpointError | None = None
            try:
                _ = write_snapshot and write_snapshot()
            except CheckpointError as caught:
                # The other ranks wait in the checkpoint's collectives, which come next.
                error = caught
            report = self._write(root, content, keep, stall_s)
            if error is not None:
                raise error
            return replace(report, write_s=time.perf_counter() - began_s)

        self._pending = self._thread.submit(write)
        return stall_s

    def finish(self) -> SaveReport | None:
        """Wait for the save that was started; None when there is none.

        Raises:
            CheckpointError: The disk refused a write on some rank; the previous checkpoints are whole.
        """
        pending, self._pending = self._pending, None
        return None if pending is None else pending.result()

    def _begin(self, keep: int | None) -> None:
        # Before any rank waits for another: a wrong argument is wrong on all of them alike.
        check_keep(keep)
        if self._pending is not None:
            self._pending.exception()
            self._pending = None

    def _write(
        self,
        root: Path | None,
        content: CheckpointContent | None,
        keep: int | None,
        stall_s: float,
    ) -> SaveReport:
        started_s = time.perf_counter()
        if root is None or content is None:
            return SaveReport(path=None, stall_s=stall_s, write_s=0.0, num_bytes=0)
        path = write_checkpoint(root, content, keep=keep, group=self.group)
        return SaveReport(
            path=path,
            stall_s=stall_s,
            write_s=time.perf_counter() - started_s,
            num_bytes=sum(map(_local_bytes, content.tensors.values())),
        )

    def _staged(self, tensors: dict[str, Any]) -> dict[str, Any]:
        """Return copies in host memory; on a GPU the same pinned buffers again and again."""
        if not torch.cuda.is_available():
            return BlockingAsyncStager().stage(tensors)
        if self._stager is None or self._staged_names != tensors.keys():
            # Before the first optimizer step there are fewer.
            self._stager = BlockingAsyncStager(cache_staged_state_dict=True)
            self._staged_names = frozenset(tensors)
        staged = self._stager.stage(tensors)
        torch.cuda.synchronize()
        return staged


def _local_bytes(value: object) -> int:
    if not isinstance(value, Tensor):
        return 0
    local: Tensor = value.to_local() if hasattr(value, "to_local") else value  # pyright: ignore
    return local.numel() * local.element_size()
