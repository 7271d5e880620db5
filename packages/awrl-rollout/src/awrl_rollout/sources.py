"""An endless, resumable order of groups over a list of tasks.

Invariants: group `i` is a function of the tasks, the seed and `i` alone; every epoch holds each
task once, in an order of its own; a resumed source continues at its position.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

from awrl_rollout.episode import EpisodeRequest


class EpochSource:
    """A task source for `RolloutController`.

    Args:
        tasks: Payloads, one per task.
        group_size: Sibling episodes per group.
        seed: Seed of the epochs' orders; None keeps the tasks' own order.
        num_epochs: Passes over the tasks; None is endless.
        position: First group to hand out.
        label: Returns a task's label for waste statistics.

    Raises:
        ValueError: A number is out of its range, or there is no task.
    """

    def __init__(
        self,
        tasks: Sequence[object],
        *,
        group_size: int,
        seed: int | None = 0,
        num_epochs: int | None = None,
        position: int = 0,
        label: Callable[[object], str | None] = lambda task: None,
    ) -> None:
        if not tasks:
            raise ValueError("tasks must hold at least one task, got none. Check the filter.")
        if group_size < 1:
            raise ValueError(
                f"group_size must be at least 1, got {group_size}. Use 1 for single episodes."
            )
        self.position = position
        self._tasks = tasks
        self._group_size = group_size
        self._seed = seed
        self._num_epochs = num_epochs
        self._label = label
        self._order: tuple[int, list[int]] | None = None

    def __call__(self) -> list[EpisodeRequest] | None:
        """Return the next group's requests, None when the last pass is over."""
        epoch, place = divmod(self.position, len(self._tasks))
        if self._num_epochs is not None and epoch >= self._num_epochs:
            return None
        task = self._tasks[self._epoch_order(epoch)[place]]
        group_id = str(self.position)
        self.position += 1
        return [
            EpisodeRequest(
                episode_id=f"{group_id}/{member}",
                group_id=group_id,
                member=member,
                group_size=self._group_size,
                payload=task,
                label=self._label(task),
            )
            for member in range(self._group_size)
        ]

    def _epoch_order(self, epoch: int) -> list[int]:
        if self._order is None or self._order[0] != epoch:
            order = list(range(len(self._tasks)))
            if self._seed is not None:
                random.Random(f"{self._seed}/{epoch}").shuffle(order)
            self._order = (epoch, order)
        return self._order[1]
