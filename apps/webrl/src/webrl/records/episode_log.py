"""``episodes.jsonl`` and ``batches.jsonl``: what every group cost, and what was trained on.

Invariants:
    * one line of ``episodes.jsonl`` per group that ended, rejected ones included, in the order of
      their completion;
    * one line of ``batches.jsonl`` per update, and no episode in two of them, restarts included;
    * a line is written whole.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from awrl_rollout import EpisodeRecord
from awrl_trainer import TrainRow

from webrl.records.metrics import drop_later_lines
from webrl.rollout.trajectory import Trajectory

__all__ = ["BatchLog", "EpisodeLog"]

_DIGITS = 4
"""Digits of a second that are kept."""


class EpisodeLog:
    """Appends groups to a file."""

    def __init__(self, path: Path) -> None:
        """Open the file for appending.

        Args:
            path: The file.
        """
        self._file = path.open("a", encoding="utf-8")

    def note(self, records: Sequence[EpisodeRecord]) -> None:
        """Write one group.

        Args:
            records: Its members that ended well.
        """
        members = [_member(record, record.payload) for record in records]
        group_id = records[0].group_id if records else ""
        self._file.write(json.dumps({"group_id": group_id, "members": members}) + "\n")
        self._file.flush()

    def close(self) -> None:
        """Close the file."""
        self._file.close()


class BatchLog:
    """Appends what each update was computed from."""

    def __init__(self, path: Path) -> None:
        """Open the file for appending.

        Args:
            path: The file.
        """
        self._path = path
        self._file = path.open("a", encoding="utf-8")

    def note(self, rows: Sequence[TrainRow], *, step: int, version: int) -> None:
        """Write one update.

        Args:
            rows: What it was computed from.
            step: Its number, from 1.
            version: Weight version that it started from.
        """
        oldest: dict[str, int] = {}
        for row in rows:
            assert row.versions is not None
            episode_id = row.row_id.partition("#")[0]
            sampled_at = int(row.versions[row.loss_mask].min(initial=version))
            oldest[episode_id] = min(sampled_at, oldest.get(episode_id, version))
        off_policyness = {episode_id: version - at for episode_id, at in oldest.items()}
        line = {"step": step, "version": version, "off_policyness": off_policyness}
        self._file.write(json.dumps(line) + "\n")
        self._file.flush()

    def rewind(self, step: int) -> None:
        """Forget every update after this step."""
        drop_later_lines(self._path, step)

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def _member(record: EpisodeRecord, trajectory: object) -> dict[str, object]:
    assert isinstance(trajectory, Trajectory)
    return {
        "episode_id": record.episode_id,
        "task": trajectory.task,
        "seed": trajectory.seed,
        "outcome": trajectory.outcome,
        "worker": record.worker,
        "started_s": round(record.started_s, _DIGITS),
        "ended_s": round(record.ended_s, _DIGITS),
        "oldest_version": record.oldest_version,
        "reset_s": round(trajectory.reset_s, _DIGITS),
        "generate_s": [round(step.generate_s, _DIGITS) for step in trajectory.steps],
        "environment_s": [round(step.environment_s, _DIGITS) for step in trajectory.steps],
    }
