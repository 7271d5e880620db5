"""Snapshots in the Hugging Face format on disk, never seen half-written.

Invariants:

* A snapshot is written under a hidden name, then renamed, then marked: `.save_complete` is the last
  file to appear, by rename. A directory without it is not a snapshot.
* Retention never removes the newest complete snapshot, and never an incomplete one that another
  process may be writing.
* Newest means the largest version, compared as a number.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Iterable
from pathlib import Path

from safetensors.torch import save_file
from torch import Tensor

from awrl_trainer.errors import CheckpointError

COMPLETE_MARK = ".save_complete"
"""Name of the file whose presence says that all others are whole."""

_NAME = re.compile(r"^[A-Za-z_]*?[_-]?(\d+)$")
_WEIGHT_FILES = re.compile(r"\.(safetensors|bin|pt|pth)$|\.safetensors\.index\.json$")


class SnapshotWriter:
    """Writes versions of a policy below one directory.

    Args:
        root: Directory of the snapshots; made when missing.
        base: Checkpoint that the policy came from: its config and tokenizer files are copied. None
            writes weights only.
        keep: Complete snapshots that stay; None or a negative number keeps all.
        shard_bytes: Largest safetensors file.

    Raises:
        ValueError: `keep` is 0, or `shard_bytes` below 1.
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
        if keep == 0 or shard_bytes < 1:
            raise ValueError(
                f"keep must be >= 1, negative or None, and shard_bytes >= 1, got {keep} and"
                f" {shard_bytes}. Keep at least the newest."
            )
        self.root = Path(root)
        self._base = None if base is None else Path(base)
        if self._base is not None and not self._base.is_dir():
            raise CheckpointError(
                f"base must be a directory, got {str(self._base)!r}. Give a local checkpoint."
            )
        self._keep = None if keep is None or keep < 0 else keep
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
        hidden = self.root / f".writing_{version}_{os.getpid()}"
        try:
            self.root.mkdir(parents=True, exist_ok=True)
            shutil.rmtree(hidden, ignore_errors=True)
            shutil.rmtree(target, ignore_errors=True)
            hidden.mkdir()
            self._copy_base(hidden)
            _write_shards(named_tensors, hidden, self._shard_bytes)
            hidden.rename(target)
            mark_complete(target)
        except OSError as error:
            shutil.rmtree(hidden, ignore_errors=True)
            raise CheckpointError(
                f"snapshot of version {version} must be writable below {str(self.root)!r}, got:"
                f" {error}. Free space or choose another directory."
            ) from error
        remove_old(self.root, self._keep)
        return target

    def _copy_base(self, hidden: Path) -> None:
        if self._base is None:
            return
        for path in sorted(self._base.iterdir()):
            if (
                path.is_file()
                and path.name != COMPLETE_MARK
                and not _WEIGHT_FILES.search(path.name)
            ):
                shutil.copy2(path, hidden / path.name)


def complete_checkpoints(root: Path | str) -> list[Path]:
    """Return all complete checkpoints below a directory, oldest first.

    Directory names end in a number, which orders them: `version_7`, `step_10000`, `125`.

    Args:
        root: The directory; a missing one holds none.
    """
    root = Path(root)
    if not root.is_dir():
        return []
    found = [(int(match[1]), path) for path in root.iterdir() if (match := _NAME.match(path.name))]
    return [path for _, path in sorted(found) if is_complete(path)]


def latest_complete_checkpoint(root: Path | str) -> Path | None:
    """Return the complete checkpoint with the largest number, None when there is none."""
    found = complete_checkpoints(root)
    return found[-1] if found else None


def is_complete(path: Path) -> bool:
    """Return whether a checkpoint carries the mark and every file that it lists."""
    try:
        sizes: dict[str, int] = json.loads((path / COMPLETE_MARK).read_text())["files"]
        return all((path / name).stat().st_size == size for name, size in sizes.items())
    except (OSError, ValueError, KeyError, TypeError):
        return False


def mark_complete(path: Path) -> None:
    """Write the mark of a finished checkpoint: the size of each of its files, by rename."""
    files = {
        str(entry.relative_to(path)): entry.stat().st_size
        for entry in sorted(path.rglob("*"))
        if entry.is_file()
    }
    draft = path / f"{COMPLETE_MARK}.draft"
    with draft.open("w") as stream:
        json.dump({"files": files}, stream)
        stream.flush()
        os.fsync(stream.fileno())
    draft.rename(path / COMPLETE_MARK)


def remove_old(root: Path, keep: int | None) -> None:
    """Remove all but the newest `keep` complete checkpoints; None keeps all."""
    if keep is None:
        return
    for path in complete_checkpoints(root)[:-keep]:
        # Without its mark it is no checkpoint any more, should the removal be cut short.
        (path / COMPLETE_MARK).unlink(missing_ok=True)
        shutil.rmtree(path, ignore_errors=True)


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
