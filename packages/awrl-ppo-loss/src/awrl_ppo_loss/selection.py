"""The trainable positions of a micro-batch, and zero everywhere else.

Invariant: a masked position becomes +0.0 whatever it held, NaN and infinities included, which
multiplying by the mask does not achieve; a trainable position keeps its bits.

Legend: `N` positions, `B * T` or packed `T`, flattened.
"""

from functools import cached_property

import torch
from torch import Tensor

_INTEGER_TWIN = {torch.float32: torch.int32, torch.float64: torch.int64}


def upcast(values: Tensor) -> Tensor:
    """Return values in float32 at least: a bfloat16 difference of log-probs is no ratio."""
    return values if values.dtype in _INTEGER_TWIN else values.float()


class Selection:
    """A flattened mask `[N]` that zeroes what it does not select. Nothing here has a gradient."""

    def __init__(self, mask: Tensor) -> None:
        self.mask = mask.reshape(-1)
        self._bits: dict[torch.dtype, Tensor] = {}

    @cached_property
    def num_tokens(self) -> Tensor:
        """Number of trainable positions, float64 scalar."""
        return self.mask.sum().double()

    def keep(self, values: Tensor) -> Tensor:
        """Return float32 or float64 values `[..., N]`, copied, with 0 at masked positions."""
        bits = self._mask_bits(_INTEGER_TWIN[values.dtype])
        return values.view(bits.dtype).bitwise_and(bits).view(values.dtype)

    def keep_(self, values: Tensor) -> Tensor:
        """Write 0 to the masked positions of float32 or float64 values `[..., N]`."""
        bits = self._mask_bits(_INTEGER_TWIN[values.dtype])
        values.view(bits.dtype).bitwise_and_(bits)
        return values

    def _mask_bits(self, integer: torch.dtype) -> Tensor:
        """Return all ones where the mask is true, so that an `and` keeps or clears every bit.

        On a CPU this is 3 to 15 times faster than `torch.where`, which branches on every element.
        """
        bits = self._bits.get(integer)
        if bits is None:
            bits = self._bits[integer] = self.mask.to(integer).neg_()
        return bits
