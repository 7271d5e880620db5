"""`KeptGroups`: finished groups on disk, so that a resume trains on them in place of running them again.

Every group that was accepted is written beside the checkpoints, one file each with its screenshots,
and stays there until no resume can use it. A resume at version v takes those whose every token is of
v or an earlier version, and which were neither trained on nor dropped as of that checkpoint; all
others are handed out again, so no task is lost and none is trained on twice.

Invariants:
    * a file appears whole or not at all; one that is missing or damaged costs its group a new run;
    * a group that is taken holds budget and bound as any other, and its screenshots are leased to its
      episodes in the store of this run, or not at all;
    * the step loop waits for nothing here: `keep_writing` reads and writes beside it.

`keep_writing` consumes accepted groups, produces files, waits for the next group; unblocked by `keep`
and `close`.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import msgspec
import numpy as np
from awrl_pixelstore import (
    InvalidImage,
    PixelNotFound,
    PixelStoreError,
    PixelStoreFull,
    PixelStoreUnavailable,
)
from awrl_rollout import EpisodeRecord, EpisodeRequest, RolloutController

from webrl.errors import PreflightError
from webrl.records.run_folder import write_whole
from webrl.rollout.task_stream import TaskStream
from webrl.rollout.trajectory import EpisodeTask, Trajectory
from webrl.training.step_loop import Progress

logger = logging.getLogger(__name__)

SUFFIX = ".group"

DIGEST_BYTES = 16
"""A file begins with the digest of the rest."""


class ScreenshotStore(Protocol):
    """What is asked of the PixelStore."""

    async def get_many_async(self, keys: Sequence[str]) -> Sequence[bytes | np.ndarray]:
        """Return screenshots by key."""
        ...

    async def put_many_async(self, images: Sequence[bytes], *, trajectory_id: str) -> list[str]:
        """Store screenshots for an episode and return their keys."""
        ...

    async def release_async(self, *trajectory_ids: str) -> object:
        """Give up what these episodes hold."""
        ...


class KeptGroup(msgspec.Struct, frozen=True, kw_only=True):
    """What a file holds."""

    group_size: int
    """Members that were asked for."""
    num_steps: int
    """Updates that the run had made when the group was complete."""
    records: list[EpisodeRecord]
    """Members that ended well, with their trajectories."""
    images: dict[str, bytes]
    """Screenshots by the keys of the store that they were in."""

    @property
    def group_id(self) -> str:
        """Return the group's name."""
        return self.records[0].group_id

    @property
    def newest_version(self) -> int:
        """Return the newest version among the sampled tokens."""
        return max(trajectory_of(record).newest_version for record in self.records)


@dataclass(frozen=True, slots=True)
class _Waiting:
    """A group that is to be written."""

    records: Sequence[EpisodeRecord]
    num_steps: int


