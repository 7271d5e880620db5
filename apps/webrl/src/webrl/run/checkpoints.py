"""`Recorder`: what a run writes while it goes on.

Checkpoints, policy snapshots, sampled trajectories, and the logs of episodes and batches.

Invariants: nothing here runs inside of the weight-update window; each version is saved once; what is
written is one moment's, and training goes on while it is.
"""

from __future__ import annotations

import logging
import shutil
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from awrl_pixelstore import PixelNotFound, PixelStoreClient, PixelStoreError
from awrl_rollout import EpisodeRecord
from awrl_trainer import CheckpointError, TrainRow

from webrl.errors import EngineCallError, RunFailedError
from webrl.records.episodes import BatchLog, EpisodeLog, write_sample
from webrl.records.lines import LineFile
from webrl.records.run_folder import RunFolders, pack_state, unpack_state
from webrl.rollout.task_stream import TaskStream
from webrl.run.kept_groups import KeptGroups
from webrl.training.ranks import TrainerRanks
from webrl.training.rows import GroupMember, PreparedBatch
from webrl.training.step_loop import Progress

logger = logging.getLogger(__name__)


class Recorder:
    """Writes one run's files, and reads them when it goes on.

    Args:
        folders: Where they lie.
        stream: Task order, part of each checkpoint.
        ranks: Write and load checkpoints.
        pixels: Where the screenshots of samples are.
        kept: Told of each checkpoint that is made.
        keep: Checkpoints that stay.
        save_every: Versions between two of them.
        save_every_s: Longest time without one while there are updates, in seconds; None for no limit.
        sample_every: One group in so many is kept whole.
        decode: Makes the texts beside the token ids of what is kept.
    """

    def __init__(
        self,
        folders: RunFolders,
        stream: TaskStream,
        ranks: TrainerRanks,
        pixels: PixelStoreClient,
        kept: KeptGroups,
        *,
        keep: int,
        save_every: int,
        save_every_s: float | None,
        sample_every: int,
        decode: Callable[[Sequence[int]], str],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._folders = folders
        self._stream = stream
        self._ranks = ranks
        self._pixels = pixels
        self.kept = kept
        """Finished groups, for a resume."""
        self._keep = keep
        self._save_every = save_every
        self._save_every_s = save_every_s
        self._clock = clock
        self._sample_every = sample_every
        self._decode = decode
        self._episodes = EpisodeLog(folders.root / "episodes.jsonl")
        self._batches = BatchLog(folders.root / "batches.jsonl")
        for left_over in folders.samples.glob("*.partial"):
            shutil.rmtree(left_over, ignore_errors=True)
        self._saved = 0
        self._saved_s: float | None = None
        self._is_pending = False
        self._metrics: dict[str, float] = {}
        self._num_groups = 0

    def close(self) -> None:
        """Close the logs."""
        self._episodes.close()
        self._batches.close()

    def note_group(self, records: Sequence[EpisodeRecord]) -> None:
        """Log a complete group."""
        self._episodes.note(records)

    def note_update(self, rows: Mapping[str, Sequence[TrainRow]], before: Progress) -> None:
        """Log what an update was computed from."""
        self._batches.note(rows, step=before.num_steps + 1, version=before.version)

    async def note_batch(self, batch: PreparedBatch) -> None:
        """Keep one group in so many on disk, with its screenshots."""
        groups = list(dict.fromkeys(member.group_id for member in batch.members))
        numbered = enumerate(groups, self._num_groups)
        chosen = {group for number, group in numbered if number % self._sample_every == 0}
        self._num_groups += len(groups)
        for member in batch.members:
            if member.group_id in chosen:
                await self._sample(member, batch.advantages[member.episode_id])

    async def _sample(self, member: GroupMember, advantage: float) -> None:
        keys = member.trajectory.image_keys
        try:
            images = dict(zip(keys, await self._pixels.get_many_async(keys), strict=True))
        except PixelNotFound as error:
            logger.info("sample of %s without some screenshots: %s", member.episode_id, error)
            images = error.found
        except PixelStoreError as error:
            logger.info("sample of %s without screenshots: %s", member.episode_id, error)
            images = {}
        data = {key: data for key, data in images.items() if isinstance(data, bytes)}
        facts = {"advantage": advantage, "group_id": member.group_id}
        try:
            write_sample(
                self._folders.samples,
                member.episode_id,
                member.trajectory,
                data,
                facts,
                decode=self._decode,
            )
        except OSError as error:
            logger.warning("sample of %s is not kept: %s", member.episode_id, error)

    @property
    def num_refused_lines(self) -> int:
        """Lines of the logs that the disk refused."""
        return self._episodes.num_refused + self._batches.num_refused

    def has_news(self, progress: Progress) -> bool:
        """Return whether the weights are others than those that were saved or started from."""
        return progress.version != self._saved

    def is_due(self, progress: Progress) -> bool:
        """Return whether it is time to save: after the first update, then by versions and by time."""
        if not self.has_news(progress):
            return False
        if self._saved_s is None or progress.version % self._save_every == 0:
            return True
        limit_s = self._save_every_s
        return limit_s is not None and self._clock() - self._saved_s >= limit_s

    async def start_save(self, progress: Progress) -> None:
        """Begin to write policy snapshot and trainer state of the current version, once.

        A save that is still under way is waited for.

        Raises:
            EngineCallError: The disk refused the one before, or a rank is gone.
        """
        if not self.has_news(progress):
            return
        with self._stalling():
            await self._finish()
            self.kept.note_save(progress.version)
            self._saved, self._saved_s = progress.version, self._clock()
            self._is_pending = True
            await self._ranks.start_save(
                self._folders.policies,
                self._folders.state,
                keep=self._keep,
                extra=pack_state(progress, self._stream),
            )

    async def start_snapshot(self) -> None:
        """Begin to write the policy alone, for an evaluation.

        Raises:
            EngineCallError: The disk refused the save before, or a rank is gone.
        """
        with self._stalling():
            await self._finish()
            self._is_pending = True
            await self._ranks.start_save(self._folders.policies, None, keep=self._keep, extra={})

    @property
    def is_writing(self) -> bool:
        """Whether something that was begun has not been seen to end."""
        return self._is_pending

    async def look(self) -> None:
        """See whether what is written has come to its end; does not wait for it.

        Raises:
            EngineCallError: The disk refused a write; the previous checkpoints are whole.
        """
        if self._is_pending and await self._ranks.is_saved():
            await self._finish()

    async def save(self, progress: Progress) -> None:
        """Write policy snapshot and trainer state of the current version; return when they are there.

        Raises:
            EngineCallError: The disk refused a write; the previous checkpoints are whole.
        """
        await self.start_save(progress)
        await self._finish()

    async def write_snapshot(self) -> None:
        """Write the policy as it is now, for evaluation and for use elsewhere.

        Raises:
            EngineCallError: The disk refused a write.
        """
        await self.start_snapshot()
        await self._finish()

    def take_metrics(self) -> dict[str, float]:
        """Return what saving cost since the last call: `time/save_stall_s`, and what was written."""
        metrics, self._metrics = self._metrics, {}
        return {"time/save_stall_s": 0.0, **metrics}

    async def _finish(self) -> None:
        """Wait for what is written, and note how it went."""
        if not self._is_pending:
            return
        self._is_pending = False
        try:
            reports = await self._ranks.finish_save()
        except BaseException:
            # The next update's is tried at once.
            self._saved, self._saved_s = -1, None
            raise
        self._metrics["time/save_s"] = max(report.write_s for report in reports)
        if num_bytes := sum(report.num_bytes for report in reports):
            self._metrics["checkpoint/num_bytes"] = float(num_bytes)

    @contextmanager
    def _stalling(self) -> Generator[None]:
        started_s = self._clock()
        try:
            yield
        finally:
            stall_s = self._metrics.get("time/save_stall_s", 0.0) + self._clock() - started_s
            self._metrics["time/save_stall_s"] = stall_s

    async def restore(self) -> tuple[Progress, Path, bool]:
        """Load the newest checkpoint into every rank, and forget what was written after it.

        Returns:
            The counters at that checkpoint, its folder, and whether the task order goes on; it
            starts anew when tasks or seeds changed.

        Raises:
            RunFailedError: There is none, or it can't be loaded.
        """
        path = self._folders.newest_checkpoint()
        try:
            version, state = await self._ranks.load(path)
        except EngineCallError as error:
            if isinstance(cause := getattr(error.__cause__, "cause", None), CheckpointError):
                raise RunFailedError(f"--resume can not go on: {cause}") from error
            raise
        progress, is_same_data = unpack_state(state, version, self._stream)
        self._saved, self._saved_s = progress.version, self._clock()
        self.forget_after(progress)
        return progress, path, is_same_data

    def forget_after(self, progress: Progress) -> None:
        """Drop the updates and the weights that a run which goes on here computes anew."""
        self._batches.rewind(progress.num_steps)
        self._folders.forget_later_weights(progress.version)
        if self._folders.evaluations.is_file():
            evaluations = LineFile(self._folders.evaluations)
            evaluations.rewind(progress.version, "version")
            evaluations.close()
