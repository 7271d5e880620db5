"""FSDP2 over a one-dimensional mesh, with gradients that are sums.

Invariants:

* `fully_shard` is applied to each repeated block, then to the root; tied parameters lie in the root
  together, so they stay one parameter.
* Gradients are *summed* over ranks: losses carry global denominators already.
* Trainable parameters are float32 whatever the compute dtype.
* Inside `parameters_on_meta` modules are built without memory for parameters; buffers are real,
  because nothing else would compute them again. `materialize` fills them after sharding: each rank
  keeps its own shard of a weight only, the whole weight lives for one copy, and tied parameters stay
  one.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Generator
from contextlib import contextmanager

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed import HashStore  # pyright: ignore[reportPrivateImportUsage]
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.utils.checkpoint import checkpoint

from awrl_trainer.errors import CheckpointError

WeightReader = Callable[[str], Tensor]
"""Returns a whole weight by the model's parameter name, on the CPU."""


def repeated_blocks(module: nn.Module) -> list[tuple[str, nn.Module]]:
    """Return the blocks of every `ModuleList` of equal, heavy members, outermost first.

    A transformers model names its blocks in `_no_split_modules`; without that, members of module
    lists that hold parameters and are called in sequence are taken.

    Returns:
        Names and modules, in the model's own order.
    """
    named = {name: part for name, part in module.named_modules()}
    classes = {
        cls for part in named.values() for cls in (getattr(part, "_no_split_modules", None) or ())
    }
    if classes:
        return [(name, part) for name, part in named.items() if type(part).__name__ in classes]
    return [
        (f"{name}.{index}", child)
        for name, part in named.items()
        if isinstance(part, nn.ModuleList)
        for index, child in enumerate(part)
        if any(True for _ in child.parameters())
    ]


def freeze_modules(module: nn.Module, prefixes: tuple[str, ...]) -> int:
    """Stop gradients of parameters under the given names.

    Args:
        prefixes: Prefixes of parameter names, such as `model.visual`.

    Returns:
        The number of parameters that are frozen.

    Raises:
        ValueError: A prefix that no parameter has.
    """
    num_frozen = 0
    for prefix in prefixes:
        chosen = [p for name, p in module.named_parameters() if name.startswith(prefix)]
        if not chosen:
            raise ValueError(
                f"frozen_modules must be prefixes of parameter names, got {prefix!r}. Names look"
                f" like {next((name for name, _ in module.named_parameters()), 'none')!r}."
            )
        for parameter in chosen:
            num_frozen += parameter.requires_grad
            parameter.requires_grad_(False)
    return num_frozen


def shard_module(
    root: nn.Module,
    mesh: DeviceMesh,
    *,
    compute_dtype: torch.dtype,
    checkpointed_share: float = 0.0,
    is_compiled: bool = False,
) -> None:
    """Shard a module in place: per block, then the rest as the root.

    Args:
        root: The module whose forward is called; its parameters become float32 DTensors.
        mesh: One-dimensional mesh of the data-parallel ranks.
        compute_dtype: Dtype of gathered parameters and activations.
        checkpointed_share: Share of the blocks that are recomputed in the backward pass.
    """
    root.float()
    blocks = repeated_blocks(root)
    for index, (_, block) in enumerate(blocks):
        if is_compiled:
            block.forward = torch.compile(block.forward)
        # Every block whose share of the whole passes an integer, so that they are spread evenly.
        if int((index + 1) * checkpointed_share) > int(index * checkpointed_share):
            _checkpoint_block(block)
    policy = MixedPrecisionPolicy(param_dtype=compute_dtype, reduce_dtype=torch.float32)
    for _, block in blocks:
        if _has_one_grad_mode(block):
            fully_shard(block, mesh=mesh, mp_policy=policy)
    fully_shard(root, mesh=mesh, mp_policy=policy)
    for part in root.modules():
        if isinstance(part, FSDPModule):
            # gloo has no averaging reduction, and an average is not wanted.
            part.set_force_sum_reduction_for_comms(True)
            part.set_gradient_divide_factor(1.0)


def data_parallel_mesh(device_type: str) -> DeviceMesh:
    """Return the mesh of all ranks of the default process group.

    A process that has no process group gets one of a single rank, without any port.

    Args:
        device_type: `cpu` or `cuda`.
    """
    if not dist.is_initialized():
        backend = "gloo" if device_type == "cpu" else "cpu:gloo,cuda:nccl"
        dist.init_process_group(backend, store=HashStore(), rank=0, world_size=1)
    return DeviceMesh(device_type, torch.arange(dist.get_world_size()))


def _has_one_grad_mode(block: nn.Module) -> bool:
    return len({p.requires_grad for p in block.parameters()}) == 1


def _checkpoint_block(block: nn.Module) -> None:
    # Inside of the block, so that parameter names stay and the block's gather hooks run around it.
    # Policies run without dropout, so there is no random state to bring back.
    block.forward = functools.partial(
        checkpoint, block.forward, use_reentrant=False, preserve_rng_state=False
    )


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
        read: Called once for each parameter, on every rank.

    Raises:
        CheckpointError: A weight of another shape than the module's.
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
            whole = read(name)
            if whole.shape != parameter.shape:
                raise CheckpointError(
                    f"weight {name!r} must have shape {tuple(parameter.shape)}, got"
                    f" {tuple(whole.shape)}. Config and weights are of two models."
                )
            _fill(parameter, whole)


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
