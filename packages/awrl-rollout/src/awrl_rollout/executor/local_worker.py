"""The worker that lives in the controller's own loop."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from awrl_rollout.episode import EpisodeRecord, EpisodeRequest
from awrl_rollout.executor.executor import ExecutorStatistics, WorkflowExecutor


class GenerationSwitch(Protocol):
    """The part of a generation client that `pause` and `resume` reach."""

    def pause(self) -> None:
        """Hold back every request from now on."""
        ...

    def resume(self) -> None:
        """Send requests again."""
        ...


class LocalWorker:
    """A worker around an executor in the controller's own loop.

    Args:
        executor: The slots; whoever made it also serves it.
        generation: What `pause` and `resume` reach; None when the workflow generates nothing.
    """

    def __init__(
        self, executor: WorkflowExecutor, *, generation: GenerationSwitch | None = None
    ) -> None:
        self._executor = executor
        self._generation = generation

    @property
    def name(self) -> str:
        """The executor's name."""
        return self._executor.name

    @property
    def num_slots(self) -> int:
        """The executor's slots."""
        return self._executor.num_slots

    def subscribe(self, on_completion: Callable[[str], None]) -> None:
        """Call `on_completion(name)` whenever an episode has ended."""
        self._executor.subscribe(lambda: on_completion(self._executor.name))

    async def submit(self, requests: Sequence[EpisodeRequest]) -> None:
        """Hand requests to the executor.

        Raises:
            RolloutError: The executor was closed.
        """
        self._executor.submit(requests)

    async def take_finished(self, acknowledged: Sequence[str]) -> list[EpisodeRecord]:
        """Return the executor's records that are not acknowledged."""
        return self._executor.take_finished(acknowledged)

    async def cancel(self, episode_ids: Sequence[str]) -> None:
        """Cancel episodes in the executor."""
        self._executor.cancel(episode_ids)

    async def pause(self) -> None:
        """Pause the generation client."""
        if self._generation is not None:
            self._generation.pause()

    async def resume(self) -> None:
        """Resume the generation client."""
        if self._generation is not None:
            self._generation.resume()

    async def statistics(self) -> ExecutorStatistics:
        """Return the executor's statistics."""
        return self._executor.statistics()
