"""Tells a hook of ended episodes without ever holding a slot.

Loop, a child of the executor's TaskScope: consumes records, calls the hook with all that are ready;
waits for a record; unblocked by `note`. This is the package's named boundary `on_finished`: what
the hook raises is logged, because polling finds the records anyway.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence

from awrl_rollout.episode import EpisodeRecord

logger = logging.getLogger(__name__)

FinishedHook = Callable[[Sequence[EpisodeRecord]], Awaitable[None]]
"""Awaited with records that just ended, for example a `CallbackNotifier`."""


class NotifyLoop:
    """Batches records for one hook.

    Args:
        hook: Awaited with the records of one batch.
    """

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
            except Exception as error:
                logger.warning("on_finished failed for %d records", len(records), exc_info=error)
