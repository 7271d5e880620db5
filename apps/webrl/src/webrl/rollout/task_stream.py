"""The endless, resumable order of training groups.

Invariants:
    * group `i` is a pure function of the configuration and `i`: a resumed run sees the same
      order as an uninterrupted one, and each epoch has an order of its own (every item once);
    * training seeds and held-out seeds never meet; a task whose seed changes nothing comes once an
      epoch;
    * a group that was admitted and not consumed before a save is handed out again after a resume.
"""

from __future__ import annotations

import bisect
import hashlib
import itertools
import random
from collections.abc import Sequence

import msgspec
from awrl_rollout import EpisodeRequest

from webrl.rollout.trajectory import EpisodeTask
from webrl.tasks import Task

HELD_OUT_SEEDS = 100_000
"""Page seeds below this number are for evaluation; training seeds start here."""


class TaskStreamState(msgspec.Struct, frozen=True, kw_only=True):
    """What a checkpoint keeps of the stream."""

    fingerprint: str
    """Names the task list, number of seeds and seed: another data set starts from 0."""
    next_index: int
    """First group index that was never handed out."""
    again: list[int]
    """Handed out before the save, never consumed: first in line after a resume, ascending."""


class TaskStream:
    """Hands out groups of sibling episode requests for ever.

    Args:
        tasks: The tasks; one given twice is drawn twice as often.
        num_seeds: Training seeds of each seeded task.
        group_size: Sibling episodes per group.
        seed: Seed of the epoch orders.
    """

    def __init__(
        self, tasks: Sequence[Task], *, num_seeds: int, group_size: int, seed: int
    ) -> None:
        self._tasks = tuple(tasks)
        self._num_seeds = num_seeds
        counts = [num_seeds if task.is_seeded else 1 for task in self._tasks]
        self._ends = list(itertools.accumulate(counts))
        self._group_size = group_size
        self._seed = seed
        self._next_index = 0
        self._again: list[int] = []
        self._open: set[int] = set()
        self._order: tuple[int, list[int]] | None = None

    @property
    def epoch_length(self) -> int:
        """Return the number of groups in one epoch."""
        return self._ends[-1]

    @property
    def fingerprint(self) -> str:
        """Return the identity of the data set and its order."""
        names = ",".join(f"{task.full_name}:{task.is_seeded}" for task in self._tasks)
        digest = hashlib.sha256(names.encode()).hexdigest()
        return f"{digest}|{self._num_seeds}|{self._seed}"

    def next_group(self) -> list[EpisodeRequest]:
        """Return the requests of the next group; its index is the group id."""
        if self._again:
            index = self._again.pop(0)
        else:
            index = self._next_index
            self._next_index += 1
        self._open.add(index)
        return self.group(index)

    def group(self, index: int) -> list[EpisodeRequest]:
        """Return the requests of group `index`."""
        epoch, position = divmod(index, self.epoch_length)
        item = self._epoch_order(epoch)[position]
        task_index = bisect.bisect_right(self._ends, item)
        task, first = self._tasks[task_index], self._ends[task_index - 1] if task_index else 0
        payload = EpisodeTask(definition=task, seed=HELD_OUT_SEEDS + item - first)
        return [
            EpisodeRequest(
                episode_id=f"{index}/{member}",
                group_id=str(index),
                member=member,
                payload=payload,
                label=task.difficulty,
            )
            for member in range(self._group_size)
        ]

    def finish(self, group_id: str) -> None:
        """Note that a group was consumed, rejected or dropped: it never comes again."""
        self._open.discard(int(group_id))

    def state(self) -> TaskStreamState:
        """Return what a resume needs; groups handed out and unfinished count as not seen."""
        return TaskStreamState(
            fingerprint=self.fingerprint,
            next_index=self._next_index,
            again=sorted(self._open | set(self._again)),
        )

    def restore(self, state: TaskStreamState) -> bool:
        """Continue from a saved state.

        Returns:
            False when the state is of another data set: the stream then starts at 0.
        """
        if state.fingerprint != self.fingerprint:
            return False
        self._next_index = state.next_index
        self._again = list(state.again)
        self._open = set()
        return True

    def _epoch_order(self, epoch: int) -> list[int]:
        if self._order is None or self._order[0] != epoch:
            order = list(range(self.epoch_length))
            random.Random(f"{self._seed}/{epoch}").shuffle(order)
            self._order = (epoch, order)
        return self._order[1]
