"""Where the trainer's batches come from: the everlasting pool, or synchronous rounds.

Both give the trainer the same thing, a ``RolloutBatch`` of groups, and hear of the same events
(version advanced, budget released), so the step loop is one piece of code.

Invariant: a group is told to the task stream as finished exactly once, when it was consumed,
rejected or dropped; until then a resume hands it out again.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from awrl_rollout import (
    EpisodeRecord,
    RolloutBatch,
    RolloutController,
    Worker,
)

from webrl.errors import EngineCallError
from webrl.rollout.task_stream import TaskStream
from webrl.training.rows import zero_variance_reason

logger = logging.getLogger(__name__)


class RolloutSource(Protocol):
    """Batches for the trainer's step loop."""

    async def prepare_batch(self, num_episodes: int, *, timeout_s: float) -> RolloutBatch:
        """Return the next batch."""
        ...

    def advance(self, version: int) -> None:
        """Hear that the servers hold a new version, computed from every consumed batch."""
        ...

    def release_budget(self) -> None:
        """Hear that the consumed batches changed nothing (a skipped update)."""
        ...

    async def metrics(self) -> dict[str, float]:
        """Return figures since the last call."""
        ...


class GroupFilter:
    """Decides which complete groups carry a gradient, and remembers who was dropped.

    The leases of dropped episodes are released by the trainer in one call per step.
    """

    def __init__(
        self,
        stream: TaskStream,
        on_group: Callable[[Sequence[EpisodeRecord]], None] = lambda records: None,
    ) -> None:
        """Filter groups of one stream.

        Args:
            stream: Hears of every group that is over.
            on_group: Told of each complete group, before it is judged.
        """
        self._stream = stream
        self._on_group = on_group
        self._dropped: dict[str, None] = {}
        self.num_groups = 0
        self.num_zero_variance = 0
        self.num_success = 0
        self.num_episodes = 0

    def accept(self, records: Sequence[EpisodeRecord]) -> str | None:
        """Return why a complete group is rejected, None to accept it."""
        self._on_group(records)
        rewards = [record.reward for record in records if record.reward is not None]
        self.num_groups += 1
        self.num_episodes += len(rewards)
        self.num_success += sum(reward > 0 for reward in rewards)
        reason = zero_variance_reason(rewards)
        self.num_zero_variance += reason is not None
        return reason

    def discarded(self, records: Sequence[EpisodeRecord], reason: str) -> None:
        """Note episodes that no batch will hold."""
        del reason
        self._dropped.update((record.episode_id, None) for record in records)

    def group_dropped(self, group_id: str, reason: str) -> None:
        """Note a group that no batch will hold."""
        del reason
        self._stream.finish(group_id)

    def taken(self, batch: RolloutBatch) -> None:
        """Note that a batch took its groups."""
        for group in batch:
            self._stream.finish(group.group_id)

    def take_dropped(self) -> list[str]:
        """Return the episodes whose screenshots nobody needs any more, each once."""
        dropped, self._dropped = list(self._dropped), {}
        return dropped


class EverlastingRollouts:
    """The asynchronous source: a ``RolloutController`` that never stops."""

    def __init__(
        self,
        controller: RolloutController,
        workers: Mapping[str, Worker],
        filter_: GroupFilter,
    ) -> None:
        """Speak for a running controller.

        Args:
            controller: Entered by the caller.
            workers: Its live workers by name; the caller replaces those that die.
            filter_: Its hooks.
        """
        self.controller = controller
        self._workers = workers
        self._filter = filter_
        self._slots: dict[str, tuple[float, float]] = {}

    async def prepare_batch(self, num_episodes: int, *, timeout_s: float) -> RolloutBatch:
        """Return the oldest complete groups; see ``RolloutController.prepare_batch``."""
        batch = await self.controller.prepare_batch(num_episodes, timeout_s=timeout_s)
        self._filter.taken(batch)
        return batch

    def advance(self, version: int) -> None:
        """Advance the version and release the budget of what was consumed."""
        self.controller.advance(version)

    def release_budget(self) -> None:
        """Release the budget of what was consumed, without a new version."""
        self.controller.release_budget()

    async def metrics(self) -> dict[str, float]:
        """Return the controller's figures and the slots' idle share since the last call."""
        statistics = self.controller.statistics()
        wasted = statistics.staleness.wasted_by_label.items()
        return {
            **statistics.metrics(),
            **{f"staleness/wasted_{label}_episodes": float(count) for label, count in wasted},
            "rollout/expired_episodes": float(statistics.staleness.num_expired),
            "idle/rollout_share": await self._idle_share(),
            "staleness/bound_binds": float(statistics.blocked_by is not None),
        }

    async def _idle_share(self) -> float:
        """Return the share of slot time without an episode since the last call."""
        now: dict[str, tuple[float, float]] = {}
        for name, worker in self._workers.items():
            try:
                statistics = await worker.statistics()
            except EngineCallError as error:
                logger.info("no slot figures of %s: %s", name, error)
                continue
            now[name] = (statistics.busy_s, statistics.alive_s)
        before, self._slots = self._slots, now
        busy_s = sum(busy - before.get(name, (0.0, 0.0))[0] for name, (busy, _) in now.items())
        alive_s = sum(alive - before.get(name, (0.0, 0.0))[1] for name, (_, alive) in now.items())
        return max(0.0, 1.0 - busy_s / alive_s) if alive_s > 0 else 0.0
