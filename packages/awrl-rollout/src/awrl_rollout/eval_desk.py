"""Evaluation episodes of one controller: their line, their records. Pure but for `collect`.

Invariants: they never touch the staleness manager; a record is kept until it is taken or its
request is given up.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence

import msgspec

from awrl_rollout.episode import EpisodeRecord, EpisodeRequest
from awrl_rollout.errors import BatchTimeoutError
from awrl_rollout.signal import Signal


class EvalDesk:
    """Holds evaluation requests until a slot is free, and records until they are taken."""

    def __init__(self) -> None:
        self.waiting: deque[EpisodeRequest] = deque()
        self._live: set[str] = set()
        self._records: dict[str, EpisodeRecord] = {}

    def submit(self, requests: Sequence[EpisodeRequest]) -> None:
        """Put requests in line.

        Raises:
            ValueError: An id is live or its record was not taken.
        """
        ids = [request.episode_id for request in requests]
        if len(set(ids)) != len(ids) or self._live.intersection(ids):
            raise ValueError(f"episode_id must be new, got {ids[:5]!r}. Use fresh ids.")
        self._live.update(ids)
        self.waiting.extend(msgspec.structs.replace(request, is_eval=True) for request in requests)

    def check(self, episode_ids: Sequence[str]) -> None:
        """Raise when an id is unknown.

        Raises:
            LookupError: It was never submitted as evaluation, or its record was taken.
        """
        for episode_id in episode_ids:
            if episode_id not in self._live:
                raise LookupError(
                    f"episode_id must be a live evaluation episode, got {episode_id!r}. "
                    "Training episodes come by prepare_batch."
                )

    def landed(self, record: EpisodeRecord) -> None:
        """Keep a record, unless its request was given up."""
        if record.episode_id in self._live:
            self._records[record.episode_id] = record

    def count(self, episode_ids: Sequence[str]) -> int:
        """Return how many of these have ended."""
        return sum(key in self._records for key in episode_ids)

    async def collect(
        self,
        episode_ids: Sequence[str],
        changed: Signal,
        is_over: Callable[[], bool],
        timeout_s: float | None,
    ) -> list[EpisodeRecord]:
        """Return these records once all are here, nothing when it is over before.

        Raises:
            BatchTimeoutError: Not all came in time.
        """
        num_wanted = len(episode_ids)
        try:
            await changed.wait_for(
                lambda: is_over() or self.count(episode_ids) == num_wanted, timeout_s=timeout_s
            )
        except TimeoutError as error:
            raise BatchTimeoutError(
                f"{num_wanted} evaluation episodes must end within {timeout_s} s, got "
                f"{self.count(episode_ids)}. Raise the limit or give more slots."
            ) from error
        return [] if is_over() else self.take(episode_ids)

    def take(self, episode_ids: Sequence[str]) -> list[EpisodeRecord]:
        """Hand over these records and forget them."""
        self._live.difference_update(episode_ids)
        return [self._records.pop(key) for key in episode_ids]

    def give_up(self, episode_ids: Sequence[str]) -> None:
        """Forget requests and records."""
        gone = set(episode_ids)
        self._live -= gone
        self.waiting = deque(item for item in self.waiting if item.episode_id not in gone)
        for key in gone:
            self._records.pop(key, None)