class KeptGroups:
    """The files of one run's finished groups. It is a `GroupStream`: `finish` ends a group.

    Args:
        folder: Where they lie; made when it is needed.
        stream: The task order.
        screenshots: The PixelStore of this run.
        in_thread: Calls a function that reads or writes a file.
    """

    def __init__(
        self,
        folder: Path,
        stream: TaskStream,
        screenshots: ScreenshotStore,
        in_thread: Callable[..., Awaitable[Any]] = asyncio.to_thread,
    ) -> None:
        self._folder = folder
        self._stream = stream
        self._screenshots = screenshots
        self._in_thread = in_thread
        self._progress = Progress()
        self._saved_version = 0
        self._newest: dict[str, int] = {}
        """Newest version of each group that is ready, by group id."""
        self._over: set[str] = set()
        """Over since the newest save, of use to a resume there."""
        self._over_before: set[str] = set()
        """Over between the save before and the newest one, which may not be complete yet."""
        self._waiting: dict[str, _Waiting] = {}
        self._has_work = asyncio.Event()
        self._is_closed = False

    # -- while a run goes on

    def next_group(self) -> list[EpisodeRequest]:
        """Return the requests of the next group."""
        return self._stream.next_group()

    def keep(self, records: Sequence[EpisodeRecord]) -> None:
        """Have an accepted group written."""
        group_id = records[0].group_id
        self._newest[group_id] = max(trajectory_of(record).newest_version for record in records)
        self._waiting[group_id] = _Waiting(records, self._progress.num_steps)
        self._has_work.set()

    def finish(self, group_id: str) -> None:
        """Note that a group was consumed or dropped; its file stays while a resume could use it."""
        self._stream.finish(group_id)
        newest = self._newest.pop(group_id, None)
        if newest is None:
            return
        if newest > self._saved_version:
            self._remove(group_id)
        else:
            self._over.add(group_id)

    def note_save(self, version: int) -> None:
        """Note that a checkpoint of this version is being made of the task order as it is now.

        What was over before the checkpoint that precedes it is of no use any more.
        """
        if version == self._saved_version:
            return
        self._saved_version = version
        for group_id in self._over_before:
            self._remove(group_id)
        self._over_before, self._over = self._over, set()

    async def keep_writing(self) -> None:
        """Write one group after the other, until `close` and the last one."""
        while True:
            while self._waiting:
                group_id = next(iter(self._waiting))
                await self._write(group_id, self._waiting.pop(group_id))
            if self._is_closed:
                return
            await self._has_work.wait()
            self._has_work.clear()

    def close(self) -> None:
        """Let `keep_writing` end, once it has written what waits."""
        self._is_closed = True
        self._has_work.set()

    async def _write(self, group_id: str, waiting: _Waiting) -> None:
        keys = [key for record in waiting.records for key in trajectory_of(record).image_keys]
        keys = list(dict.fromkeys(keys))
        try:
            images = await self._screenshots.get_many_async(keys)
            kept = KeptGroup(
                group_size=len(self._stream.group(int(group_id))),
                num_steps=waiting.num_steps,
                records=list(waiting.records),
                images={key: bytes(image) for key, image in zip(keys, images, strict=True)},
            )
            await self._in_thread(_write_file, self._path(group_id), kept)
        except PixelNotFound:
            logger.info("group %s is not kept: it was trained on meanwhile", group_id)
        except PixelStoreUnavailable as error:
            logger.warning("%d groups are not kept: %s", 1 + len(self._waiting), error)
            self._waiting.clear()
        except (PixelStoreError, PreflightError) as error:
            logger.warning("group %s is not kept: %s", group_id, error)
        if not (group_id in self._newest or group_id in self._over | self._over_before):
            self._remove(group_id)

    # -- when a run goes on

    async def restore(
        self,
        progress: Progress,
        controller: RolloutController,
        count: Callable[[int], None] = lambda num_episodes: None,
    ) -> int:
        """Give the controller what it may train on; the files of all other groups are removed.

        Args:
            progress: Where the run goes on, with the task order restored; shared with its trainer.
            controller: Not entered yet.
            count: Told of episodes that ended after that moment, which its totals lack.

        Returns:
            How many episodes need not run again.

        Raises:
            PixelStoreUnavailable: The store of this run does not answer.
        """
        self._progress, self._saved_version = progress, progress.version
        num_restored = 0
        for path in sorted(self._folder.glob("*"), key=lambda path: (len(path.name), path.name)):
            kept: KeptGroup | None = await self._in_thread(_read_file, path)
            if kept is None or not await self._hand_over(kept, controller):
                with suppress(OSError):
                    path.unlink()
                continue
            self._newest[kept.group_id] = kept.newest_version
            num_restored += len(kept.records)
            if kept.num_steps >= progress.num_steps:
                count(len(kept.records))
        return num_restored

    async def _hand_over(self, kept: KeptGroup, controller: RolloutController) -> bool:
        index, records = int(kept.group_id), list[EpisodeRecord]()
        if kept.newest_version > self._progress.version or not self._stream.is_due(index):
            return False
        requests = self._stream.group(index)
        if kept.group_size != len(requests) or not _are_of(kept.records, requests):
            return False
        try:
            for record in kept.records:
                trajectory = trajectory_of(record)
                old = trajectory.image_keys
                keys = await self._screenshots.put_many_async(
                    [kept.images[key] for key in old], trajectory_id=record.episode_id
                )
                moved = _with_keys(trajectory, dict(zip(old, keys, strict=True)))
                records.append(msgspec.structs.replace(record, payload=moved))
            if controller.restore(requests, records):
                self._stream.hold(index)
                return True
        except (PixelStoreFull, InvalidImage) as error:
            logger.warning("group %s runs again: %s", kept.group_id, error)
        await self._screenshots.release_async(*(record.episode_id for record in kept.records))
        return False

    def _path(self, group_id: str) -> Path:
        return self._folder / f"{group_id}{SUFFIX}"

    def _remove(self, group_id: str) -> None:
        self._waiting.pop(group_id, None)
        with suppress(OSError):
            self._path(group_id).unlink()


def trajectory_of(record: EpisodeRecord) -> Trajectory:
    """Return what a record of this app carries."""
    assert isinstance(record.payload, Trajectory)
    return record.payload


def _are_of(records: Iterable[EpisodeRecord], requests: Sequence[EpisodeRequest]) -> bool:
    """Return whether these are episodes of the group that the task order has at this place."""
    asked = {request.member: request.payload for request in requests}
    for record in records:
        task, done = asked.get(record.member), trajectory_of(record)
        if not isinstance(task, EpisodeTask) or (task.task, task.seed) != (done.task, done.seed):
            return False
    return True


def _with_keys(trajectory: Trajectory, keys: dict[str, str]) -> Trajectory:
    replace = msgspec.structs.replace
    return replace(
        trajectory,
        steps=[
            replace(step, images=[replace(image, key=keys[image.key]) for image in step.images])
            for step in trajectory.steps
        ],
    )


def _write_file(path: Path, kept: KeptGroup) -> None:
    """Write a file that appears whole.

    Raises:
        PreflightError: The disk refuses it.
    """
    body = msgspec.msgpack.encode(kept)
    with suppress(OSError):  # a folder that can't be made is told of by the write
        path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, hashlib.blake2b(body, digest_size=DIGEST_BYTES).digest() + body)


def _read_file(path: Path) -> KeptGroup | None:
    """Return what a file holds; None for one that can't be read, is damaged or is no group's."""
    if path.suffix != SUFFIX:
        return None  # what a write left that was cut short
    try:
        data = path.read_bytes()
        digest, body = data[:DIGEST_BYTES], data[DIGEST_BYTES:]
        if hashlib.blake2b(body, digest_size=DIGEST_BYTES).digest() != digest:
            raise ValueError("its bytes are not those that were written")
        kept = msgspec.msgpack.decode(body, type=KeptGroup)
        records = [
            msgspec.structs.replace(record, payload=msgspec.convert(record.payload, Trajectory))
            for record in kept.records
        ]
        kept = msgspec.structs.replace(kept, records=records)
        if path.name != f"{int(kept.group_id)}{SUFFIX}":
            raise ValueError(f"it holds group {kept.group_id}")
        if lost := {key for item in records for key in trajectory_of(item).image_keys} - {
            *kept.images
        }:
            raise ValueError(f"{len(lost)} screenshots are not in it")
    except (OSError, ValueError, IndexError, msgspec.MsgspecError) as error:
        logger.warning("%s is no finished group, its tasks run again: %s", path, error)
        return None
    return kept
