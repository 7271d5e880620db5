"""Images and leases of one shard in a folder of a local disk: a file per image, rows in SQLite.

Invariants: a put is on disk, image and lease together, when it returns, or it left nothing behind,
so a killed process loses nothing: the rows are written last, and a file that no row names is
removed when the folder is opened. Bytes are checked against the digest in their key at every read.
One process uses a folder at a time. Opening a folder and reading from it need no room on the disk,
and a removal makes its own, so a full disk keeps nobody from what is stored, or from releasing it.

SQLite is in WAL mode with `synchronous=NORMAL`, and no file is synced: what a call wrote survives
the end of the process at once; a power cut leaves a sound database that may lack the last puts, and
files that a read finds to be whole or names as lost. The lock is exclusive, which also spares SQLite
its shared index of the log, a file that it could not create on a full disk.
"""

from __future__ import annotations

import errno
import logging
import shutil
import sqlite3
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

from awrl_pixelstore.image import PackedImage, digest_of
from awrl_pixelstore.keys import parse_key

logger = logging.getLogger(__name__)

DATABASE = "leases.sqlite"
LOCK_WAIT_S = 5.0
"""A killed predecessor can hold the lock for the moment that the kernel takes to bury it."""
SET_UP = """
    PRAGMA locking_mode = EXCLUSIVE;
    PRAGMA journal_mode = WAL;
    PRAGMA synchronous = NORMAL;
    CREATE TABLE IF NOT EXISTS image (
        key TEXT PRIMARY KEY, num_bytes INTEGER, height INTEGER, width INTEGER, channels INTEGER
    ) WITHOUT ROWID;
    CREATE TABLE IF NOT EXISTS lease (
        trajectory_id TEXT, key TEXT, PRIMARY KEY (trajectory_id, key)
    ) WITHOUT ROWID;
"""
DAMAGED = frozenset({sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB})
NO_ROOM = frozenset({sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR_WRITE})
"""A full file system, and a refused write, which is how a full quota shows in SQLite."""
NO_ROOM_OF_FILES = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})


def connect(path: Path) -> sqlite3.Connection:
    """Return a connection to a database, which is made when it is not there."""
    # An actor is built in one thread and called in another, never in two at a time.
    return sqlite3.connect(path, timeout=LOCK_WAIT_S, check_same_thread=False)


class Recovered(NamedTuple):
    """What a folder held when it was opened."""

    sizes: Mapping[str, int]
    """Payload bytes of each image that a lease names, by key."""
    leases: list[tuple[str, str]]
    """Pairs of trajectory and key."""


