"""Policies from transformers checkpoints; needs the extra `hf`.

Invariant: with `load_actor` no rank ever holds the whole model: parameters are built without memory,
sharded, and then filled shard by shard from the checkpoint's safetensors files.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar, cast

import torch
import transformers
from safetensors import safe_open
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForImageTextToText,
    PreTrainedConfig,
)

from awrl_trainer.actor import FSDPActor
from awrl_trainer.config import ActorConfig
from awrl_trainer.errors import CheckpointError
from awrl_trainer.hf_attention import use_packed_attention as use_packed_attention
from awrl_trainer.outcome import outcome_of
from awrl_trainer.rows import Collate
from awrl_trainer.sharding import parameters_on_meta
from awrl_trainer.update import UpdateRunner

ResultT = TypeVar("ResultT")


def build_model(config: PreTrainedConfig) -> nn.Module:
    """Build the policy class of a config, image-text where it has a vision part.

    Returns:
        The model in float32, with the initial weights of its class.
    """
    has_vision = getattr(config, "vision_config", None) is not None
    auto = AutoModelForImageTextToText if has_vision else AutoModelForCausalLM
    return auto.from_config(config, dtype=torch.float32)


def load_actor(
    path: Path | str,
    config: ActorConfig,
    *,
    collate: Collate,
    mesh: DeviceMesh | None = None,
    device: torch.device | str | None = None,
    version: int = 0,
    runner: type[UpdateRunner] = UpdateRunner,
) -> FSDPActor:
    """Build a sharded actor from a local checkpoint; called on all ranks.

    Args:
        path: Directory with a config and safetensors files.
        config: With a KL term the reference is the checkpoint itself; with `row_layout = "packed"` the
            text model attends row by row.
        collate: Turns rows into a batch.
        mesh: One-dimensional mesh of the ranks; None takes all ranks.
        device: Where to compute; None takes the CPU.
        runner: Computes updates; see `FSDPActor`.

    Raises:
        CheckpointError: No such checkpoint, one that is damaged or that this transformers does not
            know, or a weight that it lacks or has in another shape.
    """
    path = Path(path)
    if not (path / "config.json").is_file():
        raise CheckpointError(
            f"path must be a directory with a config.json, got {str(path)!r}. Give a local copy."
        )
    model_config = _readable(path, "config.json", lambda: AutoConfig.from_pretrained(path))
    model_config._attn_implementation = "sdpa"  # pyright: ignore[reportPrivateUsage]
    if config.row_layout == "packed":
        use_packed_attention(model_config)
    reference: nn.Module | None = None
    with parameters_on_meta():
        model = build_model(model_config)
        if config.loss.kl_coefficient:
            reference = build_model(model_config)
    return FSDPActor(
        model,
        config,
        collate=collate,
        mesh=mesh,
        device=device,
        reference=reference,
        version=version,
        runner=runner,
        read_weight=checkpoint_reader(path),
    )


def checkpoint_reader(path: Path | str) -> Callable[[str], Tensor]:
    """Return a function that reads one weight of a checkpoint by name.

    Args:
        path: Directory with safetensors files.

    Raises:
        CheckpointError: No safetensors files; from the function, for a weight that the checkpoint
            lacks.
    """
    path = Path(path)
    files = _weight_files(path)

    def read(name: str) -> Tensor:
        if name not in files:
            raise CheckpointError(
                f"checkpoint {str(path)!r} must hold every weight of the model, got no {name!r}."
                f" It has names like {next(iter(files), 'none')!r}."
            )

        def tensor() -> Tensor:
            with safe_open(files[name], framework="pt") as opened:
                return opened.get_tensor(name)

        return _readable(path, files[name].name, tensor)

    return read


def _weight_files(path: Path) -> dict[str, Path]:
    """Return the file of each weight by name."""
    index = path / "model.safetensors.index.json"
    if index.is_file():
        return _readable(path, index.name, lambda: _indexed(index))
    single = path / "model.safetensors"
    if not single.is_file():
        raise CheckpointError(
            f"path must hold safetensors files, got none in {str(path)!r}. Save the model first."
        )

    def names() -> dict[str, Path]:
        with safe_open(single, framework="pt") as opened:
            return dict.fromkeys(opened.keys(), single)

    return _readable(path, single.name, names)


def _indexed(index: Path) -> dict[str, Path]:
    weight_map: dict[str, str] = json.loads(index.read_text())["weight_map"]
    return {name: index.parent / file for name, file in weight_map.items()}


def _readable(path: Path, file: str, read: Callable[[], ResultT]) -> ResultT:
    """Read a file of a checkpoint.

    Raises:
        CheckpointError: Whatever else the reading raised, which is its cause.
    """
    outcome = outcome_of(read)
    if outcome.error is not None:
        raise CheckpointError(
            f"checkpoint {str(path)!r} must have a {file} that transformers"
            f" {transformers.__version__} reads, got {type(outcome.error).__name__}:"
            f" {outcome.error}. Copy the checkpoint again, or update transformers."
        ) from outcome.error
    return cast("ResultT", outcome.value)
