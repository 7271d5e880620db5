"""The end of a server's log, for the error that tells of its death."""

from __future__ import annotations

from pathlib import Path

NUM_LINES = 25
"""Lines that an error carries: a Python traceback with its last frames."""

_MAX_BYTES = 16_384
"""Read from the end of the file; a log of a long run is not read whole."""


def tail_note(log_path: Path | None) -> str:
    """Return the last lines of a log with where they are from, or where to look when there is none."""
    if log_path is None:
        return "Read the server's log."
    try:
        with log_path.open("rb") as log:
            log.seek(max(0, log_path.stat().st_size - _MAX_BYTES))
            lines = log.read().decode(errors="replace").splitlines()
    except OSError as error:
        return f"Its log {log_path} cannot be read: {error.strerror}."
    return f"The end of {log_path}:\n" + "\n".join(lines[-NUM_LINES:])
