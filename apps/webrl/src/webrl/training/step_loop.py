"""``PPOTrainer``: the per-step loop of the controller process.

One step: collect B -> advantages and rows -> update -> publish -> account. Generation for later
steps goes on meanwhile; the only serialized part is the publisher's window. Saving, evaluation and
logging happen outside of it.

Invariants:
    * the version counts published updates only: a skipped update releases its budget and publishes
      nothing;
    * rows whose screenshots are gone are dropped before any rank starts, never the whole batch;
    * the screenshots of an episode are released once it was trained on or dropped.

Consumes batches of a ``RolloutSource``; produces versions; waits for the source, the ranks and the
publisher, each with a deadline; unblocked by finished groups.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace

import ray
from awrl_pixelstore import PixelStoreClient
from awrl_rollout import RolloutBatch
from awrl_trainer import PublishReport, TrainRow, UpdateResult

from webrl.cluster.scheduler import RayScheduler, WorkerHandle
from webrl.errors import RunFailedError
from webrl.policy import PolicyProcessor
from webrl.rollout.batch_source import GroupFilter, RolloutSource
from webrl.rollout.trajectory import Trajectory
from webrl.training.rows import AdvantageConfig, GroupMember, build_rows, group_advantages

logger = logging.getLogger(__name__)

UPDATE_DEADLINE_S = 3600.0
"""Limit of one update over all ranks; the ranks' own collectives time out long before."""

Publish = Callable[[int], Awaitable[PublishReport]]
"""Brings every rollout server to the trainer's weights, as the given version."""


@dataclass(frozen=True, kw_only=True, slots=True)
class StepConfig:
    """What one step takes."""

    batch_size: int
    """B: episodes of one batch."""
    batch_timeout_s: float
    """Limit of waiting for a batch, in seconds."""
    advantage: AdvantageConfig = field(default_factory=AdvantageConfig)
    """How rewards become advantages."""


@dataclass(kw_only=True, slots=True)
class Progress:
    """Counters of a run; a checkpoint keeps them."""

    version: int = 0
    """Published updates."""
    num_steps: int = 0
    """Batches that were trained on, skipped updates included."""
    num_trained_episodes: int = 0
    """Episodes that were trained on."""
    train_s: float = 0.0
    """Seconds of training, restarts excluded."""


