"""FSDP2 over a one-dimensional mesh, with gradients that are sums.

Invariants:

* `fully_shard` is applied to each repeated block, then to the root; tied parameters lie in the root
  together, so they stay one parameter.
* Gradients are *summed* over ranks: losses carry global denominators already.
* Trainable parameters are float32 whatever the compute dtype.
"""

from __future__ import annotations

import functools

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed import HashStore  # pyright: ignore[reportPrivateImportUsage]
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.utils.checkpoint import checkpoint

__all__ = ["data_parallel_mesh", "freeze_modules", "repeated_blocks", "shard_module"]


def repeated_blocks(module: nn.Module) -> list[tuple[str, nn.Module]]:
    """Return the blocks of every `ModuleList` of equal, heavy members, outermost first.

    A transformers model names its blocks in `_no_split_modules`; without that, members of module
    lists that hold parameters and are called in sequence are taken.

    Args:
        module: The model.

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
        module: The model.
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
        is_compiled: Compile each block.
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
