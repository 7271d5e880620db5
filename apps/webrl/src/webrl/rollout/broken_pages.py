"""`BrokenPages`: a picture of the page that each kind of fault met last.

Invariant: one file a kind, written at most once in `INTERVAL_S`: sites that are down cost no more.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from webrl.browser import BrowserSession

INTERVAL_S = 60.0
"""Between two pictures of one kind."""

FOLDER = "broken-pages"
"""Name of the folder beside the logs."""


class BrokenPages:
    """Keeps the pictures of one worker.

    Args:
        logs: Folder of the logs; None keeps no picture.
    """

    def __init__(self, logs: Path | None, clock: Callable[[], float] = time.monotonic) -> None:
        self._folder = None if logs is None else logs / FOLDER
        self._clock = clock
        self._kept_s: dict[str, float] = {}

    async def keep(self, session: BrowserSession, kind: str) -> None:
        """Keep what the session's page shows, where it shows anything and the disk has room."""
        now_s = self._clock()
        if self._folder is None or now_s - self._kept_s.get(kind, -INTERVAL_S) < INTERVAL_S:
            return
        self._kept_s[kind] = now_s
        picture = await session.last_look()
        if picture is None:
            return
        suffix = ".png" if picture.startswith(b"\x89PNG") else ".jpg"
        with suppress(OSError):
            self._folder.mkdir(parents=True, exist_ok=True)
            (self._folder / f"{kind}{suffix}").write_bytes(picture)
