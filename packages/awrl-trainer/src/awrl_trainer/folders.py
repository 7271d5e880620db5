"""Folders that appear as a whole or not at all: checkpoints, snapshots, and others alike.

Invariants:

* A folder is filled under a hidden name, marked, then renamed: readers never see half of one. One of
  the same name makes room under a name that readers understand (`retired_NAME`) until the new one is
  in its place, so a complete one stays a complete one at every moment.
* A folder is removed under a hidden name too: a removal that is cut short leaves no half of one.
* Hidden names that nobody fills any more are removed before the next write below the same root.
  A writer holds a shared lock of the root, which the kernel takes from a process that dies; who gets
  the exclusive lock is alone.
* Retention never removes what was just written, nor the newest, nor what is not complete.
* Newest means the largest version, compared as a number.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import logging
import os
import re
import secrets
import shutil
import zlib
from collections.abc import Generator
from pathlib import Path

logger = logging.getLogger(__name__)

COMPLETE_MARK = ".save_complete"
"""Name of the file whose presence says that all others are whole."""

_NAME = re.compile(r"^[A-Za-z_]*?[_-]?(\d+)$")
_CHECKSUM_BYTES = 2**26
"""Larger files get no checksum: to read them again costs as much as to write them."""
_HIDDEN = re.compile(r"^\.(writing|removing)_.+_[0-9a-f]{8}$|^\.writing_\d+(_\d+)?$")
"""Names of folders that are written or removed, those of earlier releases too."""
_RETIRED = "retired_"


@contextlib.contextmanager
def new_folder(target: Path, *, is_marked: bool = True) -> Generator[Path]:
    """Yield a hidden folder to fill; after the block it stands at `target` as a whole.

    Nothing is left of it when the block fails.

    Args:
        target: Where the folder shall be; one that is there is replaced. Its parent is made.
        is_marked: Whether the folder gets the mark of a complete checkpoint.

    Raises:
        OSError: The disk refused.
    """
    root = target.parent
    root.mkdir(parents=True, exist_ok=True)
    with _writing_below(root):
        hidden = root / f".writing_{target.name}_{secrets.token_hex(4)}"
        hidden.mkdir()
        try:
            yield hidden
            if is_marked:
                mark_complete(hidden)
            _put(hidden, target)
        finally:
            shutil.rmtree(hidden, ignore_errors=True)


def complete_checkpoints(root: Path | str) -> list[Path]:
    """Return all complete checkpoints below a directory, oldest first.

    Directory names end in a number, which orders them: `version_7`, `step_10000`, `125`.

    Args:
        root: The directory; a missing one holds none.
    """
    return [path for path in _numbered(Path(root)) if is_complete(path)]


def incomplete_checkpoints(root: Path | str) -> dict[Path, str]:
    """Return what each incomplete checkpoint behind the newest complete one lacks.

    Args:
        root: The directory; a missing one holds none.
    """
    lacks: dict[Path, str] = {}
    for path in reversed(_numbered(Path(root))):
        lack = why_incomplete(path)
        if lack is None:
            break
        lacks[path] = lack
    return lacks


def latest_complete_checkpoint(root: Path | str) -> Path | None:
    """Return the complete checkpoint with the largest number, None when there is none."""
    found = complete_checkpoints(root)
    return found[-1] if found else None


def is_complete(path: Path) -> bool:
    """Return whether a checkpoint carries the mark and every file that it lists."""
    return why_incomplete(path) is None


def why_incomplete(path: Path) -> str | None:
    """Return what a checkpoint lacks; None when it carries the mark and every file that it lists."""
    if not path.is_dir():
        return "no such folder"
    try:
        sizes: dict[str, int] = json.loads((path / COMPLETE_MARK).read_bytes())["files"]
        for name, size in sizes.items():
            if (found := (path / name).stat().st_size) != size:
                return f"{name} has {found} bytes instead of {size}"
    except FileNotFoundError as error:
        return f"no file {Path(error.filename).name}"
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        return f"{COMPLETE_MARK} can't be read ({type(error).__name__}: {error})"
    return None


def mark_complete(path: Path) -> None:
    """Write the mark of a finished checkpoint by rename: size and checksum of its files."""
    files = {
        str(entry.relative_to(path)): entry.stat().st_size
        for entry in sorted(path.rglob("*"))
        if entry.is_file() and entry.name != COMPLETE_MARK
    }
    checksums = {
        name: _checksum(path / name) for name, size in files.items() if size <= _CHECKSUM_BYTES
    }
    draft = path / f"{COMPLETE_MARK}.draft"
    with draft.open("w") as stream:
        json.dump({"files": files, "crc32": checksums}, stream)
        stream.flush()
        os.fsync(stream.fileno())
    draft.rename(path / COMPLETE_MARK)


def why_damaged(path: Path) -> str | None:
    """Return which of a complete checkpoint's smaller files is not as it was written, if any.

    Raises:
        OSError: A file can't be read.
    """
    checksums: dict[str, int] = json.loads((path / COMPLETE_MARK).read_bytes()).get("crc32", {})
    for name, checksum in checksums.items():
        if _checksum(path / name) != checksum:
            return f"{name} has another checksum than when it was written"
    return None


def check_keep(keep: int | None) -> None:
    """Check how many complete checkpoints shall stay.

    Raises:
        ValueError: It is 0 or not a whole number.
    """
    if keep is not None and (type(keep) is not int or keep == 0):
        raise ValueError(
            f"keep must be a whole number >= 1, negative or None, got {keep!r}. Keep at least the"
            " newest; a negative number and None keep all."
        )


def remove_old(written: Path, keep: int | None) -> None:
    """Remove all but the newest `keep` complete checkpoints beside the one just written.

    Args:
        written: It stays, whatever its number is.
        keep: None or a negative number keeps all.
    """
    if keep is None or keep < 0:
        return
    for path in complete_checkpoints(written.parent)[:-keep]:
        if path != written:
            _remove(path)


def _checksum(path: Path) -> int:
    return zlib.crc32(path.read_bytes())


def _numbered(root: Path) -> list[Path]:
    if not root.is_dir():
        return []
    found = [(int(match[1]), path) for path in root.iterdir() if (match := _NAME.match(path.name))]
    return [path for _, path in sorted(found)]


def _put(hidden: Path, target: Path) -> None:
    retired = target.with_name(f"{_RETIRED}{target.name}")
    if is_complete(target):
        _remove(retired)
        target.rename(retired)
    else:
        # The one that was retired may be the only complete one: it stays until the end.
        shutil.rmtree(target, ignore_errors=True)
    hidden.rename(target)
    _remove(retired)


def _remove(path: Path) -> None:
    doomed = path.with_name(f".removing_{path.name}_{secrets.token_hex(4)}")
    try:
        path.rename(doomed)
    except FileNotFoundError:
        return
    except OSError as error:
        logger.warning("%s could not be removed: %s", path, error)
    shutil.rmtree(doomed, ignore_errors=True)


@contextlib.contextmanager
def _writing_below(root: Path) -> Generator[None]:
    """Be known as a living writer below a folder, once the left-overs of dead ones are gone."""
    descriptor = os.open(root, os.O_RDONLY)
    try:
        # Refused when somebody else is writing, or when the file system has no locks.
        with contextlib.suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            _remove_left_overs(root)
        with contextlib.suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_SH)
        yield
    finally:
        os.close(descriptor)


def _remove_left_overs(root: Path) -> None:
    for path in sorted(root.iterdir()):
        is_replaced = path.name.startswith(_RETIRED) and is_complete(
            path.with_name(path.name.removeprefix(_RETIRED))
        )
        if is_replaced:
            _remove(path)
        elif _HIDDEN.match(path.name):
            shutil.rmtree(path, ignore_errors=True)