class PPOTrainer:
    """Runs steps over a source of batches, the ranks of the update engine and a publisher."""

    def __init__(
        self,
        *,
        scheduler: RayScheduler,
        ranks: Sequence[WorkerHandle],
        rollouts: RolloutSource,
        filter_: GroupFilter,
        publish: Publish,
        weights_lock: asyncio.Lock,
        pixels: PixelStoreClient,
        processor: PolicyProcessor,
        config: StepConfig,
        progress: Progress,
        on_batch: Callable[[Sequence[GroupMember], dict[str, float]], Awaitable[None]]
        | None = None,
        on_update: Callable[[Sequence[TrainRow], Progress], None] = lambda rows, progress: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Bind the loop to its parts; nothing is owned.

        Args:
            scheduler: Fans calls out to the ranks.
            ranks: Every rank of the update engine.
            rollouts: Where batches come from.
            filter_: Knows which episodes were dropped on the way.
            publish: Publishes weights.
            weights_lock: Held from the start of an update to the end of its publish.
            pixels: Where the screenshots are.
            processor: Counts image tokens.
            config: What one step takes.
            progress: Counters to go on from.
            on_batch: Sees members and advantages of each batch before their screenshots go.
            on_update: Sees the rows of each update once it is published or skipped, and the counters
                before it.
            clock: Seconds, monotonic.
        """
        self._on_update = on_update
        self._scheduler = scheduler
        self._ranks = ranks
        self._rollouts = rollouts
        self._filter = filter_
        self._publish = publish
        self._weights_lock = weights_lock
        self._pixels = pixels
        self._processor = processor
        self._config = config
        self._on_batch = on_batch
        self._clock = clock
        self._seen = (0, 0, 0, 0)
        self.progress = progress

    async def step(self) -> dict[str, float]:
        """Run one step and return its metrics.

        Raises:
            RunFailedError: A rank failed, or no server holds the new version.
            awrl_rollout.RolloutError: No batch could be had.
        """
        started_s = self._clock()
        batch = await self._rollouts.prepare_batch(
            self._config.batch_size, timeout_s=self._config.batch_timeout_s
        )
        collected_s = self._clock()
        members = members_of(batch)
        advantages = group_advantages(members, self._config.advantage)
        rows, num_lost = await self._rows(batch, members, advantages)
        if self._on_batch is not None:
            await self._on_batch(members, advantages)
        prepared_s = self._clock()
        before = replace(self.progress)
        async with self._weights_lock:
            updated = await self._update(rows) if rows else None
            updated_s = self._clock()
            published = await self._publish_or_release(updated)
        published_s = self._clock()
        self._on_update(rows, before)
        await self._release(members)
        self.progress.num_steps += 1
        self.progress.num_trained_episodes += len({row.row_id.partition("#")[0] for row in rows})
        self.progress.train_s += self._clock() - started_s
        return {
            **(updated.metrics if updated else {}),
            **(published.as_metrics() if published else {}),
            **await self._rollouts.metrics(),
            **self._account(self._clock() - started_s),
            "weights/version": float(self.progress.version),
            "rollout/lost_rows": float(num_lost),
            "time/collect_s": collected_s - started_s,
            "time/prepare_s": prepared_s - collected_s,
            "time/train_s": updated_s - prepared_s,
            "time/publish_s": published_s - updated_s,
            "time/step_s": self._clock() - started_s,
            "idle/actor_share": (collected_s - started_s) / max(1e-9, self._clock() - started_s),
        }

    async def _rows(
        self,
        batch: RolloutBatch,
        members: Sequence[GroupMember],
        advantages: dict[str, float],
    ) -> tuple[list[TrainRow], int]:
        """Return the trainable rows whose screenshots are there, and how many are not."""
        expired = {episode_id for group in batch for episode_id in group.expired}
        trainable = [member for member in members if member.episode_id not in expired]
        rows = build_rows(trainable, advantages, self._processor)
        keys = list(dict.fromkeys(key for row in rows for key in row.image_keys))
        missing = set(await self._pixels.missing_async(keys))
        kept = [row for row in rows if not missing.intersection(row.image_keys)]
        if missing:
            num_lost = len(rows) - len(kept)
            logger.warning("%d screenshots are gone; %d rows dropped", len(missing), num_lost)
        return kept, len(rows) - len(kept)

    async def _update(self, rows: Sequence[TrainRow]) -> UpdateResult:
        reference = ray.put(list(rows)) if len(self._ranks) > 1 else list(rows)
        answers = await self._scheduler.async_call_engine(
            self._ranks, "update", reference, timeout_s=UPDATE_DEADLINE_S
        )
        return answers[0]

    async def _publish_or_release(self, updated: UpdateResult | None) -> PublishReport | None:
        """Publish when the policy changed, else give the budget back."""
        version = updated.version if updated else self.progress.version
        if version == self.progress.version:
            logger.warning("update skipped: no rows, or a gradient that is not finite")
            self._rollouts.release_budget()
            return None
        report = await self._publish(version)
        self.progress.version = version
        self._rollouts.advance(version)
        if not report.receivers:
            raise RunFailedError(
                f"version {version} reached no rollout server: {dict(report.quarantined)}"
            )
        return report

    async def _release(self, members: Sequence[GroupMember]) -> None:
        episode_ids = [member.episode_id for member in members] + self._filter.take_dropped()
        await self._pixels.release_many_async(episode_ids)

    def _account(self, step_s: float) -> dict[str, float]:
        """Return what the filter counted since the last step."""
        filter_ = self._filter
        now = (
            filter_.num_groups,
            filter_.num_zero_variance,
            filter_.num_success,
            filter_.num_episodes,
        )
        groups, zero, success, episodes = (a - b for a, b in zip(now, self._seen, strict=True))
        self._seen = now
        return {
            "rollout/success_share": success / episodes if episodes else 0.0,
            "rollout/zero_variance_share": zero / groups if groups else 0.0,
            "rollout/episodes_per_s": episodes / step_s if step_s > 0 else 0.0,
            "rollout/episodes_total": float(filter_.num_episodes),
        }


def members_of(batch: RolloutBatch) -> list[GroupMember]:
    """Return every member of a batch that ended well, expired ones included."""
    members: list[GroupMember] = []
    for group in batch:
        for record in group.records:
            trajectory = record.payload
            assert isinstance(trajectory, Trajectory)
            members.append(
                GroupMember(
                    episode_id=record.episode_id,
                    group_id=record.group_id,
                    trajectory=trajectory,
                )
            )
    return members


async def keep_stepping(
    trainer: PPOTrainer,
    *,
    is_over: Callable[[], bool],
    after_step: Callable[[dict[str, float]], Awaitable[None]],
) -> None:
    """Run steps until ``is_over`` says so.

    Args:
        trainer: The loop's state.
        is_over: Asked before each step.
        after_step: Awaited with each step's metrics: logs, saves, evaluates.
    """
    while not is_over():
        metrics = await trainer.step()
        await after_step(metrics)
        await asyncio.sleep(0)
