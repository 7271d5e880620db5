"""What is kept of judged episodes: evidence and verdict, so that another judge can look at the same.

Invariants:

* one file an episode, `judged/WORKER/EPISODE.msgpack` in the run's folder, which appears by rename;
* a folder holds at most `max_bytes`: the oldest files go first, and one that is larger is not kept;
* a disk that refuses costs the file, never the episode.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections import OrderedDict
from collections.abc import Generator
from pathlib import Path

import msgspec

from webrl.errors import JudgeError
from webrl.judge.verdict import Evidence, Verdict

logger = logging.getLogger(__name__)

FOLDER = "judged"
"""Name of the folder in a run's."""
_SUFFIX = ".msgpack"


class JudgedEpisode(msgspec.Struct, frozen=True, kw_only=True):
    """One episode as the judge saw it, and what it found."""

    episode_id: str
    """Id of the episode in its run."""
    task: str
    """Full name of the task."""
    evidence: Evidence
    """All that the judge saw, screenshots included."""
    verdict: Verdict | None = None
    """What it found; None where it gave no verdict."""
    models: dict[str, str] = {}
    """Which model was asked, by kind of question."""
    format: int = 1
    """Version of this form."""


class JudgedFolder:
    """Keeps the judged episodes of one worker.

    Args:
        folder: Where; made with the first episode.
        max_bytes: Most that lies there; 0 keeps nothing.
    """

    def __init__(self, folder: Path, max_bytes: int) -> None:
        self._folder = folder
        self._max_bytes = max_bytes
        found = sorted(_files(folder), key=lambda path: path.stat().st_mtime)
        self._sizes = OrderedDict((path, path.stat().st_size) for path in found)
        self._num_bytes = sum(self._sizes.values())
        self._lock = asyncio.Lock()

    async def keep(self, episode: JudgedEpisode) -> None:
        """Keep an episode, and let go of the oldest ones where room is needed."""
        if not self._max_bytes:
            return
        async with self._lock:
            await asyncio.to_thread(self._keep, episode)

    def _keep(self, episode: JudgedEpisode) -> None:
        data = msgspec.msgpack.encode(episode)
        if len(data) > self._max_bytes:
            return
        name = re.sub(r"[^\w~.-]", "-", episode.episode_id)
        path = self._folder / f"{name}{_SUFFIX}"
        try:
            self._num_bytes -= self._sizes.pop(path, 0)
            while self._num_bytes + len(data) > self._max_bytes:
                oldest, size = self._sizes.popitem(last=False)
                self._num_bytes -= size
                oldest.unlink(missing_ok=True)
            self._folder.mkdir(parents=True, exist_ok=True)
            partial = path.with_suffix(".partial")
            partial.write_bytes(data)
            partial.replace(path)
        except OSError as error:
            logger.warning("no evidence of %s is kept: %s", episode.episode_id, error)
            return
        self._sizes[path] = len(data)
        self._num_bytes += len(data)


def read_judged(run_folder: Path) -> Generator[JudgedEpisode]:
    """Yield every episode that a run kept, by worker and name.

    Raises:
        JudgeError: A file is damaged, or of another version.
    """
    for path in _files(run_folder / FOLDER):
        try:
            yield msgspec.msgpack.decode(path.read_bytes(), type=JudgedEpisode)
        except (OSError, msgspec.DecodeError) as error:
            raise JudgeError(
                f"{path} must hold a judged episode, got something else: {error}. Remove it."
            ) from error


def _files(folder: Path) -> list[Path]:
    return sorted(folder.rglob(f"*{_SUFFIX}"))
