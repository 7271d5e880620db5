"""Checksums of weights, equal exactly where the bytes are."""

from __future__ import annotations

import hashlib

import torch
from torch import Tensor

__all__ = ["tensor_checksum"]


def tensor_checksum(tensor: Tensor) -> str:
    """Return a hexadecimal checksum of a tensor's dtype, shape and bytes.

    Args:
        tensor: Any tensor, on any device.
    """
    flat = tensor.detach().contiguous().cpu()
    digest = hashlib.blake2b(f"{flat.dtype} {list(flat.shape)}".encode(), digest_size=16)
    digest.update(flat.reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()
