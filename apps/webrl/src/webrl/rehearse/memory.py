"""Memory of a run's processes by part, looked at from outside."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path

import psutil

from webrl.rehearse.targets import CLUSTER_KINDS, find_targets

INTERVAL_S = 10.0
"""Between two looks: each reads the page tables of every process."""


def pss_bytes(process: psutil.Process) -> int:
    """Return a process's memory, shared pages in proportion; 0 when it has ended."""
    try:
        text = Path(f"/proc/{process.pid}/smaps_rollup").read_text()
    except OSError:
        return 0
    return 1024 * next(
        (int(line.split()[1]) for line in text.splitlines() if line.startswith("Pss:")), 0
    )


class MemoryWatch:
    """Notes the largest number of processes of each part, and their memory at that moment.

    Args:
        roots: Called for the processes below which a run's are.
    """

    def __init__(self, roots: Callable[[], Sequence[psutil.Process]]) -> None:
        self._roots = roots
        self.largest: dict[str, list[int]] = {}
        """Bytes of each process, by part, at the look with the most of them in all."""
        self.most_bytes = 0
        """Of everything below the roots together."""

    async def keep_looking(self) -> None:
        """Look again and again, until cancelled."""
        while True:
            await asyncio.sleep(INTERVAL_S)
            await asyncio.to_thread(self._look)

    def _look(self) -> None:
        roots = self._roots()
        for kind in CLUSTER_KINDS:
            processes = find_targets(roots, kind)
            if kind == "browser":
                processes = [p for one in processes for p in _with_children(one)]
            sizes = [size for size in map(pss_bytes, processes) if size]
            if sum(sizes) > sum(self.largest.get(kind, ())):
                self.largest[kind] = sizes
        everything = [p for root in roots for p in _with_children(root)]
        self.most_bytes = max(self.most_bytes, sum(map(pss_bytes, everything)))


def _with_children(process: psutil.Process) -> list[psutil.Process]:
    try:
        return [process, *process.children(recursive=True)]
    except psutil.NoSuchProcess:
        return []
