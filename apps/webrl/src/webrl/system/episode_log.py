"""``episodes.jsonl``: what every complete group cost, for the simulator and for reports.

Invariant: one line per group that ended, rejected ones included, in the order of their completion; a
line is written whole.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from awrl_rollout import EpisodeRecord

from webrl.system.trajectory import Trajectory

__all__ = ["EpisodeLog"]

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


def _member(record: EpisodeRecord, trajectory: object) -> dict[str, object]:
    assert isinstance(trajectory, Trajectory)
    return {
        "episode_id": record.episode_id,
        "task": trajectory.task,
        "outcome": trajectory.outcome,
        "worker": record.worker,
        "started_s": round(record.started_s, _DIGITS),
        "ended_s": round(record.ended_s, _DIGITS),
        "oldest_version": record.oldest_version,
        "reset_s": round(trajectory.reset_s, _DIGITS),
        "generate_s": [round(step.generate_s, _DIGITS) for step in trajectory.steps],
        "environment_s": [round(step.environment_s, _DIGITS) for step in trajectory.steps],
    }
