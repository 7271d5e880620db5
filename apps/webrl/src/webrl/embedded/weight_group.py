"""Broadcast groups that a trainer opens as rank 0 and the server joins, exactly as SGLang does.

Invariants:

* A group is made from its own rendezvous and a `PrefixStore` of its name, through torch's own
  helper, so that rank 0 can't tell this server from a real one. A default group of this process
  alone exists beside it.
* A broadcast is received into memory of its own; the weights are not touched here.
* With a tensor-parallel size above 1 the server is as many members as a real one of that size: all
  of them receive every broadcast, and what they receive must be equal.
* Joining and receiving are bounded by torch's own timeout. A group whose broadcast failed is
  broken: it is dropped at once. It may still be left once, as if it were there.

Blocking: called in worker threads, one call at a time per group.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any, Protocol, cast

import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import (
    Backend,
    PrefixStore,
    _new_process_group_helper,  # pyright: ignore[reportPrivateUsage]
    _world,  # pyright: ignore[reportPrivateUsage]
)
from torch.distributed.rendezvous import rendezvous

from webrl.embedded.weights import SentTensor
from webrl.embedded.wire import InitGroupBody
from webrl.errors import WeightUpdateError

logger = logging.getLogger(__name__)


class _Group(Protocol):
    """One member's side of a group."""

    def broadcast(self, tensor: torch.Tensor, root: int, /) -> dist.Work:
        """Start to receive from `root`."""
        ...


def parse_specs(
    names: Sequence[str], dtypes: Sequence[str], shapes: Sequence[Sequence[int]]
) -> list[SentTensor]:
    """Return the specs that an update's three lists describe.

    Raises:
        WeightUpdateError: Lists of unequal length, an empty one, an unknown dtype, a bad shape.
    """
    if not names or not len(names) == len(dtypes) == len(shapes):
        raise WeightUpdateError(
            "names, dtypes and shapes must have one length > 0, got "
            f"{len(names)}, {len(dtypes)} and {len(shapes)}. Nothing was received."
        )
    specs: list[SentTensor] = []
    for name, dtype_name, shape in zip(names, dtypes, shapes, strict=True):
        dtype = getattr(torch, dtype_name.removeprefix("torch."), None)
        if not isinstance(dtype, torch.dtype):
            raise WeightUpdateError(
                f"dtype of {name!r} must be a torch dtype, got {dtype_name!r}. "
                "Nothing was received."
            )
        if any(size < 0 for size in shape):
            raise WeightUpdateError(f"shape of {name!r} must not be negative, got {list(shape)}.")
        specs.append(SentTensor(name=name, shape=tuple(shape), dtype=dtype))
    return specs


