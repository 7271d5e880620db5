"""The trainer's side of a publish, on each rank; every public method is called on all of them.

Invariants:

* Every rank gathers the same buckets in the same order, one call at a time; only rank 0 is in the
  group of receivers. A broadcast that fails on rank 0 fails after the gathers that all ranks have
  done, so the ranks stay in step.
* Bucket i + 1 is gathered while bucket i is on the wire, once the receivers asked for bucket i.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import TCPStore  # pyright: ignore[reportPrivateImportUsage]
from torch.distributed.tensor import DTensor

from awrl_trainer.errors import PublishError
from awrl_trainer.weights.group import destroy_group, form_group, open_store
from awrl_trainer.weights.plan import (
    DEFAULT_BUCKET_BYTES,
    Bucket,
    PublishPlan,
    plan_publish,
    tensor_checksum,
    torch_dtype,
)
from awrl_trainer.weights.snapshot import SnapshotWriter

LOOK_S = 1e-4
"""Between two looks at a broadcast."""


@dataclass(frozen=True, kw_only=True, slots=True)
class GroupRequest:
    """What rank 0 needs in order to open a group."""

    host: str
    """Address of rank 0 that receivers can reach."""
    world_size: int
    """Members, rank 0 included."""
    group_name: str
    """Unique per group."""
    backend: str
    """`nccl` or `gloo`."""
    timeout_s: float
    """Limit of forming the group and of each broadcast, seconds."""


@dataclass(frozen=True, kw_only=True, slots=True)
class BucketTiming:
    """What one bucket cost on rank 0."""

    gather_s: float
    """Seconds of gathering shards that nothing overlapped."""
    broadcast_s: float
    """Seconds from the start of the broadcast to its end; the next gather runs meanwhile."""


class WeightSender:
    """Gathers buckets on every rank and broadcasts them from rank 0.

    Args:
        named_tensors: The weights in the model's order, tied ones once, sharded or whole; read at each
            broadcast.
        is_source: True on rank 0.
        dtype: Dtype that receivers hold floating weights in; None keeps the tensor's own.
        bucket_bytes: Largest bucket; a larger weight gets a bucket of its own.
        rename: Maps the trainer's name to the receivers'.
        is_overlapped: Gather the next bucket during a broadcast.
        clock: Seconds, for the timings.

    Raises:
        ValueError: No tensors, `bucket_bytes` below 1, or two weights of one name.
    """

    def __init__(
        self,
        named_tensors: Sequence[tuple[str, Tensor]],
        *,
        is_source: bool = True,
        dtype: str | None = "bfloat16",
        bucket_bytes: int = DEFAULT_BUCKET_BYTES,
        rename: Callable[[str], str] | None = None,
        is_overlapped: bool = True,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.plan: PublishPlan = plan_publish(
            named_tensors, dtype=dtype, bucket_bytes=bucket_bytes, rename=rename
        )
        self._by_name = {
            spec.name: tensor
            for spec, (_, tensor) in zip(self.plan.specs, named_tensors, strict=True)
        }
        self._is_source = is_source
        self._is_overlapped = is_overlapped
        self._clock = clock
        self._request: GroupRequest | None = None
        self._store: TCPStore | None = None
        self._group: dist.ProcessGroup | None = None
        self._ahead: tuple[int, Tensor] | None = None

    def publish_plan(self) -> PublishPlan:
        """Return names, dtypes, shapes and buckets of what a publish sends."""
        return self.plan

    def bind_group(self, request: GroupRequest) -> int:
        """Bind the store and return its port; 0 on other ranks.

        Raises:
            OSError: The address can't be bound.
        """
        self.close_group()
        self._request = request
        if not self._is_source:
            return 0
        self._store = open_store(
            request.host, rank=0, world_size=request.world_size, timeout_s=request.timeout_s
        )
        return self._store.port

    def join_group(self) -> None:
        """Form the group with the receivers; other ranks return at once.

        Raises:
            PublishError: Not all receivers joined in time.
        """
        if not self._is_source:
            return
        if self._store is None or self._request is None:
            raise PublishError(
                "bind_group must be called before join_group, got no store. Bind first.",
                phase="handshake",
            )
        request = self._request
        try:
            self._group = form_group(
                self._store,
                rank=0,
                world_size=request.world_size,
                group_name=request.group_name,
                backend=request.backend,
                timeout_s=request.timeout_s,
            )
        except RuntimeError as error:
            raise PublishError(
                f"{request.world_size - 1} receivers must join {request.group_name!r} within"
                f" {request.timeout_s:g} s, got: {error}. Look at the receivers' logs.",
                phase="handshake",
            ) from error

    def broadcast_bucket(self, index: int) -> BucketTiming:
        """Gather one bucket on all ranks and broadcast it from rank 0.

        Called on all ranks. The next bucket is gathered meanwhile.

        Raises:
            PublishError: The broadcast failed or timed out; all ranks are in step nonetheless.
        """
        started = self._clock()
        flat = self._gathered(index)
        self._ahead = None
        sending = self._clock()
        work, refused = None, None
        try:
            # With nccl members only meet here, so one that is gone already fails this call.
            work = self._start_broadcast(flat)
        except RuntimeError as error:
            refused = error
        if self._is_overlapped and index + 1 < len(self.plan.buckets):
            self._ahead = (index + 1, self.gather(self.plan.buckets[index + 1]))
        try:
            if refused is not None:
                raise refused
            if work is not None:
                self._finish(work)
        except PublishError:
            raise
        except RuntimeError as error:
            self.close_group(is_broken=True)
            raise PublishError(
                f"bucket {index} must reach every receiver, got: {error}."
                " A member of the group died or is stuck.",
                phase="broadcast",
            ) from error
        return BucketTiming(gather_s=sending - started, broadcast_s=self._clock() - sending)

    def close_group(self, *, is_broken: bool = False) -> None:
        """Leave the group and close the store; a broken group's other members are not asked."""
        group, self._group, self._store, self._ahead = self._group, None, None, None
        if group is not None:
            destroy_group(group, is_broken=is_broken)

    def gather(self, bucket: Bucket) -> Tensor:
        """Return the flat tensor of a bucket in the receivers' dtype; called on all ranks."""
        dtype = torch_dtype(bucket.specs[0].dtype)
        flat = torch.empty(
            bucket.num_elements, dtype=dtype, device=self._by_name[bucket.names[0]].device
        )
        for name, part in bucket.unflatten(flat).items():
            tensor = self._by_name[name].detach()
            if isinstance(tensor, DTensor) and tensor.device_mesh.size() > 1:
                tensor = self.full_tensor(name, dtype)
            # One pass where nothing is sharded: the copy casts too.
            part.copy_(tensor.to_local() if isinstance(tensor, DTensor) else tensor)
        return flat

    def full_tensor(self, name: str, dtype: torch.dtype) -> Tensor:
        """Return one whole weight, cast before it is gathered; called on all ranks."""
        tensor = self._by_name[name].detach().to(dtype)
        return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor

    def named_full_tensors(self) -> Iterator[tuple[str, Tensor]]:
        """Yield every whole weight in order, one at a time; called on all ranks."""
        for spec in self.plan.specs:
            yield spec.name, self.full_tensor(spec.name, torch_dtype(spec.dtype))

    def write_snapshot(self, writer: SnapshotWriter, version: int) -> Path | None:
        """Write the weights in the Hugging Face format; called on all ranks.

        Returns:
            The directory on rank 0, None on others.

        Raises:
            CheckpointError: The disk refused a write.
        """
        tensors = self.named_full_tensors()
        try:
            return writer.write(tensors, version) if self._is_source else None
        finally:
            # Every rank gathers every weight, also where a snapshot of this version is there already:
            # a rank that stopped early would leave the others waiting in a collective.
            for _ in tensors:
                pass

    def stage_snapshot(self, writer: SnapshotWriter, version: int) -> Callable[[], Path | None]:
        """Copy the weights to host memory; called on all ranks.

        Returns:
            Writes them as `write_snapshot` would, in this or another thread; does nothing on ranks
            other than the first.
        """
        staged = [
            (name, tensor.to("cpu", copy=True)) if self._is_source else (name, tensor[:0])
            for name, tensor in self.named_full_tensors()
        ]
        return lambda: writer.write(staged, version) if self._is_source else None

    def checksums(self, names: Sequence[str]) -> dict[str, str]:
        """Return the checksum of each named weight; called on all ranks."""
        dtypes = {spec.name: torch_dtype(spec.dtype) for spec in self.plan.specs}
        return {name: tensor_checksum(self.full_tensor(name, dtypes[name])) for name in names}

    def fingerprint(self) -> str:
        """Return what changes, but for rare chance, when a weight does; called on all ranks.

        Sums of bytes taken as integers: on a GPU a thousand times as fast as checksums.
        """
        integers = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
        sums: list[Tensor] = []
        for _, tensor in self.named_full_tensors():
            bits = tensor.contiguous().view(-1).view(integers[tensor.element_size()])
            sums.append(bits.sum(dtype=torch.int64))
        return tensor_checksum(torch.stack(sums))

    def _gathered(self, index: int) -> Tensor:
        if self._ahead is not None and self._ahead[0] == index:
            return self._ahead[1]
        return self.gather(self.plan.buckets[index])

    def _finish(self, work: dist.Work) -> None:
        """Return when a broadcast is through.

        Torch's own wait for nccl sleeps a millisecond between two looks, as long as 350 MB take over
        NVLink; the time-out is the group's either way.

        Raises:
            RuntimeError: It failed, or the group's time-out has passed.
        """
        assert self._request is not None
        deadline = time.monotonic() + self._request.timeout_s
        while not work.is_completed() and time.monotonic() < deadline:
            time.sleep(LOOK_S)
        work.wait()

    def _start_broadcast(self, flat: Tensor) -> dist.Work | None:
        if not self._is_source:
            return None
        if self._group is None:
            raise PublishError(
                "a group must be formed before broadcast_bucket, got none. Call join_group.",
                phase="broadcast",
            )
        # As bytes: what SGLang receives a flattened bucket as, whatever the dtypes in it.
        return dist.broadcast(flat.view(torch.uint8), src=0, group=self._group, async_op=True)
