"""Images and leases of one shard in a folder of a local disk.

Invariants: a file appears whole or not at all (written aside, then renamed); its name is its
checksum, verified at every read; a file that no lease names is removed when the folder is opened;
one process uses a folder at a time. A killed process loses nothing that a call here returned for.
"""

import fcntl
import os
import shutil
import struct
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from awrl_pixelstore.config import DiskConfig
from awrl_pixelstore.errors import DiskTierError
from awrl_pixelstore.headers import Shape
from awrl_pixelstore.image import Form, digest_of
from awrl_pixelstore.journal import Journal, Record
from awrl_pixelstore.keys import run_tag_of

HEADER = struct.Struct(">8sB3xIIIQ")
MAGIC = b"AWRLPX01"
FORMS: tuple[Form, ...] = ("array", "png", "jpeg", "webp")
LOCK_ATTEMPTS = 50
"""A killed predecessor can hold the lock for the moment that the kernel takes to bury it."""
LOCK_PAUSE_S = 0.1

WriteFile: TypeAlias = Callable[[Path, Sequence[bytes], bool], None]


def write_file(path: Path, parts: Sequence[bytes], is_synced: bool) -> None:
    """Create or replace a file in one step.

    Args:
        path: Where.
        parts: What, in order.
        is_synced: Whether to fsync before the rename.

    Raises:
        OSError: The disk refused; nothing is left behind.
    """
    aside = path.with_suffix(".tmp")
    try:
        with aside.open("wb", buffering=0) as file:
            for part in parts:
                view = memoryview(part)
                while view:
                    view = view[file.write(view) :]
            if is_synced:
                os.fsync(file.fileno())
        aside.replace(path)
    except OSError:
        aside.unlink(missing_ok=True)
        raise


@dataclass(frozen=True, slots=True)
class StoredImage:
    """What the folder knows of one image without reading its bytes."""

    form: Form
    """Encoding, or `array` for raw pixels."""
    shape: Shape
    """`(H, W, C)`."""
    num_bytes: int
    """Payload bytes."""


@dataclass(frozen=True, slots=True)
class Recovered:
    """What a folder held when it was opened."""

    images: Mapping[str, StoredImage]
    """By digest; each is named by a lease."""
    leases: Mapping[str, Sequence[str]]
    """Digests by trajectory; each has an image."""
    lost: Sequence[str]
    """Digests that a lease names and the folder has not."""


class DiskTier:
    """The folder of one shard. Called by the shard's tiered entries only."""

    def __init__(
        self,
        config: DiskConfig,
        *,
        run_id: str,
        shard: int,
        writer: WriteFile = write_file,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        run_tag_of(run_id)
        self.config = config
        self._writer = writer
        self._folder = Path(config.root) / run_id / f"shard-{shard}"
        self._images = self._folder / "images"
        try:
            self._images.mkdir(parents=True, exist_ok=True)
            self._lock = self._take_lock(sleep)
            self._journal = Journal(self._folder / "leases.journal")
        except OSError as error:
            raise DiskTierError(
                f"disk.root must be a writable folder that no other store uses, got "
                f"{str(self._folder)!r} ({error}). Name another folder or end the other store."
            ) from error

    def _take_lock(self, sleep: Callable[[float], None]) -> int:
        lock = os.open(self._folder / "lock", os.O_RDWR | os.O_CREAT, 0o644)
        for attempt in range(LOCK_ATTEMPTS):
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if attempt == LOCK_ATTEMPTS - 1:
                    os.close(lock)
                    raise
                sleep(LOCK_PAUSE_S)
            else:
                break
        return lock

    def recover(self) -> Recovered:
        """Return what the folder holds, and make it hold nothing else."""
        leases = self._journal.replay()
        wanted = {digest: None for digests in leases.values() for digest in digests}
        images: dict[str, StoredImage] = {}
        for path in self._images.iterdir():
            stored = _read_stored(path) if path.suffix == ".px" else None
            if stored is None or path.stem not in wanted:
                path.unlink()
            else:
                images[path.stem] = stored
        kept = {
            trajectory: [digest for digest in digests if digest in images]
            for trajectory, digests in leases.items()
        }
        kept = {trajectory: digests for trajectory, digests in kept.items() if digests}
        self._journal.rewrite(kept)
        return Recovered(images, kept, [digest for digest in wanted if digest not in images])

    def write(self, digest: str, form: Form, shape: Shape, payload: bytes) -> None:
        """Put one image on disk.

        Raises:
            OSError: The disk refused; nothing is left behind.
        """
        header = HEADER.pack(MAGIC, FORMS.index(form), *shape, len(payload))
        self._writer(self._path(digest), (header, payload), self.config.is_synced)

    def read(self, digest: str, stored: StoredImage) -> bytes | None:
        """Return the bytes of one image, or None when they are gone or damaged."""
        try:
            data = self._path(digest).read_bytes()
        except FileNotFoundError:
            return None
        payload = data[HEADER.size :]
        is_intact = digest_of(stored.form, stored.shape, payload) == digest
        return payload if is_intact else None

    def remove(self, digest: str) -> None:
        """Take one image off the disk; no error when it is not there."""
        self._path(digest).unlink(missing_ok=True)

    def append(self, record: Record) -> None:
        """Write one change of the leases.

        Raises:
            OSError: The disk refused; the journal is as before.
        """
        self._journal.append(record)

    def compact_if_long(self, leases: Callable[[], Mapping[str, Iterable[str]]]) -> None:
        """Rewrite the journal once it has become long.

        Raises:
            OSError: The disk refused; the journal is as before.
        """
        if self._journal.is_long:
            self._journal.rewrite(leases())

    def close(self, *, is_kept: bool = True) -> None:
        """Give the folder back, with or without what is in it."""
        self._journal.close()
        if not is_kept:
            shutil.rmtree(self._folder, ignore_errors=True)
        os.close(self._lock)

    def _path(self, digest: str) -> Path:
        return self._images / f"{digest}.px"


def _read_stored(path: Path) -> StoredImage | None:
    with path.open("rb") as file:
        head = file.read(HEADER.size)
        size = os.fstat(file.fileno()).st_size
    if len(head) < HEADER.size:
        return None
    magic, form, height, width, channels, num_bytes = HEADER.unpack(head)
    if magic != MAGIC or form >= len(FORMS) or size != HEADER.size + num_bytes:
        return None
    return StoredImage(FORMS[form], (height, width, channels), num_bytes)
