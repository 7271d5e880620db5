"""Runs every full-scale measurement of pools and learning on one host of many cores, many at a time.

    python benchmarks/grid.py OUT --cores 24 --cores-per-run 2      # everything, most important first
    python benchmarks/grid.py OUT --list                            # what that is, and its limits
    python benchmarks/grid.py OUT --scale smoke --cores 2 --cores-per-run 1 --only 'pools-8-*'
    python benchmarks/grid.py OUT --only 'pools-16-*' 'pools-*'     # some, in the order of the patterns

A cell is one run of the whole system: a process with cores, a folder for temporary files (hence a Ray
cluster and browsers) and a log of its own. Cells end alone: at their limit, or with an error that
their `cell.json` holds. After each one OUT/grid.tar.gz is written anew, with what
`python benchmarks/collect.py` needs, so the whole may be killed at any time; a second start goes on
with the cells that are not there yet. Needs what `webrl train` needs, no network and no GPU.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import fnmatch
import json
import os
import platform
import shutil
import signal
import subprocess
import sys
import tarfile
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
from cells import SCALES, Cell, cells

START_GAP_S = 1.5
"""Between two starts: a dozen Ray clusters that start in the same second miss their deadlines."""
GRACE_S = 20.0
"""Between SIGINT, after which a run saves and stops, and SIGKILL."""
KEPT = ("metrics.jsonl", "evaluations.jsonl", "config.toml")
"""Of each run's folder; the rest (checkpoints, samples, policies) stays behind."""
KEPT_OF_POOLS = ("episodes.jsonl", "batches.jsonl")
"""What a simulation of the run needs too; learning runs have tens of thousands of episodes."""
LOG_TAIL_BYTES = 20_000
PR_SET_PDEATHSIG = 1


@dataclass(kw_only=True, slots=True)
class Running:
    """A cell that runs."""

    cell: Cell
    process: subprocess.Popen[bytes]
    cores: list[int]
    folder: Path
    scratch: Path
    started_s: float
    load: list[float] = field(default_factory=list[float])
    is_told: bool = False
    """Whether it was interrupted; a second SIGINT would not let it save."""


