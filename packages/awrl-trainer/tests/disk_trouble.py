"""A disk that refuses one operation."""

from __future__ import annotations

import sys
from pathlib import Path


class DiskTrouble:
    """Refuses the one file operation of this process below a folder that comes after some others."""

    EVENTS = frozenset({"open", "os.mkdir", "os.rename", "os.remove", "os.scandir", "os.listdir"})

    def __init__(self) -> None:
        self.folder = ""
        self.num_left = 0
        self.has_struck = False
        sys.addaudithook(self._audit)

    def begin(self, folder: Path, after: int) -> None:
        self.folder, self.num_left = str(folder), after

    def end(self) -> None:
        self.folder = ""

    def _audit(self, event: str, arguments: tuple[object, ...]) -> None:
        if not self.folder or event not in self.EVENTS:
            return
        if not str(arguments[0]).startswith(self.folder):
            return
        self.num_left -= 1
        if self.num_left == -1:
            self.has_struck = True
            raise OSError(28, "No space left on device")
