"""Snapshots in the Hugging Face format on disk, never seen half-written (`awrl_trainer.folders`)."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterable
from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor

from awrl_trainer.errors import CheckpointError
from awrl_trainer.folders import COMPLETE_MARK, check_keep, is_complete, new_folder, remove_old

_WEIGHT_FILES = re.compile(r"\.(safetensors|bin|pt|pth)$|\.safetensors\.index\.json$")


class SnapshotWriter:
    """Writes versions of a policy below one directory.

    Args:
        root: Directory of the snapshots; made when missing.
        base: Checkpoint that the policy came from: its config and tokenizer files are copied. None
            writes weights only.
        keep: Complete snapshots that stay beside the written one; None or a negative number keeps
            all.
        shard_bytes: Largest safetensors file.

    Raises:
        ValueError: `keep` is 0 or not a whole number, or `shard_bytes` below 1.
        CheckpointError: `base` is not a directory.
    """

    def __init__(
        self,
        root: Path | str,
        *,
        base: Path | str | None = None,
        keep: int | None = 3,
        shard_bytes: int = 4 * 2**30,
    ) -> None:
        check_keep(keep)
        if shard_bytes < 1:
            raise ValueError(f"shard_bytes must be >= 1, got {shard_bytes}. Give a size in bytes.")
        self.root = Path(root)
        self._base = None if base is None else Path(base)
        if self._base is not None and not self._base.is_dir():
            raise CheckpointError(
                f"base must be a directory, got {str(self._base)!r}. Give a local checkpoint."
            )
        self._keep = keep
        self._shard_bytes = shard_bytes

    def write(self, named_tensors: Iterable[tuple[str, Tensor]], version: int) -> Path:
        """Write a snapshot and return its directory; an existing complete one is left alone.

        Args:
            named_tensors: Names and whole tensors; consumed one at a time.

        Raises:
            CheckpointError: The disk refused a write; the previous snapshots are whole.
        """
        target = self.root / f"version_{version}"
        if is_complete(target):
            return target
        try:
            with new_folder(target) as hidden:
                self._copy_base(hidden)
                _write_shards(named_tensors, hidden, self._shard_bytes)
            remove_old(target, self._keep)
        except (OSError, SafetensorError) as error:
            raise CheckpointError(
                f"snapshot of version {version} must be writable below {str(self.root)!r}, got:"
                f" {error}. Free space or choose another directory."
            ) from error
        return target

    def _copy_base(self, hidden: Path) -> None:
        """Copy all that is no weight, folders too; neither hidden folders nor the snapshots' own."""
        if self._base is None:
            return
        root = self.root.resolve()

        def left_out(folder: str, names: list[str]) -> list[str]:
            return [name for name in names if _is_left_out(Path(folder, name), root)]

        shutil.copytree(self._base, hidden, ignore=left_out, dirs_exist_ok=True)


def _is_left_out(path: Path, root: Path) -> bool:
    if path.is_dir():
        return path.name.startswith(".") or root.is_relative_to(path.resolve())
    is_weight = _WEIGHT_FILES.search(path.name) is not None
    return is_weight or path.name == COMPLETE_MARK or not path.is_file()


def _write_shards(
    named_tensors: Iterable[tuple[str, Tensor]], directory: Path, shard_bytes: int
) -> None:
    """Write tensors to files of bounded size, with an index when there are several."""
    shards: list[list[str]] = []
    pending: dict[str, Tensor] = {}
    size = total = 0

    def flush() -> None:
        if pending:
            save_file(pending, directory / f"shard-{len(shards)}.tmp", metadata={"format": "pt"})
            shards.append(list(pending))
            pending.clear()

    for name, tensor in named_tensors:
        copied = tensor.detach().cpu().contiguous()
        num_bytes = copied.numel() * copied.element_size()
        if size + num_bytes > shard_bytes:
            flush()
            size = 0
        # A copy of its own: safetensors refuses tensors that share memory.
        pending[name] = copied.clone() if copied.data_ptr() == tensor.data_ptr() else copied
        size += num_bytes
        total += num_bytes
    flush()
    weight_map: dict[str, str] = {}
    for index, names in enumerate(shards):
        file_name = "model.safetensors"
        if len(shards) > 1:
            file_name = f"model-{index + 1:05d}-of-{len(shards):05d}.safetensors"
        (directory / f"shard-{index}.tmp").rename(directory / file_name)
        weight_map |= dict.fromkeys(names, file_name)
    if len(shards) > 1:
        index_text = json.dumps({"metadata": {"total_size": total}, "weight_map": weight_map})
        (directory / "model.safetensors.index.json").write_text(index_text)
