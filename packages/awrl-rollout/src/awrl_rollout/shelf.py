"""Records that nobody took yet. Pure but for `wait`.

Invariants: records leave in the order in which the episodes ended; one that was handed out against
acknowledgements stays until it is acknowledged.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Sequence

from awrl_rollout.episode import EpisodeRecord
from awrl_rollout.errors import BatchTimeoutError
from awrl_rollout.signal import Signal


class RecordShelf:
    """Keeps the records of one executor."""

    def __init__(self) -> None:
        self.changed = Signal()
        self._records: dict[str, EpisodeRecord] = {}

    def __len__(self) -> int:
        """Return the number of records."""
        return len(self._records)

    def __contains__(self, episode_id: object) -> bool:
        """Return whether this episode's record is here."""
        return episode_id in self._records

    def put(self, record: EpisodeRecord) -> None:
        """Keep a record and wake whoever waits for it."""
        self._records[record.episode_id] = record
        self.changed.notify()

    def take(self, acknowledged: Collection[str] | None) -> list[EpisodeRecord]:
        """Forget the acknowledged records and return all others; None forgets those too."""
        if acknowledged is None:
            records = list(self._records.values())
            self._records.clear()
            return records
        for episode_id in acknowledged:
            self._records.pop(episode_id, None)
        return list(self._records.values())

    async def wait(
        self, episode_ids: Sequence[str], *, timeout_s: float | None
    ) -> list[EpisodeRecord]:
        """Return these records, in the order of the ids, and forget them.

        Raises:
            BatchTimeoutError: Not all came in time; nothing was taken.
        """
        # What has come is not looked at again, so the cost of a wait is linear in its ids.
        missing = deque(episode_ids)

        def all_came() -> bool:
            while missing and missing[0] in self._records:
                missing.popleft()
            return not missing

        try:
            await self.changed.wait_for(all_came, timeout_s=timeout_s)
        except TimeoutError as error:
            live = [key for key in episode_ids if key not in self._records]
            raise BatchTimeoutError(
                f"{len(episode_ids)} episodes must end within {timeout_s} s, got "
                f"{len(live)} still live: {live[:5]!r}. Raise the limit or cancel them."
            ) from error
        return [self._records.pop(key) for key in episode_ids]
