"""A sample of the run's trajectories on disk, with their screenshots.

Invariant: a trajectory's folder appears by rename, whole or not at all.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from webrl.rollout.trajectory import Trajectory, trajectory_dict

_SUFFIXES = {b"\x89PNG": ".png", b"\xff\xd8\xff\xe0": ".jpg", b"RIFF": ".webp"}


def image_suffix(data: bytes) -> str:
    """Return the file suffix of encoded image bytes."""
    return _SUFFIXES.get(data[:4], ".jpg")


def write_sample(
    root: Path,
    episode_id: str,
    trajectory: Trajectory,
    images: Mapping[str, bytes],
    extra: Mapping[str, Any],
) -> Path:
    """Write one trajectory and its screenshots under ``root``.

    Args:
        root: Folder of the samples.
        episode_id: Names the folder; slashes become dashes.
        trajectory: The episode.
        images: Encoded bytes by key; a key without bytes is left out of the folder.
        extra: Further JSON fields, such as the advantage and the version that trained it.

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
    record = {**extra, "episode_id": episode_id, "files": names, **trajectory_dict(trajectory)}
    (partial / "trajectory.json").write_text(json.dumps(record, indent=1))
    shutil.rmtree(folder, ignore_errors=True)
    partial.rename(folder)
    return folder
