"""Ctrl-C and SIGTERM: the first one ends the work in order, the second one does not wait."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Coroutine
from typing import TypeVar

Result = TypeVar("Result")

SIGNALS = (signal.SIGINT, signal.SIGTERM)
"""What ends a run in order."""


async def until_signalled(work: Coroutine[None, None, Result]) -> Result:
    """Return what the work returns; Ctrl-C or SIGTERM cancels it and waits for its clean-up.

    A second signal no longer waits: it interrupts the clean-up.

    Args:
        work: What to run.

    Raises:
        asyncio.CancelledError: A signal came.
    """
    loop, task = asyncio.get_running_loop(), asyncio.current_task()
    assert task is not None

    def stop() -> None:
        for number in SIGNALS:
            loop.remove_signal_handler(number)
            signal.signal(number, signal.default_int_handler)
        task.cancel()

    # Also where the caller ignores SIGINT, as shells do for what they start in the background.
    for number in SIGNALS:
        loop.add_signal_handler(number, stop)
    return await work
