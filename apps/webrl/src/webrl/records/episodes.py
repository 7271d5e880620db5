"""What is kept of episodes: `episodes.jsonl`, `batches.jsonl`, and a sample of them as a whole.

Invariants:
    * one line of `episodes.jsonl` per group that ended, rejected ones included, in the order of
      their completion;
    * one line of `batches.jsonl` per update, and no episode in two of them, restarts included;
    * times are seconds since the epoch, as in `metrics.jsonl`;
    * a line is written whole, and so is the folder of a sampled trajectory, which appears by rename.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from awrl_rollout import EpisodeRecord
from awrl_trainer import TrainRow

from webrl.records.lines import LineFile
from webrl.rollout.trajectory import Trajectory, trajectory_dict

_DIGITS = 4
"""Digits of a second that are kept."""

_SUFFIXES = {b"\x89PNG": ".png", b"\xff\xd8\xff\xe0": ".jpg", b"RIFF": ".webp"}


class EpisodeLog(LineFile):
    """Appends groups to a file."""

    def note(self, records: Sequence[EpisodeRecord]) -> None:
        """Write one group.

        Args:
            records: Its members that ended well.
        """
        members = [_member(record, record.payload) for record in records]
        group_id = records[0].group_id if records else ""
        self.append({"group_id": group_id, "members": members})


class BatchLog(LineFile):
    """Appends what each update was computed from."""

    def note(self, rows: Mapping[str, Sequence[TrainRow]], *, step: int, version: int) -> None:
        """Write one update.

        Args:
            rows: What it was computed from, by episode id.
            step: Its number, from 1.
            version: Weight version that it started from.
        """
        off_policyness = {
            episode_id: version - min(_sampled_at(row, version) for row in own)
            for episode_id, own in rows.items()
        }
        self.append({"step": step, "version": version, "off_policyness": off_policyness})


def _sampled_at(row: TrainRow, version: int) -> int:
    """Return the oldest version among a row's trainable tokens, at most `version`."""
    assert row.versions is not None
    return int(row.versions[row.loss_mask].min(initial=version))


def _member(record: EpisodeRecord, trajectory: object) -> dict[str, object]:
    assert isinstance(trajectory, Trajectory)
    return {
        "episode_id": record.episode_id,
        "task": trajectory.task,
        "seed": trajectory.seed,
        "outcome": trajectory.outcome,
        "ending": trajectory.ending,
        "worker": record.worker,
        "slot": record.slot,
        "started_s": round(record.started_s, _DIGITS),
        "ended_s": round(record.ended_s, _DIGITS),
        "oldest_version": record.oldest_version,
        "reset_s": round(trajectory.reset_s, _DIGITS),
        "generate_s": [round(step.generate_s, _DIGITS) for step in trajectory.steps],
        "environment_s": [round(step.environment_s, _DIGITS) for step in trajectory.steps],
    }


def image_suffix(data: bytes) -> str:
    """Return the file suffix of encoded image bytes."""
    return _SUFFIXES.get(data[:4], ".jpg")


def write_sample(
    root: Path,
    episode_id: str,
    trajectory: Trajectory,
    images: Mapping[str, bytes],
    extra: Mapping[str, Any],
    decode: Callable[[Sequence[int]], str] | None = None,
) -> Path:
    """Write one trajectory and its screenshots under `root`.

    Args:
        root: Folder of the samples.
        episode_id: Names the folder; slashes become dashes.
        images: Encoded bytes by key; a key without bytes is left out of the folder.
        extra: Further JSON fields, such as the advantage and the version that trained it.
        decode: Makes the texts that stand beside the token ids of each step; none when None.

    Returns:
        The folder that was written.
    """
    folder = root / episode_id.replace("/", "-")
    partial = folder.with_name(folder.name + ".partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    names: dict[str, str] = {}
    for index, key in enumerate(trajectory.image_keys):
        if key in images:
            names[key] = f"screen-{index:02d}{image_suffix(images[key])}"
            (partial / names[key]).write_bytes(images[key])
    record: dict[str, Any] = {**extra, "episode_id": episode_id, "files": names}
    record |= trajectory_dict(trajectory)
    if decode is not None:
        for step in record["steps"]:
            step["prompt"], step["output"] = decode(step["prompt_ids"]), decode(step["output_ids"])
    (partial / "trajectory.json").write_text(json.dumps(record, indent=1))
    shutil.rmtree(folder, ignore_errors=True)
    partial.rename(folder)
    return folder
