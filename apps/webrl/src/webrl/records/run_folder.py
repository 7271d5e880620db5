"""What a run keeps on disk, where, and how it goes on after a stop.

Invariants:
    * a resume continues from a checkpoint that is whole: progress and task order are stored inside
      of the trainer's own checkpoint, so they can't be of another moment;
    * after a resume nothing is running: groups that were handed out and not trained on are handed
      out again, but for those that had ended (`webrl.run.kept_groups`);
    * one process at a time runs in a folder.
"""

from __future__ import annotations

import fcntl
import logging
import os
import secrets
import shutil
import socket
import zlib
from collections.abc import Generator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
from awrl_trainer import incomplete_checkpoints, latest_complete_checkpoint

from webrl.errors import PreflightError, RunFailedError
from webrl.rollout.task_stream import TaskStream, TaskStreamState
from webrl.training.step_loop import Progress

logger = logging.getLogger(__name__)

CONFIG_FILE = "config.toml"
"""Name of the resolved configuration within a run's folder."""


@dataclass(frozen=True, slots=True)
class RunFolders:
    """Where the parts of a run lie."""

    root: Path
    """Folder of the run."""

    def new_run_id(self) -> str:
        """Return an id of its own for this process: `webrl-FOLDER-NUMBER`, the folder's part the same in all."""
        return f"webrl-{zlib.crc32(str(self.root.resolve()).encode()):08x}-{secrets.token_hex(4)}"

    @property
    def state(self) -> Path:
        """Return the folder of the trainer's checkpoints (resume)."""
        return self.root / "checkpoints" / "trainer"

    @property
    def policies(self) -> Path:
        """Return the folder of policy snapshots (evaluation, use elsewhere)."""
        return self.root / "checkpoints" / "policy"

    @property
    def groups(self) -> Path:
        """Return the folder of finished groups that were not trained on yet (resume)."""
        return self.root / "checkpoints" / "groups"

    def newest_checkpoint(self) -> Path:
        """Return the newest complete checkpoint.

        Raises:
            RunFailedError: There is none.
        """
        path = latest_complete_checkpoint(self.state)
        lacks = [
            f"{path.name}: {lack}" for path, lack in incomplete_checkpoints(self.state).items()
        ]
        left_out = f" but incomplete ones ({', '.join(lacks)})" if lacks else ""
        if path is None:
            raise RunFailedError(
                f"--resume must find a complete checkpoint below {str(self.state)!r}, got none"
                f"{left_out}. The run ended before its first save: start a new one with --config "
                f"{self.config} run_dir=NEW."
            )
        if lacks:
            logger.warning("%s is the newest complete checkpoint; left out: %s", path, lacks)
        return path

    @property
    def published(self) -> Path:
        """Return the folder through which weights travel with `weight_update_mode = "disk"`."""
        return self.root / "published"

    @property
    def logs(self) -> Path:
        """Return the folder of the servers' logs."""
        return self.root / "logs"

    @property
    def sites(self) -> Path:
        """Return the file of what was seen of each site."""
        return self.root / "sites.json"

    @property
    def samples(self) -> Path:
        """Return the folder of sampled trajectories."""
        return self.root / "trajectories"

    def forget_later_weights(self, version: int) -> None:
        """Remove weights of versions that a run which goes on at `version` computes anew."""
        shutil.rmtree(self.published, ignore_errors=True)
        for folder in self.policies.glob("version_*"):
            number = folder.name.removeprefix("version_")
            if number.isdecimal() and int(number) > version:
                shutil.rmtree(folder, ignore_errors=True)

    @property
    def evaluations(self) -> Path:
        """Return the file of evaluation results."""
        return self.root / "evaluations.jsonl"

    @property
    def config(self) -> Path:
        """Return the file with the resolved configuration."""
        return self.root / CONFIG_FILE

    @property
    def log(self) -> Path:
        """Return the log of the controller."""
        return self.root / "run.log"

    @property
    def end(self) -> Path:
        """Return the file that a run writes when it has reached its end."""
        return self.root / "end.json"

    @contextmanager
    def locked(self) -> Generator[None]:
        """Make the folder, and keep every other process from running in it.

        Raises:
            PreflightError: It is in use, or can not be written.
        """
        try:
            self.root.mkdir(parents=True, exist_ok=True)
            lock = (self.root / ".lock").open("a+")
        except OSError as error:
            raise PreflightError(
                f"run_dir must be a folder that can be written, got {str(self.root)!r}: "
                f"{error.strerror}. Set run_dir to another one."
            ) from error
        with lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                lock.seek(0)
                raise PreflightError(
                    f"run_dir must not be in use, got {str(self.root)!r}, where {lock.read()} is "
                    "running. Wait for its end, or end it with Ctrl-C."
                ) from error
            lock.truncate(0)
            lock.write(f"process {os.getpid()} on {socket.gethostname()}")
            lock.flush()
            yield


