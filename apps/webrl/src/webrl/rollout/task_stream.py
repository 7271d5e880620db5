"""The endless, resumable order of training groups.

Invariants:
    * group `i` is a pure function of the configuration and `i`: a resumed run sees the same
      order as an uninterrupted one, and each epoch has an order of its own: every item of the
      lightest tasks once, of others as often as their weight says;
    * over many groups tasks are drawn exactly as their weights say, whatever those are: what an
      epoch has to leave out, the next ones make up for;
    * training seeds and held-out seeds never meet; a task whose seed changes nothing comes once an
      epoch;
    * a group that was admitted and not consumed before a save is handed out again after a resume,
      or held, where what it ended with was kept.
"""

from __future__ import annotations

import bisect
import hashlib
import itertools
import math
import operator
import random
from collections.abc import Iterator, Sequence
from fractions import Fraction

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


class _Pool:
    """Items (a task with a seed) of one weight, in a fixed order that is spread over all of them.

    Args:
        visits: How often an epoch visits each item, 1 or more.
    """

    def __init__(self, tasks: Sequence[Task], num_seeds: int, visits: Fraction) -> None:
        self._tasks = tasks
        self._ends = list(
            itertools.accumulate(num_seeds if task.is_seeded else 1 for task in tasks)
        )
        self._visits = visits
        # Whatever part of the items an epoch visits once more is no part of the list's order.
        size = self._ends[-1]
        golden = round(size * 0.618034)
        self._stride = next(step for step in itertools.count(golden) if math.gcd(step, size) == 1)

    def visits_before(self, epoch: int) -> int:
        """Return the visits of all epochs before this one."""
        return math.floor(epoch * self._visits * self._ends[-1])

    def item(self, visit: int) -> tuple[Task, int]:
        """Return the task of a visit, and which of its seeds."""
        size = self._ends[-1]
        number = visit * self._stride % size
        index = bisect.bisect_right(self._ends, number)
        return self._tasks[index], number - (self._ends[index - 1] if index else 0)


class TaskStream:
    """Hands out groups of sibling episode requests for ever.

    Args:
        tasks: The tasks.
        num_seeds: Training seeds of each seeded task.
        group_size: Sibling episodes per group.
        seed: Seed of the epoch orders.
        weights: How often a seed of each task is drawn, relative to the others; equal when None.
    """

    def __init__(
        self,
        tasks: Sequence[Task],
        *,
        num_seeds: int,
        group_size: int,
        seed: int,
        weights: Sequence[float] | None = None,
    ) -> None:
        given = weights or [1] * len(tasks)
        # As written: 1.4 is seven fifths, which no float is.
        exact = {weight: Fraction(str(weight)) for weight in dict.fromkeys(given)}
        pools: dict[Fraction, list[Task]] = {weight: [] for weight in exact.values()}
        names: list[str] = []
        for weight, pairs in itertools.groupby(
            zip(given, tasks, strict=True), key=operator.itemgetter(0)
        ):
            pool = pools[exact[weight]]
            for _, task in pairs:
                pool.append(task)
                names.append(f"{task.full_name}:{task.is_seeded}:{exact[weight]}")
        digest = hashlib.sha256(",".join(names).encode()).hexdigest()
        self.fingerprint = f"{digest}|{num_seeds}|{seed}"
        """Identity of the data set and its order."""
        lightest = min(exact.values())
        self._pools = [_Pool(own, num_seeds, weight / lightest) for weight, own in pools.items()]
        self._group_size = group_size
        self._seed = seed
        self._next_index = 0
        self._again: list[int] = []
        self._open: set[int] = set()
        self._order: tuple[int, list[tuple[int, int]]] | None = None

    @property
    def epoch_length(self) -> int:
        """Return the number of groups in the first epoch."""
        return self._groups_before(1)

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
        epochs = range(index // self.epoch_length + 1)
        epoch = bisect.bisect_right(epochs, index, key=self._groups_before) - 1
        pool, visit = self._epoch_order(epoch)[index - self._groups_before(epoch)]
        task, seed = self._pools[pool].item(visit)
        payload = EpisodeTask(definition=task, seed=HELD_OUT_SEEDS + seed)
        return [
            EpisodeRequest(
                episode_id=f"{index}/{member}",
                group_id=str(index),
                member=member,
                payload=payload,
                label=task.difficulty,
                site=task.site,
            )
            for member in range(self._group_size)
        ]

    def is_due(self, index: int) -> bool:
        """Return whether group `index` will be handed out, for the first time or again."""
        return index >= self._next_index or index in self._again

    def hold(self, index: int) -> None:
        """Note that a group that is due was run before the stream was restored, and waits."""
        if index < self._next_index:
            self._again.remove(index)
        else:
            self._again.extend(range(self._next_index, index))
            self._next_index = index + 1
        self._open.add(index)

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

    def _groups_before(self, epoch: int) -> int:
        return sum(pool.visits_before(epoch) for pool in self._pools)

    def _visits(self, epoch: int) -> Iterator[tuple[int, int]]:
        for number, pool in enumerate(self._pools):
            for visit in range(pool.visits_before(epoch), pool.visits_before(epoch + 1)):
                yield number, visit

    def _epoch_order(self, epoch: int) -> list[tuple[int, int]]:
        if self._order is None or self._order[0] != epoch:
            order = list(self._visits(epoch))
            random.Random(f"{self._seed}/{epoch}").shuffle(order)
            self._order = (epoch, order)
        return self._order[1]
