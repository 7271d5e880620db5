"""What SIGINT, SIGTERM and SIGHUP do to a command that needs time to end in order.

Invariants:
    * the first signal asks for an end, the second one makes it, wherever the program is;
    * signals within `SAME_S` are one: `timeout` and service managers send theirs to a process and to
      its group;
    * SIGHUP stays ignored where it was, as under `nohup`; SIGINT does not: shells ignore it for all
      that they start in the background.
"""

from __future__ import annotations

import asyncio
import os
import signal
import threading
import time
from collections.abc import Callable, Coroutine
from types import FrameType, TracebackType
from typing import Any, TypeVar

ResultT = TypeVar("ResultT")

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""What ends a command in order."""

SAME_S = 0.5
"""A signal this soon after the first one is the same wish."""


class StopSignals:
    """Handles the signals while the block runs; in another than the main thread it does nothing.

    Args:
        at_once: Called right before the second signal ends the process.
    """

    def __init__(self, at_once: Callable[[], None] = lambda: None) -> None:
        self._at_once = at_once
        self._ask: Callable[[], None] | None = None
        self._before: dict[signal.Signals, Any] = {}
        self._first_s = 0.0
        self.received: int | None = None
        """Number of the first signal, None before it."""

    @property
    def exit_code(self) -> int:
        """Return the code that shells use for an end by this signal; 130 is Ctrl-C."""
        return 128 + (self.received or signal.SIGINT)

    def __enter__(self) -> StopSignals:
        """Take over the signals."""
        if threading.current_thread() is threading.main_thread():
            for number in SIGNALS:
                before = signal.getsignal(number)
                if number != signal.SIGHUP or before != signal.SIG_IGN:
                    self._before[number] = before
        self._install()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Give the signals back, once those that are the same wish have come."""
        if self.received is not None:
            time.sleep(max(0.0, SAME_S - (time.monotonic() - self._first_s)))
        for number, before in self._before.items():
            signal.signal(number, signal.SIG_DFL if before is None else before)

    async def run(
        self, work: Coroutine[Any, Any, ResultT], ask: Callable[[], bool] = lambda: False
    ) -> ResultT:
        """Return what the work returns; the first signal asks it to end, or cancels it.

        Args:
            ask: Answers whether the work will end by itself now; otherwise it is cancelled.

        Raises:
            asyncio.CancelledError: The work was cancelled for a signal.
        """
        loop, task = asyncio.get_running_loop(), asyncio.current_task()
        assert task is not None

        def stop() -> None:
            if not ask():
                task.cancel()

        def ask_in_loop() -> None:
            loop.call_soon_threadsafe(stop)

        self._ask = ask_in_loop
        # Ray puts a handler of its own in place when a program joins a cluster.
        self._install()
        if self.received is not None:
            stop()
        try:
            return await work
        finally:
            self._ask = None

    def _install(self) -> None:
        for number in self._before:
            signal.signal(number, self._handle)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        now_s = time.monotonic()
        if self.received is not None:
            if now_s - self._first_s >= SAME_S:
                self._at_once()
                os._exit(self.exit_code)
            return
        self.received, self._first_s = number, now_s
        if self._ask is None:
            raise KeyboardInterrupt
        self._ask()
