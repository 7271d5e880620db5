"""Models whose parameters have no memory until they are sharded.

Invariants:

* Inside `parameters_on_meta` modules are built without memory for parameters; buffers are real,
  because nothing else would compute them again.
* Tied parameters are one parameter before sharding and after materialisation.
* Each rank keeps its own shard of a weight only; the whole weight lives for one copy.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, distribute_tensor

__all__ = ["WeightReader", "materialize", "parameters_on_meta"]

WeightReader = Callable[[str], Tensor]
"""Returns a whole weight by the model's parameter name, on the CPU."""


@contextmanager
def parameters_on_meta() -> Generator[None]:
    """Put every parameter that a module registers on the meta device.

    Not safe with other threads that build modules at the same time.
    """
    register = nn.Module.register_parameter

    def register_on_meta(module: nn.Module, name: str, param: nn.Parameter | None) -> None:
        register(module, name, param)
        if param is not None and not param.is_meta:
            meta = nn.Parameter(param.detach().to("meta"), requires_grad=param.requires_grad)
            module._parameters[name] = meta  # pyright: ignore[reportPrivateUsage]

    nn.Module.register_parameter = register_on_meta  # pyright: ignore[reportAttributeAccessIssue]
    try:
        yield
    finally:
        nn.Module.register_parameter = register


def materialize(module: nn.Module, device: torch.device, read: WeightReader) -> None:
    """Give a sharded module's parameters memory and values.

    Args:
        module: Parameters on the meta device; buffers are moved to the device.
        device: Where to.
        read: Called once for each parameter, on every rank.
    """
    owners: dict[int, list[tuple[nn.Module, str]]] = {}
    for part in module.modules():
        for name, parameter in part.named_parameters(recurse=False):
            owners.setdefault(id(parameter), []).append((part, name))
    module._apply(  # pyright: ignore[reportPrivateUsage]
        lambda t: torch.empty_like(t, device=device) if t.is_meta else t.to(device)
    )
    for tied in owners.values():
        first = getattr(*tied[0])
        for part, name in tied[1:]:
            setattr(part, name, first)
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            _fill(parameter, read(name))


def _fill(parameter: nn.Parameter, whole: Tensor) -> None:
    if not isinstance(parameter, DTensor):
        parameter.copy_(whole)
        return
    # Each rank has read the weight by itself: nothing travels.
    shard = distribute_tensor(
        whole.to(parameter.to_local().device),
        parameter.device_mesh,
        parameter.placements,
        src_data_rank=None,
    )
    parameter.to_local().copy_(shard.to_local())
