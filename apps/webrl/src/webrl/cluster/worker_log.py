"""The logs of workers and servers: what a process writes, in a file of the run's folder.

Ray keeps the output of its workers in folders of its own, on the node where each of them ran.
"""

from __future__ import annotations

import faulthandler
import logging
import os
import sys
from pathlib import Path

from webrl.process_log import configure_log

WORKER_LOG = "WEBRL_WORKER_LOG"
"""Environment variable with the file's path; without it the output stays where it is."""

LOG_TAIL_LINES = 25
"""Lines of a log that an error carries."""

_STANDARD = (1, 2)
"""Descriptors of standard output and error."""


def open_worker_log() -> None:
    """Write this process's output, its log and the stacks of a crash to the file that is named."""
    path = os.environ.get(WORKER_LOG)
    if not path:
        return
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    for standard in _STANDARD:
        os.dup2(descriptor, standard)
    os.close(descriptor)
    faulthandler.enable(file=sys.__stderr__ or sys.stderr)
    configure_log(logging.StreamHandler())


def worker_log_folder() -> Path | None:
    """Return the folder of this process's log, None where its output stays where it is."""
    path = os.environ.get(WORKER_LOG)
    return Path(path).parent if path else None


def log_tail(path: Path, num_lines: int = LOG_TAIL_LINES) -> str:
    """Return the last lines of a log file, or a note that there is none."""
    try:
        lines = path.read_text(errors="replace").splitlines()
    except OSError:
        return f"(no log at {path})"
    return "\n".join(lines[-num_lines:])
