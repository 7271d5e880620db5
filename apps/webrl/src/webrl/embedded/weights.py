"""The server's weights by name: check an update as a whole, then apply it, or refuse it.

Invariants:

* Nothing is written before every name, shape and dtype of an update was found right, so a refused
  update leaves the weights as they were, bit for bit.
* Names are those of the checkpoint; a tied head is one weight that may be sent under either name.
* `apply` runs in the model thread, between two steps.
* A checkpoint folder that is half written, of another architecture, or not local is refused with the
  reason; its tensors are all in memory before the first one is applied. Only safetensors are read:
  nothing in a checkpoint is executed.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import torch
from safetensors import SafetensorError, safe_open

from webrl.errors import WeightUpdateError

_MAX_LISTED = 8
"""Problems that one message names; the rest are counted."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SentTensor:
    """What a sender says about one tensor."""

    name: str
    """Its name in the checkpoint."""
    shape: tuple[int, ...]
    """Its shape."""
    dtype: torch.dtype
    """Its dtype."""


def tensor_checksum(tensor: torch.Tensor) -> str:
    """Return a hexadecimal checksum of a tensor's dtype, shape and bytes.

    It is the trainer's (`awrl_trainer.tensor_checksum`), so that both sides of an update can be
    compared; written out here because that package takes longer to import than the model to load.
    """
    flat = tensor.detach().contiguous().cpu()
    digest = hashlib.blake2b(f"{flat.dtype} {list(flat.shape)}".encode(), digest_size=16)
    digest.update(flat.reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


class WeightTable:
    """All weights of a model, by checkpoint name."""

    def __init__(self, model: torch.nn.Module | Mapping[str, torch.Tensor]) -> None:
        """Refer to a model's tensors, or to the given ones by name; nothing is copied."""
        if isinstance(model, Mapping):
            self._tensors = dict(model)
            self._second_names = frozenset[str]()
            return
        self._tensors = {
            name: tensor.data for name, tensor in model.state_dict(keep_vars=True).items()
        }
        # Torch lists a tied parameter once, under the name that checkpoints have for it.
        own_names = {name for name, _ in (*model.named_parameters(), *model.named_buffers())}
        self._second_names = frozenset(self._tensors) - own_names

    @property
    def names(self) -> tuple[str, ...]:
        """Every name, tied ones included, sorted."""
        return tuple(sorted(self._tensors))

    def spec(self, name: str) -> SentTensor:
        """Return what the tensor `name` is."""
        tensor = self._tensors[name]
        return SentTensor(name=name, shape=tuple(tensor.shape), dtype=tensor.dtype)

    def aliases(self) -> list[tuple[str, ...]]:
        """Return the groups of names that share one tensor (tied weights)."""
        by_storage: dict[tuple[int, tuple[int, ...]], list[str]] = {}
        for name in self.names:
            tensor = self._tensors[name]
            by_storage.setdefault((tensor.data_ptr(), tuple(tensor.shape)), []).append(name)
        return [tuple(names) for names in by_storage.values() if len(names) > 1]

    def problems(self, specs: Sequence[SentTensor], *, any_float: bool = False) -> list[str]:
        """Return what is wrong with an update, one sentence per tensor; empty when it fits.

        Args:
            any_float: Whether another floating dtype is converted (checkpoints on disk).
        """
        problems: list[str] = []
        seen: set[str] = set()
        for spec in specs:
            if spec.name in seen:
                problems.append(f"{spec.name!r} must come once, got it twice")
            elif spec.name not in self._tensors:
                problems.append(f"{spec.name!r} must be a name of the model, got an unknown one")
            else:
                problems += self._mismatch(spec, any_float)
            seen.add(spec.name)
        return problems

    def _mismatch(self, spec: SentTensor, any_float: bool) -> list[str]:
        own = self.spec(spec.name)
        if own.shape != spec.shape:
            return [f"{spec.name!r} must have shape {list(own.shape)}, got {list(spec.shape)}"]
        converts = any_float and own.dtype.is_floating_point and spec.dtype.is_floating_point
        if own.dtype != spec.dtype and not converts:
            return [
                f"{spec.name!r} must have dtype {_dtype_name(own.dtype)}, "
                f"got {_dtype_name(spec.dtype)}"
            ]
        return []

    def missing(self, names: Iterable[str]) -> list[str]:
        """Return the model's names that `names` leaves out; one of a tied group is enough."""
        given = set(names)
        for group in self.aliases():
            if given.intersection(group):
                given.update(group)
        return [name for name in self.names if name not in given]

    def apply(self, tensors: Mapping[str, torch.Tensor]) -> None:
        """Copy `tensors` in.

        Raises:
            WeightUpdateError: One of them does not fit; nothing was copied.
        """
        specs = [
            SentTensor(name=name, shape=tuple(tensor.shape), dtype=tensor.dtype)
            for name, tensor in tensors.items()
        ]
        refuse(self.problems(specs, any_float=True))
        with torch.no_grad():
            for name, tensor in tensors.items():
                self._tensors[name].copy_(tensor)

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Return the shape of every tensor; a tied one under its checkpoint name only."""
        return {name: self.spec(name).shape for name in self._own_names()}

    def checksums(self, names: Sequence[str] | None = None) -> dict[str, str]:
        """Return the checksum of each named tensor; of all, tied ones once, when `None`.

        Raises:
            WeightUpdateError: A name that the model does not have.
        """
        wanted = self._own_names() if names is None else names
        refuse([f"{name!r} must be a name of the model" for name in wanted if name not in self])
        return {name: tensor_checksum(self._tensors[name]) for name in wanted}

    def __contains__(self, name: str) -> bool:
        return name in self._tensors

    def _own_names(self) -> list[str]:
        return [name for name in self.names if name not in self._second_names]


def refuse(problems: Sequence[str]) -> None:
    """Raise `WeightUpdateError` that lists `problems`; nothing happens when there are none."""
    if not problems:
        return
    listed = "; ".join(problems[:_MAX_LISTED])
    more = f"; and {len(problems) - _MAX_LISTED} more" if len(problems) > _MAX_LISTED else ""
    raise WeightUpdateError(f"{listed}{more}. The weights were left as they are.")


def _dtype_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


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
    tensors = read_tensors(folder)
    specs = [
        SentTensor(name=name, shape=tuple(tensor.shape), dtype=tensor.dtype)
        for name, tensor in tensors.items()
    ]
    problems = table.problems(specs, any_float=True)
    missing = table.missing(tensors)
    refuse([*problems, *(f"{name!r} must be in the checkpoint, got none" for name in missing)])
    return tensors


def read_tensors(folder: Path) -> dict[str, torch.Tensor]:
    """Return all tensors of a checkpoint directory by name, on the CPU.

    Raises:
        WeightUpdateError: It is half written or damaged.
    """
    tensors: dict[str, torch.Tensor] = {}
    for path, names in _files(folder).items():
        tensors.update(_read(path, names))
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
