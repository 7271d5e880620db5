"""`PPOTrainer`: the per-step loop of the controller process.

One step: collect a batch -> advantages and rows -> update -> publish -> account. Generation for
later steps goes on meanwhile; the only serialized part is the publisher's window. Saving,
evaluation and logging happen outside of it.

Invariants:
    * the version counts published updates only: a skipped update gives the batch's budget back and
      publishes nothing;
    * rows whose screenshots are gone are dropped before any rank starts, never the whole batch;
    * the screenshots of an episode are released once it was trained on or dropped.

Consumes batches of a `RolloutSource`; produces versions; waits for the source, the ranks and the
publisher, each with a deadline; unblocked by finished groups.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

from awrl_rollout import RolloutBatch
from awrl_trainer import PublishReport, TrainRow, UpdateResult

from webrl.errors import RunFailedError
from webrl.training.rows import PreparedBatch

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True, slots=True)
class StepConfig:
    """What one step takes."""

    batch_size: int
    """Episodes of one batch."""
    batch_timeout_s: float
    """Limit of waiting for a batch, in seconds."""


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
    totals: Mapping[str, float] = field(default_factory=dict[str, float])
    """Figures of the newest step that count from the start of the run."""


class RolloutSource(Protocol):
    """Where batches come from."""

    async def prepare_batch(self, num_episodes: int, *, timeout_s: float) -> RolloutBatch:
        """Return the next batch."""
        ...

    def advance(self, version: int) -> None:
        """Note that the servers hold a new version, computed from every consumed batch."""
        ...

    def release_budget(self) -> None:
        """Note that the consumed batches changed nothing: a skipped update."""
        ...

    def take_dropped(self) -> list[str]:
        """Return the episodes that ended up in no batch, each once."""
        ...

    async def metrics(self, seconds: float) -> dict[str, float]:
        """Return figures since the last call, which was so long ago."""
        ...


class Preparation(Protocol):
    """Turns batches into rows."""

    async def prepare(self, batch: RolloutBatch) -> PreparedBatch:
        """Return what an update of this batch is computed from."""
        ...

    async def release(self, episode_ids: Sequence[str]) -> None:
        """Give up what these episodes hold."""
        ...


class UpdateEngines(Protocol):
    """Computes updates, on every rank."""

    async def update(self, rows: Sequence[TrainRow]) -> UpdateResult:
        """Run one update."""
        ...


class WeightsOfServers(Protocol):
    """Brings every rollout server to the ranks' weights."""

    @property
    def lock(self) -> asyncio.Lock:
        """Held from the start of an update to the end of its publish."""
        ...

    async def publish(self, version: int) -> PublishReport:
        """Publish the ranks' weights as this version."""
        ...


class StepRecorder(Protocol):
    """Keeps what steps were made of."""

    async def note_batch(self, batch: PreparedBatch) -> None:
        """See a batch before its screenshots go."""
        ...

    def note_update(self, rows: Mapping[str, Sequence[TrainRow]], before: Progress) -> None:
        """See the rows of an update that was published or skipped, and the counters before it."""
        ...


class PPOTrainer:
    """Runs steps; nothing that it uses is owned.

    Args:
        rollouts: Where batches come from.
        preparation: Turns them into rows.
        engines: Computes updates.
        weights: Publishes them.
        recorder: Sees batches and updates.
        progress: Counters to go on from.
    """

    def __init__(
        self,
        *,
        rollouts: RolloutSource,
        preparation: Preparation,
        engines: UpdateEngines,
        weights: WeightsOfServers,
        recorder: StepRecorder,
        config: StepConfig,
        progress: Progress,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._rollouts = rollouts
        self._preparation = preparation
        self._engines = engines
        self._weights = weights
        self._recorder = recorder
        self._config = config
        self._clock = clock
        self.progress = progress

    async def step(self) -> dict[str, float]:
        """Run one step and return its metrics.

        Raises:
            RunFailedError: No server holds the new version.
            EngineCallError: A rank failed.
            awrl_rollout.RolloutError: No batch could be had.
        """
        clock, progress = self._clock, self.progress
        started_s = clock()
        collected = await self._rollouts.prepare_batch(
            self._config.batch_size, timeout_s=self._config.batch_timeout_s
        )
        collected_s = clock()
        batch = await self._preparation.prepare(collected)
        await self._recorder.note_batch(batch)
        rows = [row for own in batch.rows.values() for row in own]
        prepared_s = clock()
        before = replace(progress)
        async with self._weights.lock:
            updated = await self._engines.update(rows) if rows else None
            updated_s = clock()
            published = await self._publish(updated)
        published_s = clock()
        self._recorder.note_update(batch.rows, before)
        done = [member.episode_id for member in batch.members]
        await self._preparation.release(done + self._rollouts.take_dropped())
        progress.num_steps += 1
        progress.num_trained_episodes += len(batch.rows)
        step_s = clock() - started_s
        progress.train_s += step_s
        return {
            **(updated.metrics if updated else {}),
            **(published.as_metrics() if published else {}),
            **await self._rollouts.metrics(step_s),
            "weights/version": float(progress.version),
            "rollout/lost_rows": float(batch.num_lost_rows),
            "time/collect_s": collected_s - started_s,
            "time/prepare_s": prepared_s - collected_s,
            "time/train_s": updated_s - prepared_s,
            "time/publish_s": published_s - updated_s,
            "time/step_s": clock() - started_s,
            "idle/actor_share": (collected_s - started_s) / max(1e-9, clock() - started_s),
        }

    async def _publish(self, updated: UpdateResult | None) -> PublishReport | None:
        """Publish when the policy changed, else give the batch's budget back."""
        if updated is None or updated.version == self.progress.version:
            logger.warning("update skipped: no rows, or a gradient that is not finite")
            self._rollouts.release_budget()
            return None
        version = updated.version
        report = await self._weights.publish(version)
        self.progress.version = version
        self._rollouts.advance(version)
        if not report.receivers:
            raise RunFailedError(
                f"version {version} reached no rollout server: {dict(report.quarantined)}"
            )
        return report


async def keep_stepping(
    trainer: PPOTrainer,
    *,
    is_over: Callable[[], bool],
    after_step: Callable[[dict[str, float]], Awaitable[None]],
) -> None:
    """Run steps until `is_over` says so, which is asked before each.

    Args:
        is_over: Whether the run has reached its end.
        after_step: Awaited with each step's metrics: logs, saves, evaluates.
    """
    while not is_over():
        metrics = await trainer.step()
        await after_step(metrics)
        await asyncio.sleep(0)