class RunEnd(msgspec.Struct, frozen=True, kw_only=True):
    """Where a run has reached its end, its last evaluation included."""

    version: int
    """Published updates."""
    time_limit_s: float | None
    """The limit that it reached; None where it made all of its updates."""


def write_end(folders: RunFolders, end: RunEnd) -> None:
    """Note that the run has reached its end."""
    write_whole(folders.end, msgspec.json.encode(end))


def read_end(folders: RunFolders) -> RunEnd | None:
    """Return the end that the run has reached, None while it has not."""
    try:
        return msgspec.json.decode(folders.end.read_bytes(), type=RunEnd)
    except (OSError, msgspec.MsgspecError):
        return None


def write_whole(path: Path, data: bytes) -> None:
    """Write a file that appears whole, or stays as it was.

    Raises:
        PreflightError: The disk refuses it.
    """
    partial = path.with_name(f".{path.name}.partial")
    try:
        partial.write_bytes(data)
        partial.replace(path)
    except OSError as error:
        with suppress(OSError):  # it may be the very disk
            partial.unlink()
        raise PreflightError(
            f"{str(path)!r} must be writable, got: {error.strerror}. Free space, or set run_dir."
        ) from error


class RunState(msgspec.Struct, frozen=True, kw_only=True):
    """The controller's part of a checkpoint."""

    num_steps: int
    """See `Progress`."""
    num_trained_episodes: int
    """See `Progress`."""
    train_s: float
    """See `Progress`."""
    stream: TaskStreamState
    """The task order."""
    totals: dict[str, float] = {}
    """See `Progress`."""


def pack_state(progress: Progress, stream: TaskStream) -> dict[str, Any]:
    """Return the controller's state as JSON values."""
    return msgspec.to_builtins(
        RunState(
            num_steps=progress.num_steps,
            num_trained_episodes=progress.num_trained_episodes,
            train_s=progress.train_s,
            stream=stream.state(),
            totals=dict(progress.totals),
        )
    )


def unpack_state(values: dict[str, Any], version: int, stream: TaskStream) -> tuple[Progress, bool]:
    """Return progress at a checkpoint, and whether the task order could be continued.

    Args:
        values: What `pack_state` returned.
        version: The trainer's version in that checkpoint.
        stream: Restored in place.

    Raises:
        RunFailedError: They are not the state of a run.
    """
    try:
        state = msgspec.convert(values, RunState)
    except msgspec.ValidationError as error:
        raise RunFailedError(
            f"checkpoint must hold the state of a run, got: {error}. It is of another program or "
            "release: start a new run, with its policy as policy.path."
        ) from error
    is_same_data = stream.restore(state.stream)
    progress = Progress(
        version=version,
        num_steps=state.num_steps,
        num_trained_episodes=state.num_trained_episodes,
        train_s=state.train_s,
        totals=state.totals,
    )
    return progress, is_same_data
