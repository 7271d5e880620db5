"""What is published: names, dtypes and shapes, cut into flattened buckets.

Invariants:

* The order is that of the model's parameters, the same on every rank and in every process; tied
  weights appear once, under their first name.
* A bucket has one dtype, because it travels as one flat tensor.
* Dtypes are those that the server holds, declared and actual.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

DEFAULT_BUCKET_BYTES = 2**30
"""1 GiB, 3 ms over NVLink: a receiver's request takes as long. The trainer holds two, a server one."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TensorSpec:
    """One weight as the server knows it."""

    name: str
    """Name in a checkpoint of the model."""
    dtype: str
    """Dtype without prefix, such as `bfloat16`."""
    shape: tuple[int, ...]
    """Full shape, before any sharding."""

    @property
    def num_elements(self) -> int:
        """Elements of the full tensor."""
        return math.prod(self.shape)

    @property
    def num_bytes(self) -> int:
        """Bytes of the full tensor."""
        return self.num_elements * torch_dtype(self.dtype).itemsize


@dataclass(frozen=True, kw_only=True, slots=True)
class Bucket:
    """Weights that travel in one broadcast, as one flat tensor in this order."""

    index: int
    """Place in the plan."""
    specs: tuple[TensorSpec, ...]
    """At least one, all of one dtype."""

    @property
    def names(self) -> tuple[str, ...]:
        """Names in order."""
        return tuple(spec.name for spec in self.specs)

    @property
    def dtypes(self) -> tuple[str, ...]:
        """Dtype of each weight."""
        return tuple(spec.dtype for spec in self.specs)

    @property
    def shapes(self) -> tuple[tuple[int, ...], ...]:
        """Shape of each weight."""
        return tuple(spec.shape for spec in self.specs)

    @property
    def num_elements(self) -> int:
        """Elements of the flat tensor."""
        return sum(spec.num_elements for spec in self.specs)

    @property
    def num_bytes(self) -> int:
        """Bytes of the flat tensor."""
        return sum(spec.num_bytes for spec in self.specs)

    def unflatten(self, flat: Tensor) -> dict[str, Tensor]:
        """Return views of a flat tensor by name.

        Args:
            flat: One-dimensional, `num_elements` long.
        """
        sizes = [spec.num_elements for spec in self.specs]
        return {
            spec.name: part.view(spec.shape)
            for spec, part in zip(self.specs, flat.split(sizes), strict=True)
        }


@dataclass(frozen=True, kw_only=True, slots=True)
class PublishPlan:
    """All buckets of a publish, in order."""

    buckets: tuple[Bucket, ...]
    """At least one."""

    @property
    def specs(self) -> tuple[TensorSpec, ...]:
        """All weights in order."""
        return tuple(spec for bucket in self.buckets for spec in bucket.specs)

    @property
    def num_bytes(self) -> int:
        """Bytes of all weights."""
        return sum(bucket.num_bytes for bucket in self.buckets)


def plan_publish(
    named_tensors: Iterable[tuple[str, Tensor]],
    *,
    dtype: str | None = "bfloat16",
    bucket_bytes: int = DEFAULT_BUCKET_BYTES,
    rename: Callable[[str], str] | None = None,
) -> PublishPlan:
    """Cut a model's parameters into buckets.

    Args:
        named_tensors: Names and tensors in the model's order, tied ones once. Only dtype and
            (global) shape are read.
        dtype: Dtype that the server holds floating weights in; None keeps the tensor's own.
        bucket_bytes: Largest bucket; a larger weight gets a bucket of its own.
        rename: Maps the trainer's name to the server's.

    Returns:
        The plan.

    Raises:
        ValueError: No tensors, `bucket_bytes` below 1, or two weights of one name.
    """
    if bucket_bytes < 1:
        raise ValueError(f"bucket_bytes must be >= 1, got {bucket_bytes}. Try 2**30.")
    specs = [
        TensorSpec(
            name=rename(name) if rename else name,
            dtype=dtype_name(tensor.dtype)
            if dtype is None or not tensor.is_floating_point()
            else dtype,
            shape=tuple(tensor.shape),
        )
        for name, tensor in named_tensors
    ]
    names = [spec.name for spec in specs]
    if not specs or len(set(names)) < len(names):
        twice = sorted({name for name in names if names.count(name) > 1})
        raise ValueError(
            f"names of weights must be unique and at least one, got {len(names)} with"
            f" {twice} twice. Check the rename function."
        )
    runs: list[list[TensorSpec]] = []
    for spec in specs:
        fits = (
            runs
            and runs[-1][0].dtype == spec.dtype
            and sum(s.num_bytes for s in runs[-1]) + spec.num_bytes <= bucket_bytes
        )
        if fits:
            runs[-1].append(spec)
        else:
            runs.append([spec])
    return PublishPlan(
        buckets=tuple(Bucket(index=i, specs=tuple(run)) for i, run in enumerate(runs))
    )


def dtype_name(dtype: torch.dtype) -> str:
    """Return `bfloat16` for `torch.bfloat16`."""
    return str(dtype).removeprefix("torch.")


def torch_dtype(name: str) -> torch.dtype:
    """Return `torch.bfloat16` for `bfloat16`.

    Raises:
        ValueError: Not the name of a dtype.
    """
    dtype = getattr(torch, name, None)
    if not isinstance(dtype, torch.dtype):
        raise ValueError(f"dtype must be the name of a torch dtype, got {name!r}. Try 'bfloat16'.")
    return dtype


def tensor_checksum(tensor: Tensor) -> str:
    """Return a hexadecimal checksum of a tensor's dtype, shape and bytes, on any device."""
    flat = tensor.detach().contiguous().cpu()
    digest = hashlib.blake2b(f"{flat.dtype} {list(flat.shape)}".encode(), digest_size=16)
    digest.update(flat.reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()
