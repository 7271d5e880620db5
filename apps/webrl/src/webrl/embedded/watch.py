"""End this process when the one that started it is gone.

Polling the parent's id, not the kernel's parent-death signal: that one fires when the *thread*
that started the process ends, and servers are started from worker threads.
"""

from __future__ import annotations

import os
import threading
import time

__all__ = ["end_with_parent"]

_POLL_S = 0.5
"""Seconds between two looks: an orphan holds its port and its memory no longer than this."""

_ORPHAN_EXIT_CODE = 3


def end_with_parent(parent_pid: int) -> None:
    """Start a watch that ends the process once `parent_pid` is no longer its parent."""

    def watch() -> None:
        while os.getppid() == parent_pid:
            time.sleep(_POLL_S)
        # Nobody is left to tell; handlers and locks of a half-dead process must not delay the end.
        os._exit(_ORPHAN_EXIT_CODE)

    # A thread: it must work while the model loads and while the event loop is busy.
    threading.Thread(target=watch, name="parent-watch", daemon=True).start()  # noqa: TID251
