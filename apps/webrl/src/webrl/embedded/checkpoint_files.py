"""Read a checkpoint folder from disk, whole and checked, before anything is applied.

Invariants:

* A folder that is half written, of another architecture, or not local is refused with the reason;
  its tensors are all in memory before the first one is applied.
* Reads only safetensors: nothing in a checkpoint is executed.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, cast

import torch
from safetensors import SafetensorError, safe_open

from webrl.embedded.weights import TensorSpec, WeightTable, refuse
from webrl.errors import WeightUpdateError

__all__ = ["read_checkpoint"]

_INDEX = "model.safetensors.index.json"
_SINGLE = "model.safetensors"


def read_checkpoint(
    model_path: str, table: WeightTable, *, model_type: str
) -> dict[str, torch.Tensor]:
    """Return all tensors of the checkpoint, on the CPU, after checking that they fit `table`.

    Raises:
        WeightUpdateError: Not a local folder, half written, another model type, or tensors that
            do not fit the model.
    """
    folder = Path(model_path)
    if not folder.is_absolute() or not folder.is_dir():
        raise WeightUpdateError(
            f"model_path must be an absolute local folder, got {model_path!r}. "
            "Hub ids are refused: download first and give the local path."
        )
    _check_model_type(folder, model_type)
    tensors: dict[str, torch.Tensor] = {}
    for path, names in _files(folder).items():
        tensors.update(_read(path, names))
    specs = [
        TensorSpec(name=name, shape=tuple(tensor.shape), dtype=tensor.dtype)
        for name, tensor in tensors.items()
    ]
    problems = table.problems(specs, any_float=True)
    missing = table.missing(tensors)
    refuse([*problems, *(f"{name!r} must be in the checkpoint, got none" for name in missing)])
    return tensors


def _check_model_type(folder: Path, model_type: str) -> None:
    found = _read_json(folder / "config.json").get("model_type")
    if found != model_type:
        raise WeightUpdateError(
            f"model_type of {str(folder)!r} must be {model_type!r}, got {found!r}. "
            "The server keeps one architecture: start another server for another model."
        )


def _files(folder: Path) -> dict[Path, set[str] | None]:
    """Return the shards, each with the names that the index expects in it (`None`: any)."""
    if (folder / _INDEX).is_file():
        weight_map = cast("dict[str, str]", _read_json(folder / _INDEX).get("weight_map", {}))
        files: dict[Path, set[str] | None] = {}
        for name, file in weight_map.items():
            names = files.setdefault(folder / file, set())
            assert names is not None
            names.add(name)
        return files
    return {folder / _SINGLE: None}


def _read(path: Path, names: set[str] | None) -> dict[str, torch.Tensor]:
    if not path.is_file():
        raise WeightUpdateError(
            f"checkpoint must hold {path.name!r}, got no such file in {str(path.parent)!r}. "
            "It is half written: wait for its completion mark."
        )
    try:
        with safe_open(path, framework="pt") as file:
            found = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (SafetensorError, OSError) as error:
        raise WeightUpdateError(
            f"{str(path)!r} must be a whole safetensors file, got: {error}. "
            "It is half written or damaged."
        ) from error
    absent = sorted((names or set()) - set(found))
    if absent:
        raise WeightUpdateError(
            f"{path.name!r} must hold what its index names, got no {absent[0]!r} "
            f"({len(absent)} absent). The checkpoint is half written."
        )
    return found


def _read_json(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise WeightUpdateError(
            f"{path.name!r} must be readable JSON in {str(path.parent)!r}, got: {error}. "
            "The checkpoint is half written or damaged."
        ) from error
    if not isinstance(content, dict):
        raise WeightUpdateError(f"{path.name!r} must be a JSON object. The checkpoint is damaged.")
    return cast("dict[str, Any]", content)