class Grid:
    """Starts cells on free cores and keeps what they leave."""

    def __init__(self, out: Path, work: Path, num_cores: int, cores_per_run: int) -> None:
        """Take the last cores of those that this process may use.

        Args:
            out: Where the archive goes.
            work: Folder of the cells.
            num_cores: Cores to use.
            cores_per_run: Cores of a cell of weight 1.
        """
        self.out, self.work, self.cores_per_run = out, work, cores_per_run
        self.num_cores = num_cores
        self.free = sorted(os.sched_getaffinity(0))[-num_cores:]
        self.running: list[Running] = []
        self.scratch = Path(tempfile.mkdtemp(prefix="g-", dir="/tmp"))
        """Short: Ray's sockets lie below it, and their paths may have 107 characters."""

    def run(self, waiting: list[Cell]) -> None:
        """Run all cells; those that a former start has finished are left out."""
        waiting = [cell for cell in waiting if not (self.work / cell.name / "cell.json").exists()]
        try:
            while waiting or self.running:
                for one in list(self.running):
                    self._look(one)
                # In order: a cell of more cores would wait for ever while smaller ones take each that frees.
                if waiting and waiting[0].weight * self.cores_per_run <= len(self.free):
                    self._start(waiting.pop(0))
                time.sleep(START_GAP_S)
        finally:
            for one in self.running:
                self._end(one, signal.SIGKILL)
            shutil.rmtree(self.scratch, ignore_errors=True)

    def _start(self, cell: Cell) -> None:
        count = cell.weight * self.cores_per_run
        cores, self.free = self.free[:count], self.free[count:]
        folder = self.work / cell.name
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        scratch = Path(tempfile.mkdtemp(prefix="c", dir=self.scratch))
        run = scratch / "run"
        words = [
            word.replace("{run}", str(run)).replace("{out}", str(folder)) for word in cell.command
        ]
        environment = os.environ | {
            "TMPDIR": str(scratch),
            "CUDA_VISIBLE_DEVICES": "",
            "OMP_NUM_THREADS": "1",
            "PYTHONUNBUFFERED": "1",
        }
        environment.pop("RAY_ADDRESS", None)
        with (folder / "log.txt").open("wb") as log:
            process = subprocess.Popen(
                [sys.executable, *words],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=environment,
                start_new_session=True,
                preexec_fn=lambda: _confine(cores),
            )
        self.running.append(
            Running(
                cell=cell,
                process=process,
                cores=cores,
                folder=folder,
                scratch=scratch,
                started_s=time.monotonic(),
            )
        )
        print(f"{time.strftime('%T')} start {cell.name} on cores {cores}", flush=True)

    def _look(self, one: Running) -> None:
        seconds = time.monotonic() - one.started_s
        one.load.append(os.getloadavg()[0])
        if one.process.poll() is None:
            if seconds > one.cell.limit_s + GRACE_S:
                self._end(one, signal.SIGKILL)
            elif seconds > one.cell.limit_s and not one.is_told:
                one.is_told = True
                self._end(one, signal.SIGINT)
            return
        self._end(one, signal.SIGKILL)  # what outlived its run
        self._keep(one, seconds)
        shutil.rmtree(one.scratch, ignore_errors=True)
        self.running.remove(one)
        self.free += one.cores
        self._pack()

    def _end(self, one: Running, number: int) -> None:
        """Signal the run; with SIGKILL also every process that was started from it."""
        if number != signal.SIGKILL:
            with contextlib.suppress(ProcessLookupError):
                one.process.send_signal(number)
            return
        # As bytes: a process that sets its title, as Ray's do, overwrites the front of this block.
        mark = f"TMPDIR={one.scratch}\0".encode()
        for path in Path("/proc").glob("[0-9]*/environ"):
            with contextlib.suppress(OSError):
                if mark in path.read_bytes():
                    os.kill(int(path.parent.name), signal.SIGKILL)

    def _keep(self, one: Running, seconds: float) -> None:
        """Copy what is worth keeping out of the run and write `cell.json`, which says it is over."""
        for root in [one.scratch / "run", *sorted((one.scratch / "run").glob("mode-*"))]:
            is_pool = one.cell.name.startswith("pools-")
            for name in (*KEPT, *(KEPT_OF_POOLS if is_pool else ())):
                if (root / name).is_file():
                    shutil.copy(root / name, one.folder / name)
        code = one.process.returncode
        is_late = seconds > one.cell.limit_s
        status = "limit" if is_late else "ok" if code == 0 else "failed"
        log = (one.folder / "log.txt").read_bytes()[-LOG_TAIL_BYTES:]
        (one.folder / "log.txt").write_bytes(log)
        described: dict[str, Any] = {
            "name": one.cell.name,
            "status": status,
            "exit_code": code,
            "seconds": round(seconds, 1),
            "command": ["python", *one.cell.command],
            "cores": one.cores,
            "host": host() | {"cores_in_use": self.num_cores},
            "load_average": round(sum(one.load) / len(one.load), 1),
            "cells_beside": len(self.running) - 1,
            "date": time.strftime("%Y-%m-%d"),
        }
        if status != "ok":
            described["error"] = log[-1500:].decode(errors="replace")
        (one.folder / "cell.json").write_text(json.dumps(described, indent=1) + "\n")
        print(f"{time.strftime('%T')} {status} {one.cell.name} after {seconds:.0f} s", flush=True)

    def _pack(self) -> None:
        partial = self.out / ".grid.tar.gz"
        with tarfile.open(partial, "w:gz") as archive:
            for folder in sorted(self.work.iterdir()):
                if (folder / "cell.json").exists():
                    archive.add(folder, arcname=folder.name)
        partial.rename(self.out / "grid.tar.gz")


def _confine(cores: list[int]) -> None:
    """In the child: these cores only, and death with the grid."""
    os.sched_setaffinity(0, cores)
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def _leave(*_: object) -> None:
    """End, once: `timeout` signals a process and its group."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    sys.exit(143)


def host() -> dict[str, Any]:
    """Return what the figures depend on."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    models = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return {
        "cpu": models[0] if models else platform.machine(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_gib": round(psutil.virtual_memory().total / 2**30),
        "python": platform.python_version(),
    }


def main() -> None:
    """Run the grid."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--cores", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--cores-per-run", type=int, default=2)
    parser.add_argument(
        "--only", nargs="+", default=["*"], metavar="PATTERN", help="of cells' names, in this order"
    )
    parser.add_argument("--scale", choices=sorted(SCALES), default="full")
    parser.add_argument("--list", action="store_true", help="print the cells and end")
    arguments = parser.parse_args()
    known = {cell.name: cell for cell in cells(arguments.scale)}
    chosen = {n: c for p in arguments.only for n, c in known.items() if fnmatch.fnmatch(n, p)}
    if not chosen:
        parser.error(f"--only must match a cell, got {arguments.only}. --list shows their names.")
    if arguments.list:
        for cell in chosen.values():
            print(f"{cell.name:<34}{cell.limit_s:>6.0f} s  weight {cell.weight}")
        return
    needed = max(cell.weight for cell in chosen.values()) * arguments.cores_per_run
    if needed > arguments.cores:
        parser.error(
            f"--cores must be at least {needed}, for the largest of these cells, got {arguments.cores}. "
            "Give more, fewer --cores-per-run, or other cells by --only."
        )
    work = arguments.out / "cells"
    work.mkdir(parents=True, exist_ok=True)
    signal.signal(signal.SIGTERM, _leave)
    Grid(arguments.out, work, arguments.cores, arguments.cores_per_run).run([*chosen.values()])


if __name__ == "__main__":
    main()
