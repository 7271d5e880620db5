"""One rank of the update engine (role `actor`) as a Ray actor around `FSDPActor`.

Invariants:
    * every rank gets the same calls in the same order; the actor runs one call at a time;
    * no rank ever holds the whole policy: each reads its own shard of the checkpoint;
    * pixels are fetched from the PixelStore once per micro-batch, on the rank that needs them.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, TypeVar

import torch
import torch.distributed as dist
from awrl_pixelstore import PixelStoreClient
from awrl_trainer import (
    ActorConfig,
    Collate,
    FSDPActor,
    SaveReport,
    SnapshotWriter,
    TrainRow,
    UpdateResult,
    UpdateRunner,
    WeightSender,
    open_store,
)
from awrl_trainer.hf import load_actor
from torch.distributed import TCPStore  # pyright: ignore[reportPrivateImportUsage]

from webrl.cluster.network import LOCAL, NetworkConfig
from webrl.cluster.worker_log import open_worker_log
from webrl.policy import PolicyProcessor
from webrl.training.rows import Collator

ParamsT = ParamSpec("ParamsT")
ResultT = TypeVar("ResultT")

GROUP_DEADLINE = timedelta(seconds=300)
"""Limit of one collective among trainer ranks: a lost rank becomes an error, not a hang."""


@dataclass(frozen=True, kw_only=True, slots=True)
class EngineSpec:
    """What every rank is built from."""

    policy_path: str
    """Checkpoint that training starts from."""
    actor: ActorConfig
    """Optimizer, loss and batching."""
    num_threads: int = 1
    """Torch threads on a CPU."""
    use_cuda: bool = False
    """Train on the process's first visible GPU."""
    network: NetworkConfig = LOCAL
    """Where ranks and servers meet."""


class UpdateEngine:
    """One rank; the class behind the Ray actor.

    Args:
        spec: Equal on every rank.
        rank: Rank within the role.
        world_size: Ranks of the role.
        pixels: Where the rows' images are.
    """

    _runner: type[UpdateRunner] = UpdateRunner

    def __init__(self, spec: EngineSpec, rank: int, world_size: int, pixels: PixelStoreClient):
        """Remember what to build; `start` builds it."""
        open_worker_log()
        self._spec = spec
        self._rank = rank
        self._world_size = world_size
        self._pixels = pixels
        self._actor: FSDPActor | None = None
        self._store: TCPStore | None = None

    def rendezvous(self) -> tuple[str, int]:
        """Return where the ranks meet: a store that rank 0 has bound and keeps, on a port of its own."""
        host = self._spec.network.host()
        if self._store is None:
            self._store = self._open_store(host, 0)
        return host, self._store.port

    def start(self, host: str, port: int, version: int = 0) -> int:
        """Join the other ranks and build the sharded policy.

        Args:
            host: Address of rank 0; what its `rendezvous` returned.
            port: Port of rank 0's store, likewise.
            version: Weight version that the policy starts at.

        Returns:
            The process id of this rank.
        """
        spec = self._spec
        torch.set_num_threads(spec.num_threads)
        os.environ.update(spec.network.environment())
        if self._store is None:
            self._store = self._open_store(host, port)
        dist.init_process_group(
            "cpu:gloo,cuda:nccl" if spec.use_cuda else "gloo",
            store=self._store,
            rank=self._rank,
            world_size=self._world_size,
            timeout=GROUP_DEADLINE,
        )
        processor = PolicyProcessor.from_pretrained(spec.policy_path)
        self._actor = load_actor(
            spec.policy_path,
            spec.actor,
            collate=self._collate(processor),
            device="cuda" if spec.use_cuda else "cpu",
            version=version,
            runner=self._runner,
        )
        return os.getpid()

    def update(self, rows: Sequence[TrainRow]) -> UpdateResult:
        """Run one update; see `FSDPActor.update`."""
        return self._built.update(rows)

    def version(self) -> int:
        """Return the policy's version."""
        return self._built.version

    def start_save(
        self, policies: str, root: str | None, keep: int, extra: Mapping[str, Any]
    ) -> float:
        """Begin to write a snapshot, and below `root` a complete checkpoint; returns the stall."""
        writer = SnapshotWriter(Path(policies), base=self._spec.policy_path, keep=keep)
        return self._built.start_save(root, keep=keep, extra=extra, snapshots=writer)

    def is_saved(self) -> bool:
        """Return whether what was begun has come to its end."""
        return self._built.is_saved

    def finish_save(self) -> SaveReport | None:
        """Wait for what was begun; return how it went."""
        return self._built.finish_save()

    def load(self, path: str) -> dict[str, Any]:
        """Load a complete checkpoint; returns what `save` got as `extra`."""
        return self._built.load(path)

    def send(
        self,
        method: Callable[Concatenate[WeightSender, ParamsT], ResultT],
        *args: ParamsT.args,
        **kwargs: ParamsT.kwargs,
    ) -> ResultT:
        """Call a method of this rank's weight sender; publishing is made of nothing else."""
        return method(self._built.sender, *args, **kwargs)

    def _open_store(self, host: str, port: int) -> TCPStore:
        return open_store(
            host,
            rank=self._rank,
            world_size=self._world_size,
            timeout_s=GROUP_DEADLINE.total_seconds(),
            port=port,
        )

    def _collate(self, processor: PolicyProcessor) -> Collate:
        return Collator(processor, self._fetch, self._spec.actor.row_layout)

    @property
    def _built(self) -> FSDPActor:
        if self._actor is None:
            raise RuntimeError("start must be called before any other method, got none yet.")
        return self._actor

    def _fetch(self, keys: Sequence[str]) -> list[Any]:
        return list(self._pixels.get_many(list(keys)))
