"""`LineFile`: a file of whole lines, whatever the disk does.

Invariant: a line is in the file whole or not at all, also after a kill or on a full disk; what the
disk refused is counted, and the run goes on.
"""

from __future__ import annotations

import json
import logging
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

logger = logging.getLogger(__name__)

_TAIL_BYTES = 1 << 20
"""Of a file in which the end of its last line is looked for first."""


class LineFile:
    """Appends JSON lines to a file.

    Args:
        path: Made when it is missing; half a line that a kill left at its end is cut.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.num_refused = 0
        """Lines that the disk refused."""
        self._open()

    def append(self, values: Mapping[str, Any]) -> None:
        """Write one line, or count it as refused."""
        line = msgspec.json.encode(values) + b"\n"
        try:
            if os.write(self._file, line) == len(line):
                self._size += len(line)
                return
            raise OSError("only a part of the line found room")
        except OSError as error:
            self.num_refused += 1
            logger.warning("%s: a line is left out: %s", self.path, error)
            self._truncate(self._size)

    def rewind(self, last: int, key: str = "step") -> None:
        """Leave the lines whose `key` is at most `last`; the file appears by rename.

        A line that something else has damaged is left out.
        """
        draft = self.path.with_name(f".{self.path.name}.draft")
        with self.path.open("rb") as file, draft.open("wb") as kept:
            kept.writelines(line for line in file if _number(line, key) <= last)
        draft.rename(self.path)
        self.close()
        self._open()

    def close(self) -> None:
        """Close the file."""
        os.close(self._file)

    def _open(self) -> None:
        self._file = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
        self._truncate(_end_of_last_line(self.path))

    def _truncate(self, size: int) -> None:
        os.ftruncate(self._file, size)
        self._size = size


def _number(line: bytes, key: str) -> float:
    """Return a line's number, infinity for half a line and for what is none."""
    try:
        return float(json.loads(line)[key]) if line.endswith(b"\n") else math.inf
    except (ValueError, KeyError, TypeError):
        return math.inf


def _end_of_last_line(path: Path) -> int:
    """Return how many bytes of a file are whole lines."""
    size, length = path.stat().st_size, _TAIL_BYTES
    with path.open("rb") as file:
        while True:
            start = max(0, size - length)
            file.seek(start)
            found = file.read().rfind(b"\n")
            if found >= 0 or start == 0:
                return start + found + 1
            length *= 2