class WeightGroups:
    """The groups that this server has joined, by name.

    Args:
        device: Where broadcasts are received.
        timeout_s: Torch's own timeout for joining and for each broadcast.
        tp_size: Members that the server is; above 1 with gloo only.
    """

    def __init__(self, *, device: str, timeout_s: float, tp_size: int = 1) -> None:
        self._device = torch.device(device)
        self._timeout = timedelta(seconds=timeout_s)
        self._tp_size = tp_size
        self._groups: dict[str, dist.ProcessGroup] = {}
        self._further: dict[str, list[_Group]] = {}
        self._broken: set[str] = set()
        self._lock = threading.Lock()

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the groups joined."""
        return tuple(sorted(self._groups))

    def join(self, body: InitGroupBody) -> None:
        """Join a group; returns once all its members are there.

        Raises:
            WeightUpdateError: The name is taken, the numbers are impossible, or not all came.
        """
        self._check(body)
        try:
            with self._lock:
                _ensure_default_group()
            with ThreadPoolExecutor(self._tp_size) as threads:
                further = [
                    threads.submit(self._open_further, body, body.rank_offset + index)
                    for index in range(1, self._tp_size)
                ]
                group = self._open(body)
                self._further[body.group_name] = [member.result() for member in further]
        except (RuntimeError, ValueError, OSError) as error:
            raise WeightUpdateError(
                f"group {body.group_name!r} must form at {body.master_address}:{body.master_port}, "
                f"got: {error}. Open rank 0 at the same time, on a free port."
            ) from error
        self._broken.discard(body.group_name)
        self._groups[body.group_name] = group

    def _check(self, body: InitGroupBody) -> None:
        if not body.group_name:
            raise WeightUpdateError("group_name must not be empty, got ''. Name the group.")
        if body.group_name in self._groups:
            raise WeightUpdateError(
                f"group_name must be new, got {body.group_name!r}, which was joined already. "
                "Destroy it first, or take another name."
            )
        if not 0 < body.rank_offset <= body.world_size - self._tp_size:
            of_size = f" for tp_size {self._tp_size}" if self._tp_size > 1 else ""
            raise WeightUpdateError(
                f"rank_offset must be in [1, world_size){of_size}, got {body.rank_offset} of "
                f"{body.world_size}. Rank 0 is the trainer."
            )
        if body.backend not in ("gloo", "nccl"):
            raise WeightUpdateError(
                f"backend must be 'gloo' or 'nccl', got {body.backend!r}. Use gloo on CPUs."
            )
        if body.backend == "nccl" and self._device.type != "cuda":
            raise WeightUpdateError(
                f"backend must be 'gloo' on {self._device.type}, got 'nccl'. Use gloo on CPUs."
            )

    def _open(self, body: InitGroupBody) -> dist.ProcessGroup:
        store = self._store(body, body.rank_offset)
        group, _ = _new_process_group_helper(
            body.world_size,
            body.rank_offset,
            [],
            Backend(body.backend),
            PrefixStore(body.group_name, store),
            group_name=cast("Any", body.group_name),
            timeout=self._timeout,
        )
        _world.pg_group_ranks[group] = {i: i for i in range(body.world_size)}
        return cast("dist.ProcessGroup", group)

    def _open_further(self, body: InitGroupBody, rank: int) -> _Group:
        """Join as one more member: torch's helper takes each name once in a process."""
        store = PrefixStore(body.group_name, self._store(body, rank))
        # As the helper prefixes the store of the members that it makes.
        store = PrefixStore("cpu/", PrefixStore(f"{body.group_name}/", store))
        gloo: Any = dist.ProcessGroupGloo
        return gloo(store, rank, body.world_size, self._timeout)

    def _store(self, body: InitGroupBody, rank: int) -> Any:
        host = f"[{body.master_address}]" if ":" in body.master_address else body.master_address
        iterator = rendezvous(
            f"tcp://{host}:{body.master_port}",
            rank,
            body.world_size,
            timeout=self._timeout,
        )
        store, _, _ = next(iterator)
        store.set_timeout(self._timeout)
        return store

    def leave(self, group_name: str) -> None:
        """Leave a group.

        Raises:
            WeightUpdateError: No such group.
        """
        if group_name in self._broken:
            self._broken.remove(group_name)
            return
        group = self._groups.pop(group_name, None)
        if group is None:
            raise WeightUpdateError(
                f"group {group_name!r} must exist to be destroyed, got {list(self.names)}."
            )
        self._further.pop(group_name, None)
        dist.destroy_process_group(group)

    def receive(
        self, group_name: str, specs: Sequence[SentTensor], *, is_flattened: bool
    ) -> dict[str, torch.Tensor]:
        """Take part in the broadcasts of one update and return what came.

        Args:
            group_name: Group to receive from; rank 0 sends.
            specs: What comes, in order.
            is_flattened: One broadcast of all bytes, else one per tensor.

        Raises:
            WeightUpdateError: No such group, or the broadcast failed.
        """
        group = self._groups.get(group_name)
        if group is None:
            raise WeightUpdateError(
                f"Group {group_name!r} not in {list(self.names)}. "
                "Please call `init_weights_update_group` first."
            )
        further = self._further.get(group_name, ())
        try:
            with ThreadPoolExecutor(self._tp_size) as threads:
                copies = [
                    threads.submit(_receive, member, specs, self._device, is_flattened)
                    for member in further
                ]
                received = _receive(cast("_Group", group), specs, self._device, is_flattened)
                _require_equal(received, [copy.result() for copy in copies])
                return received
        except RuntimeError as error:
            self._drop(group_name)
            raise WeightUpdateError(
                f"broadcast in group {group_name!r} must complete within "
                f"{self._timeout.total_seconds():g} s, got: {error}. The group is dropped and the "
                "weights are as before: destroy it on rank 0 and open a new one."
            ) from error

    def _drop(self, group_name: str) -> None:
        group = self._groups.pop(group_name, None)
        self._further.pop(group_name, None)
        self._broken.add(group_name)
        # Gloo forgets a broken group, so that its name is free again; NCCL may hang in doing so.
        if group is not None and self._device.type == "cpu":
            with contextlib.suppress(RuntimeError, ValueError):
                dist.destroy_process_group(group)


def _receive(
    group: _Group, specs: Sequence[SentTensor], device: torch.device, is_flattened: bool
) -> dict[str, torch.Tensor]:
    """Take part in the broadcasts of one update as one member."""
    if is_flattened:
        return _receive_flat(group, specs, device)
    received = [
        (spec.name, torch.empty(spec.shape, dtype=spec.dtype, device=device)) for spec in specs
    ]
    # All are posted before the first is awaited, as SGLang does: rank 0 may do either.
    handles = [group.broadcast(tensor, 0) for _, tensor in received]
    for handle in handles:
        handle.wait()
    return dict(received)


def _receive_flat(
    group: _Group, specs: Sequence[SentTensor], device: torch.device
) -> dict[str, torch.Tensor]:
    sizes = [_num_bytes(spec) for spec in specs]
    flat = torch.empty(sum(sizes), dtype=torch.uint8, device=device)
    group.broadcast(flat, 0).wait()
    tensors: dict[str, torch.Tensor] = {}
    start = 0
    for spec, size in zip(specs, sizes, strict=True):
        piece = flat[start : start + size]
        # A view needs the dtype's alignment; a bucket of several dtypes may lack it.
        if start % spec.dtype.itemsize:
            piece = piece.clone()
        tensors[spec.name] = piece.view(spec.dtype).reshape(spec.shape)
        start += size
    return tensors


def _require_equal(
    received: Mapping[str, torch.Tensor], copies: Sequence[Mapping[str, torch.Tensor]]
) -> None:
    for copy in copies:
        for name, tensor in received.items():
            if not torch.equal(_bytes_of(tensor), _bytes_of(copy[name])):
                raise RuntimeError(f"{name!r} differs between two members of this server")


def _bytes_of(tensor: torch.Tensor) -> torch.Tensor:
    # As bytes: NaN is equal to itself.
    return tensor.contiguous().reshape(-1).view(torch.uint8)


def _num_bytes(spec: SentTensor) -> int:
    count = 1
    for size in spec.shape:
        count *= size
    return count * spec.dtype.itemsize


def _ensure_default_group() -> None:
    """Make a default group of this process alone; torch's helpers look for one."""
    if not dist.is_initialized():
        store = dist.HashStore()  # pyright: ignore[reportPrivateImportUsage]
        dist.init_process_group("gloo", store=store, rank=0, world_size=1)
