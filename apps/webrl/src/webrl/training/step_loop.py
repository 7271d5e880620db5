"""`PPOTrainer`: the per-step loop of the controller process.

One step: collect a batch -> advantages and rows -> update -> publish -> account. Generation for
later steps goes on meanwhile; the only serialized part is the publisher's window. Saving,
evaluation and logging happen outside of it.

Invariants:
    * the version counts published updates only: a skipped update gives the batch's budget back and
      publishes nothing;
    * rows whose screenshots are gone are dropped, never the whole batch: before any rank starts, and
      when they go while the ranks compute;
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

from awrl_pixelstore import PixelStoreUnavailable
from awrl_rollout import RolloutBatch, UnwrappedTaskGroup
from awrl_trainer import PublishReport, TrainRow, UpdateResult

from webrl.errors import EngineCallError, RunFailedError, WorkerLostError
from webrl.training.rows import PreparedBatch

logger = logging.getLogger(__name__)

COLLECTING = "waiting for a batch"


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

    @property
    def num_finished_episodes(self) -> int:
        """Return how many ended well, those of groups without a gradient included."""
        return int(self.totals.get("rollout/episodes_total", 0))

    @property
    def trained_share(self) -> float:
        """Return which share of the episodes that ended well was trained on."""
        return self.num_trained_episodes / max(1, self.num_finished_episodes)


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

    def describe(self) -> str:
        """Return in a few words how far the next batch is, and what the last groups were."""
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

    async def version(self) -> int:
        """Return the version of the ranks' weights: it rises with an update's first optimizer step."""
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
        stop: Once set, a batch that is still awaited is given up; an update goes on to its end.
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
        stop: asyncio.Event,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._rollouts = rollouts
        self._preparation = preparation
        self._engines = engines
        self._weights = weights
        self._recorder = recorder
        self._config = config
        self._clock = clock
        self._stop = stop
        self._stage = "between two steps"
        self.progress = progress

    def describe(self) -> str:
        """Return what the step at hand waits for."""
        is_collecting = self._stage == COLLECTING
        return f"{self._stage}: {self._rollouts.describe()}" if is_collecting else self._stage

    async def step(self) -> dict[str, float] | None:
        """Run one step and return its metrics; None when it was given up before its update.

        Raises:
            RunFailedError: No server holds the new version.
            EngineCallError: A rank failed.
            PixelStoreUnavailable: Screenshots were lost in the middle of an update.
            awrl_rollout.RolloutError: No batch could be had.
        """
        clock, progress = self._clock, self.progress
        started_s = clock()
        self._stage = COLLECTING
        collected = await self._collect()
        if collected is None:
            progress.train_s += clock() - started_s
            return None
        collected_s = clock()
        self._stage = "making rows of a batch"
        batch = await self._preparation.prepare(collected)
        await self._recorder.note_batch(batch)
        prepared_s = clock()
        before = replace(progress)
        self._stage = f"computing update {progress.version + 1}"
        async with self._weights.lock:
            batch, updated = await self._update(collected, batch)
            updated_s = clock()
            self._stage = f"publishing version {progress.version + 1}"
            published = await self._publish(updated)
        self._stage = "between two steps"
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
            "rollout/trained_total": float(progress.num_trained_episodes),
            "rollout/lost_rows": float(batch.num_lost_rows),
            "time/collect_s": collected_s - started_s,
            "time/prepare_s": prepared_s - collected_s,
            "time/train_s": updated_s - prepared_s,
            "time/publish_s": published_s - updated_s,
            "time/step_s": clock() - started_s,
            "idle/actor_share": (collected_s - started_s) / max(1e-9, clock() - started_s),
        }

    async def _update(
        self, collected: RolloutBatch, batch: PreparedBatch
    ) -> tuple[PreparedBatch, UpdateResult | None]:
        """Update on the batch's rows; return what of it was trained on, and the result.

        A shard of the PixelStore that is lost meanwhile takes screenshots with it: the ranks have
        failed before their first optimizer step then, and start again without the rows concerned, or
        after it, and their weights are of no version.
        """
        while batch.rows:
            try:
                rows = [row for own in batch.rows.values() for row in own]
                return batch, await self._engines.update(rows)
            except WorkerLostError:
                raise
            except EngineCallError as error:
                left = await self._preparation.prepare(collected)
                if left.num_lost_rows <= batch.num_lost_rows:
                    raise
                if await self._engines.version() != self.progress.version:
                    raise PixelStoreUnavailable(
                        "the loss of screenshots in the middle of an update"
                    ) from error
                logger.warning("an update is computed again: %s", error)
                batch = left
        return batch, None

    async def _collect(self) -> RolloutBatch | None:
        """Return the next batch; None when `stop` was set before it was full."""
        async with UnwrappedTaskGroup() as group:
            batch = group.create_task(
                self._rollouts.prepare_batch(
                    self._config.batch_size, timeout_s=self._config.batch_timeout_s
                )
            )
            waiting = group.create_task(self._cancel_when_stopped(batch))
            batch.add_done_callback(lambda _: waiting.cancel())
        return None if batch.cancelled() else batch.result()

    async def _cancel_when_stopped(self, batch: asyncio.Task[RolloutBatch]) -> None:
        """Give the batch up; one that is there has left the source, and is trained on."""
        await self._stop.wait()
        batch.cancel()

    async def _publish(self, updated: UpdateResult | None) -> PublishReport | None:
        """Publish when the policy changed, else give the batch's budget back."""
        if updated is None or updated.version == self.progress.version:
            logger.warning("update skipped: no rows, or a gradient that is not finite")
            self._rollouts.release_budget()
            return None
        version = updated.version
        report = await self._weights.publish(version)
        if not report.receivers:
            raise RunFailedError(
                f"version {version} reached no rollout server: {dict(report.quarantined)}"
            )
        self.progress.version = version
        self._rollouts.advance(version)
        return report


async def keep_stepping(
    trainer: PPOTrainer,
    *,
    is_over: Callable[[], bool],
    after_step: Callable[[dict[str, float]], Awaitable[None]],
) -> None:
    """Run steps until `is_over` says so, which is asked before each, or one is given up.

    Args:
        is_over: Whether the run has reached its end.
        after_step: Awaited with each step's metrics: logs, saves, evaluates.
    """
    while not is_over():
        metrics = await trainer.step()
        if metrics is None:
            return
        await after_step(metrics)
        await asyncio.sleep(0)
