"""A rollout worker on Ray as the controller's ``Worker``: each method awaits one remote call."""

from __future__ import annotations

from collections.abc import Sequence

from awrl_rollout import EpisodeRecord, EpisodeRequest, ExecutorStatistics

from webrl.cluster.scheduler import WorkerHandle, call_worker

CALL_DEADLINE_S = 60.0
"""A worker that does not answer a call for this long counts as dead."""


class RayWorker:
    """Adapts the actor of a ``RolloutWorker``."""

    def __init__(self, handle: WorkerHandle, name: str, num_slots: int) -> None:
        """Adapt an actor.

        Args:
            handle: The actor.
            name: Name of this incarnation, unique over the run.
            num_slots: Its slots.
        """
        self.handle = handle
        self._name = name
        self._num_slots = num_slots

    @property
    def name(self) -> str:
        """Return the worker's name."""
        return self._name

    @property
    def num_slots(self) -> int:
        """Return how many episodes it runs at once."""
        return self._num_slots

    async def submit(self, requests: Sequence[EpisodeRequest]) -> None:
        """Hand requests over."""
        await call_worker(self.handle, "submit", list(requests), timeout_s=CALL_DEADLINE_S)

    async def take_finished(self, acknowledged: Sequence[str]) -> list[EpisodeRecord]:
        """Acknowledge records and return all others."""
        return await call_worker(
            self.handle, "take_finished", list(acknowledged), timeout_s=CALL_DEADLINE_S
        )

    async def cancel(self, episode_ids: Sequence[str]) -> None:
        """Cancel episodes."""
        await call_worker(self.handle, "cancel", list(episode_ids), timeout_s=CALL_DEADLINE_S)

    async def pause(self) -> None:
        """Send no further attempt to an inference server."""
        await call_worker(self.handle, "pause", timeout_s=CALL_DEADLINE_S)

    async def resume(self) -> None:
        """Send attempts again."""
        await call_worker(self.handle, "resume", timeout_s=CALL_DEADLINE_S)

    async def statistics(self) -> ExecutorStatistics:
        """Return what the slots do now."""
        return await call_worker(self.handle, "statistics", timeout_s=CALL_DEADLINE_S)
