from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from awrl_trainer import (
    CheckpointError,
    SnapshotWriter,
    latest_complete_checkpoint,
)
from awrl_trainer.folders import COMPLETE_MARK, complete_checkpoints
from safetensors.torch import load_file

WEIGHTS = {"a": torch.arange(6.0).view(2, 3), "b": torch.ones(4)}


def write(root: Path, version: int, *, keep: int | None = None) -> Path:
    return SnapshotWriter(root, keep=keep).write(WEIGHTS.items(), version)


@pytest.mark.requirement("disk-hot-load")
def test_only_a_whole_and_marked_directory_is_picked(tmp_path: Path) -> None:
    whole = write(tmp_path, 1)
    unmarked = write(tmp_path, 2)
    (unmarked / COMPLETE_MARK).unlink()
    missing_shard = write(tmp_path, 3)
    (missing_shard / "model.safetensors").unlink()
    empty_mark = write(tmp_path, 4)
    (empty_mark / COMPLETE_MARK).write_text("")
    assert latest_complete_checkpoint(tmp_path) == whole


def test_a_writer_that_crashes_between_weights_leaves_the_previous_one(
    tmp_path: Path,
) -> None:
    def crashing() -> Iterator[tuple[str, torch.Tensor]]:
        yield "a", WEIGHTS["a"]
        raise KeyboardInterrupt

    previous = write(tmp_path, 1)
    with pytest.raises(KeyboardInterrupt):
        SnapshotWriter(tmp_path).write(crashing(), 2)
    assert latest_complete_checkpoint(tmp_path) == previous
    assert [path.name for path in tmp_path.iterdir()] == ["version_1"]


def test_a_disk_that_refuses_is_a_named_error_and_keeps_the_previous_one(tmp_path: Path) -> None:
    def full() -> Iterator[tuple[str, torch.Tensor]]:
        yield "a", WEIGHTS["a"]
        raise OSError(28, "No space left on device")

    previous = write(tmp_path, 1)
    with pytest.raises(CheckpointError, match="snapshot of version 2 must be writable"):
        SnapshotWriter(tmp_path).write(full(), 2)
    assert complete_checkpoints(tmp_path) == [previous]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["version_1"]


def test_snapshots_are_split_indexed_and_carry_the_base_files(tmp_path: Path) -> None:
    base = tmp_path / "base"
    base.mkdir()
    (base / "config.json").write_text("{}")
    (base / "model.safetensors").write_text("other weights")
    for name in ("additional_chat_templates/tools.jinja", "original/model.pth", ".git/config"):
        (base / name).parent.mkdir()
        (base / name).write_text(name)
    (base / "original" / "params.json").symlink_to(base / "config.json")
    publisher = SnapshotWriter(tmp_path / "out", base=base, shard_bytes=30)
    path = publisher.write(WEIGHTS.items(), 1)
    names = sorted(str(file.relative_to(path)) for file in path.rglob("*") if file.is_file())
    assert names == [
        COMPLETE_MARK,
        "additional_chat_templates/tools.jinja",
        "config.json",
        "model-00001-of-00002.safetensors",
        "model-00002-of-00002.safetensors",
        "model.safetensors.index.json",
        "original/params.json",
    ]
    assert torch.equal(load_file(path / names[3])["a"], WEIGHTS["a"])
    (path / "additional_chat_templates" / "tools.jinja").unlink()
    assert complete_checkpoints(tmp_path / "out") == []


def test_snapshots_below_their_own_base_do_not_hold_each_other(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    writer = SnapshotWriter(tmp_path / "runs" / "policies", base=tmp_path)
    for version in (1, 2):
        path = writer.write(WEIGHTS.items(), version)
    assert sorted(entry.name for entry in path.iterdir()) == [
        COMPLETE_MARK,
        "config.json",
        "model.safetensors",
    ]


def test_a_base_that_is_not_there_and_keeping_none_are_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="base must be a directory"):
        SnapshotWriter(tmp_path, base=tmp_path / "none")
    with pytest.raises(ValueError, match="keep must be a whole number >= 1"):
        SnapshotWriter(tmp_path, keep=0)