class DiskTier:
    """The folder of one shard. Called by the core only.

    Every method may raise `OSError` or `sqlite3.Error`; so does the constructor, when the folder
    can't be used or another process uses it.

    Args:
        connect: Opens the database.
    """

    def __init__(
        self, folder: Path, connect: Callable[[Path], sqlite3.Connection] = connect
    ) -> None:
        self._folder = folder
        self._images = folder / "images"
        self._connect = connect
        self._images.mkdir(parents=True, exist_ok=True)
        self._db = self._open()
        self.recovered = self._recover()

    def _open(self) -> sqlite3.Connection:
        """Return the database; one that is damaged is replaced by an empty one."""
        path = self._folder / DATABASE
        while True:
            db = self._connect(path)
            try:
                db.executescript(SET_UP)
                (verdict,) = db.execute("PRAGMA quick_check(1)").fetchone()
            except sqlite3.DatabaseError as error:
                db.close()
                if getattr(error, "sqlite_errorcode", 0) & 0xFF not in DAMAGED:
                    raise
                verdict = str(error)
            if verdict == "ok":
                return db
            db.close()
            logger.warning("%s is damaged, and all images there are lost: %s", path, verdict)
            for file in self._folder.glob(DATABASE + "*"):
                file.unlink()

    def _recover(self) -> Recovered:
        leases = self._db.execute("SELECT trajectory_id, key FROM lease").fetchall()
        leased = {key for _, key in leases}
        noted = dict(self._db.execute("SELECT key, num_bytes FROM image"))
        files = {path.name: path for path in self._images.iterdir()}
        sizes = {key: noted[key] for key in leased & noted.keys() & files.keys()}
        for name in files.keys() - sizes.keys():
            try:
                files[name].unlink()
            except OSError as error:  # a folder, say: it is in nobody's way
                logger.warning("%s is no image and stays: %s", files[name], error)
        return Recovered(sizes, leases)

    def add(
        self, trajectory_id: str, keys: Iterable[str], images: Mapping[str, PackedImage]
    ) -> None:
        """Note what a trajectory holds from now on, and store the new images; all of it or nothing.

        Args:
            keys: All that it holds by this put.
            images: Those of them that are not stored yet.
        """
        rows = [
            (key, len(image.payload), *(image.shape or (None, None, None)))
            for key, image in images.items()
        ]
        try:
            for key, image in images.items():
                (self._images / key).write_bytes(image.payload)
            with self._db:
                self._db.executemany("INSERT OR REPLACE INTO image VALUES (?, ?, ?, ?, ?)", rows)
                self._db.executemany(
                    "INSERT OR IGNORE INTO lease VALUES (?, ?)",
                    [(trajectory_id, key) for key in keys],
                )
        except (OSError, sqlite3.Error):
            self._unlink(images)
            raise

    def read(self, key: str) -> PackedImage | None:
        """Return one image, or None when it is gone or damaged."""
        query = "SELECT height, width, channels FROM image WHERE key = ?"
        sides = self._db.execute(query, (key,)).fetchone()
        try:
            payload = (self._images / key).read_bytes()
        except FileNotFoundError:
            return None
        if sides is None:
            return None
        shape = None if sides[0] is None else sides
        digest = parse_key(key).digest
        is_intact = digest_of(shape, payload) == digest
        return PackedImage(digest, shape, payload) if is_intact else None

    def remove(self, trajectory_ids: Iterable[str], keys: Iterable[str]) -> None:
        """Forget leases and images; no error for those that are not there."""
        names, rows = [(name,) for name in trajectory_ids], [(key,) for key in keys]
        try:
            self._forget(names, rows)
        except sqlite3.Error:
            self._unlink(keys)
            self._forget(names, rows)  # There may be room for it now.
        else:
            self._unlink(keys)

    def keep_only(self, leases: Iterable[tuple[str, str]]) -> None:
        """Forget every lease but these, and every image that none of them names."""
        with self._db:
            noted = set(self._db.execute("SELECT trajectory_id, key FROM lease"))
            self._db.executemany(
                "DELETE FROM lease WHERE trajectory_id = ? AND key = ?", noted.difference(leases)
            )
            self._db.execute("DELETE FROM image WHERE key NOT IN (SELECT key FROM lease)")

    def close(self, *, is_kept: bool = True) -> None:
        """Give the folder back, with or without what is in it."""
        self._db.close()
        if not is_kept:
            shutil.rmtree(self._folder, ignore_errors=True)

    def _forget(self, names: list[tuple[str]], rows: list[tuple[str]]) -> None:
        with self._db:
            self._db.executemany("DELETE FROM lease WHERE trajectory_id = ?", names)
            self._db.executemany("DELETE FROM lease WHERE key = ?", rows)
            self._db.executemany("DELETE FROM image WHERE key = ?", rows)

    def _unlink(self, keys: Iterable[str]) -> None:
        for key in keys:
            (self._images / key).unlink(missing_ok=True)


def is_no_room(error: OSError | sqlite3.Error) -> bool:
    """Return whether an error says that the disk takes no more."""
    if isinstance(error, OSError):
        return error.errno in NO_ROOM_OF_FILES
    return getattr(error, "sqlite_errorcode", None) in NO_ROOM
