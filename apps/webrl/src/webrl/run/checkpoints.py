"""What a run writes while it goes on: checkpoints, policy snapshots, sampled trajectories.

Invariant: nothing here runs inside of the weight-update window, and each version is saved once.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

from awrl_pixelstore import PixelStoreError

from webrl.config import WebRLConfig
from webrl.launch.running_system import System
from webrl.records.run_folder import RunFolders, pack_state
from webrl.records.samples import write_sample
from webrl.rollout.task_stream import TaskStream
from webrl.training.rows import GroupMember
from webrl.training.step_loop import Progress

logger = logging.getLogger(__name__)

SAVE_DEADLINE_S = 600.0
"""Limit of writing one checkpoint."""


class Recorder:
    """Writes one run's files."""

    def __init__(
        self, config: WebRLConfig, folders: RunFolders, system: System, stream: TaskStream
    ) -> None:
        """Bind the recorder to what it writes.

        Args:
            config: The run's.
            folders: Where its parts lie.
            system: The started roles.
            stream: Task order, part of each checkpoint.
        """
        self._config = config
        self._folders = folders
        self._system = system
        self._stream = stream
        self._saved = -1
        self._num_groups = 0

    def resumed_at(self, version: int) -> None:
        """Note that this version is on disk already."""
        self._saved = version

    async def save(self, progress: Progress) -> None:
        """Write policy snapshot and trainer state of the current version, once.

        Raises:
            EngineCallError: The disk refused a write; the previous checkpoints are whole.
        """
        if progress.version == self._saved:
            return
        await self.write_snapshot()
        await self._system.scheduler.async_call_engine(
            self._system.ranks,
            "save",
            str(self._folders.state),
            self._config.checkpoint.keep,
            pack_state(progress, self._stream),
            timeout_s=SAVE_DEADLINE_S,
        )
        self._saved = progress.version

    async def write_snapshot(self) -> None:
        """Write the policy as it is now, for the test rollout and for use elsewhere.

        Raises:
            EngineCallError: The disk refused a write.
        """
        await self._system.scheduler.async_call_engine(
            self._system.ranks,
            "write_snapshot",
            str(self._folders.policies),
            self._config.checkpoint.keep,
            timeout_s=SAVE_DEADLINE_S,
        )

    async def sample(self, members: Sequence[GroupMember], advantages: dict[str, float]) -> None:
        """Keep one group in so many on disk, with its screenshots."""
        groups = list(dict.fromkeys(member.group_id for member in members))
        every = self._config.logging.sample_every
        chosen = {g for i, g in enumerate(groups, self._num_groups) if i % every == 0}
        self._num_groups += len(groups)
        for member in members:
            if member.group_id not in chosen:
                continue
            keys = member.trajectory.image_keys
            try:
                images = await self._system.pixels.get_many_async(keys)
            except PixelStoreError as error:
                logger.info("sample of %s without screenshots: %s", member.episode_id, error)
                images = []
            write_sample(
                self._folders.samples,
                member.episode_id,
                member.trajectory,
                {k: d for k, d in zip(keys, images, strict=False) if isinstance(d, bytes)},
                {"advantage": advantages[member.episode_id], "group_id": member.group_id},
            )
