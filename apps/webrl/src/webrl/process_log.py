"""How every process of a run writes its log: equal messages are joined, and requests are not listed.

Invariants:
    * the first message of its kind (logger, level, text before its values are filled in) is written
      at once; those that follow within `INTERVAL_S` become one line with their number;
    * nothing is lost silently: a count is written with the next message of any kind, or at the end;
    * memory is bounded, whatever is logged.
"""

from __future__ import annotations

import logging
import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

FORMAT = "%(asctime)s %(levelname)s %(name)s: %(message)s"

INTERVAL_S = 30.0
"""Messages of one kind within this time are one line and one count."""

MOST_KINDS = 256
"""Kinds that are remembered; of more the one that was silent longest is counted up and forgotten."""

MOST_EXAMPLES = 3
"""Different texts of one kind that a count repeats."""

EXAMPLE_LENGTH = 300
"""Characters of one of them."""

NOISY = ("aiohttp.access",)
"""Loggers with a line for each request, of which only warnings are kept."""


def configure_log(handler: logging.Handler, level: str | int = logging.INFO) -> None:
    """Write this process's log, all of it, to one handler, with equal messages joined."""
    handler.setFormatter(logging.Formatter(FORMAT))
    logging.basicConfig(level=level, handlers=[JoiningHandler(handler)], force=True)
    for name in NOISY:
        logging.getLogger(name).setLevel(logging.WARNING)


@contextmanager
def log_to_file(path: Path, level: str) -> Generator[None]:
    """Write the log to a file while the block runs, beside the handlers that are there."""
    root, level_before = logging.getLogger(), logging.getLogger().level
    before = root.handlers[:]
    root.handlers.clear()
    configure_log(logging.FileHandler(path, encoding="utf-8"), level)
    own = root.handlers[:]
    root.handlers[:] = [*before, *own]
    try:
        yield
    finally:
        for handler in own:
            root.removeHandler(handler)
            handler.close()
        root.setLevel(level_before)


@dataclass(slots=True)
class _Repeats:
    """What came after the first message of a kind."""

    first_s: float
    count: int = 0
    texts: Counter[str] = field(default_factory=Counter[str])


class JoiningHandler(logging.Handler):
    """Passes records on; of those of one kind only the first, and then their number.

    Args:
        target: Writes; closed with this handler.
        clock: Seconds, of any origin.
    """

    def __init__(
        self, target: logging.Handler, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        super().__init__()
        self._target = target
        self._clock = clock
        self._kinds: OrderedDict[tuple[str, int, str], _Repeats] = OrderedDict()

    def emit(self, record: logging.LogRecord) -> None:
        """Write the record, or count it; write the counts that are due before it."""
        now_s, kind = self._clock(), (record.name, record.levelno, str(record.msg))
        self._write_counts(now_s - INTERVAL_S)
        repeats = self._kinds.get(kind)
        if repeats is None:
            self._kinds[kind] = _Repeats(now_s)
            self._target.handle(record)
            if len(self._kinds) > MOST_KINDS:
                self._write_count(*self._kinds.popitem(last=False), now_s)
            return
        repeats.count += 1
        text = _shortened(record)
        if text in repeats.texts or len(repeats.texts) < MOST_EXAMPLES:
            repeats.texts[text] += 1

    def close(self) -> None:
        """Write every count and close the target."""
        self._write_counts(float("inf"))
        self._target.close()
        super().close()

    def _write_counts(self, until_s: float) -> None:
        """Forget the kinds whose first message is that old, the oldest first."""
        while self._kinds:
            kind = next(iter(self._kinds))
            if self._kinds[kind].first_s > until_s:
                return
            self._write_count(kind, self._kinds.pop(kind), self._clock())

    def _write_count(self, kind: tuple[str, int, str], repeats: _Repeats, now_s: float) -> None:
        if not repeats.count:
            return
        name, level, _ = kind
        listed = "; ".join(f"{text} (x {count})" for text, count in repeats.texts.items())
        others = repeats.count - repeats.texts.total()
        text = f"{repeats.count} more like it in {now_s - repeats.first_s:.0f} s: {listed}"
        if others:
            text += f"; {others} with other values"
        self._target.handle(logging.LogRecord(name, level, "", 0, text, None, None))


def _shortened(record: logging.LogRecord) -> str:
    try:
        text = record.getMessage()
    except (TypeError, ValueError):
        text = str(record.msg)  # Values that do not fit: the first one was reported as such.
    return text.partition("\n")[0][:EXAMPLE_LENGTH]
