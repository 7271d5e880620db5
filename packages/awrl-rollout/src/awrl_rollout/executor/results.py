"""What becomes of the records of one executor: kept until they are taken, told to a hook.

Invariants:
* records leave in the order in which the episodes ended; one that was handed out against
  acknowledgements stays until it is acknowledged;
* a slow or failing hook never holds a slot.

Loop, a child of the executor's TaskScope: `Notifier.run` consumes records and calls the hook with all
that are there; it waits for a record and is unblocked by `note`. This is the package's named boundary
`on_finished`: what the hook raises is logged, because polling finds the records anyway.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Sequence

from awrl_rollout.concurrency import is_cancelled
from awrl_rollout.episode import EpisodeRecord

logger = logging.getLogger(__name__)

FinishedHook = Callable[[Sequence[EpisodeRecord]], Awaitable[None]]
"""Awaited with records that just ended, for example a `CallbackNotifier`."""


class ResultBuffer:
    """The records that nobody took yet."""

    def __init__(self) -> None:
        self._records: dict[str, EpisodeRecord] = {}

    def __len__(self) -> int:
        """Return the number of records."""
        return len(self._records)

    def __contains__(self, episode_id: object) -> bool:
        """Return whether this episode's record is here."""
        return episode_id in self._records

    def put(self, record: EpisodeRecord) -> None:
        """Keep a record."""
        self._records[record.episode_id] = record

    def pop(self, episode_ids: Sequence[str]) -> list[EpisodeRecord]:
        """Forget these records and return them; all must be here."""
        return [self._records.pop(episode_id) for episode_id in episode_ids]

    def take(self, acknowledged: Collection[str] | None) -> list[EpisodeRecord]:
        """Forget the acknowledged records and return all others; None forgets those too."""
        if acknowledged is None:
            records = list(self._records.values())
            self._records.clear()
            return records
        for episode_id in acknowledged:
            self._records.pop(episode_id, None)
        return list(self._records.values())


class Notifier:
    """Batches records for one hook."""

    def __init__(self, hook: FinishedHook) -> None:
        self._hook = hook
        self._records: list[EpisodeRecord] = []
        self._has_records = asyncio.Event()

    def note(self, record: EpisodeRecord) -> None:
        """Have the hook told of a record."""
        self._records.append(record)
        self._has_records.set()

    async def run(self) -> None:
        """Call the hook for ever."""
        while True:
            await self._has_records.wait()
            self._has_records.clear()
            records, self._records = self._records, []
            try:
                await self._hook(records)
            except asyncio.CancelledError as error:
                if is_cancelled():
                    raise
                logger.warning("on_finished failed for %d records", len(records), exc_info=error)
            except Exception as error:
                logger.warning("on_finished failed for %d records", len(records), exc_info=error)
