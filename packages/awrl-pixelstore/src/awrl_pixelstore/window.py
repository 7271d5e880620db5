"""Memory that a client shares with the shard of its own node, so that a screenshot makes no object.

A client writes what it puts into an anonymous file, and finds there what it gets; the call itself
says only where that file is. A shard reaches it as `/proc/<process>/fd/<number>`: no path, so
nothing is left when a process is killed. Where that fails (another node, container or user), and for
large batches, Ray carries the bytes.

Invariants: a window serves one call at a time, and another only when the first was answered; after
a timeout, a cancelled task or a dead shard it is never used again, so that a shard that comes to the
call late neither sees nor touches what belongs to another; a shard takes a window by its unique name
only, so that a file number in new use is never mistaken for it.
"""

import errno
import mmap
import os
import uuid
import weakref
from collections.abc import Generator, Sequence
from contextlib import contextmanager

import numpy as np
from numpy.typing import NDArray

from awrl_pixelstore.image import DIGEST_CHARS, PackedImage
from awrl_pixelstore.wire import Fetched, InWindow, WindowAddress, WindowSlice

SMALLEST_BYTES = 96 * 2**10
"""Ray carries up to 100 KiB within the call itself, which no window betters."""
LARGEST_BYTES = 8 * 2**20
"""Bounds what a client keeps. Filling fresh pages costs more than Ray's own way from here on."""
FILE_BYTES = LARGEST_BYTES + 2**16
"""Length of a window's file: payload, and digests in front of it."""
MOST_IMAGES = (FILE_BYTES - LARGEST_BYTES) // DIGEST_CHARS
"""Images in one window: as many as have room for their digests."""
KEPT_WINDOWS = 2
"""Free windows that a client keeps: their pages are there already, which halves the time of a put."""


class Window:
    """An anonymous file of this process, closed with the last reference to it.

    Args:
        process: Id under which shards look for the file; that of this process.

    Raises:
        OSError: No file can be made.
    """

    def __init__(self, process: int) -> None:
        name = f"awrl-pixelstore-{uuid.uuid4().hex}"
        self._file = os.memfd_create(name, os.MFD_CLOEXEC)
        self.address = WindowAddress(process, self._file, name)
        self.close = weakref.finalize(self, os.close, self._file)
        os.ftruncate(self._file, FILE_BYTES)
        # Copies through a mapping take a third of the time of reads and writes; pages come with use.
        self._memory = np.frombuffer(mmap.mmap(self._file, FILE_BYTES), np.uint8)
        self._num_allocated = 0

    def load(self, images: Sequence[PackedImage]) -> InWindow:
        """Write images here, not their digests, and return what tells a shard so.

        Raises:
            OSError: There is no memory for them.
        """
        start = DIGEST_CHARS * len(images)
        parts = _parts([image.payload for image in images], start)
        stop = start + sum(part.num_bytes for part in parts)
        if stop > self._num_allocated:
            # Where memory is short this is an error; touching a mapping would be a signal.
            os.posix_fallocate(self._file, 0, stop)
            self._num_allocated = stop
        self._memory[:start] = 0
        for image, part in zip(images, parts, strict=True):
            self._memory[_span(part)] = image.payload
        placed = zip(images, parts, strict=True)
        return InWindow(
            self.address, tuple((image.form, image.shape, part) for image, part in placed)
        )

    def sign(self, images: Sequence[PackedImage]) -> None:
        """Write the digests of what was loaded; the call is under way while they are computed."""
        head = "".join(image.digest for image in images).encode()
        os.pwrite(self._file, head, 0)

    def unload(self, fetched: Fetched) -> Fetched:
        """Return what a shard brought, with the bytes that it left here."""
        images = tuple(
            image._replace(payload=self._memory[_span(image.payload)].tobytes())
            if isinstance(image.payload, WindowSlice)
            else image
            for image in fetched.images
        )
        return fetched._replace(images=images)


class WindowPool:
    """The windows of one client.

    Args:
        process: Id under which shards look for them; None takes that of this process.
    """

    def __init__(self, process: int | None = None) -> None:
        self._process = process
        self._free: list[Window] = []

    def take(self) -> Window | None:
        """Return a window that no other call has; None when the system has none to give."""
        if self._free:
            return self._free.pop()
        try:
            return Window(os.getpid() if self._process is None else self._process)
        except OSError:
            return None

    def give_back(self, window: Window) -> None:
        """Let a later call have a window whose call was answered."""
        if len(self._free) < KEPT_WINDOWS:
            self._free.append(window)
        else:
            window.close()


def is_worth_a_window(sizes: Sequence[int]) -> bool:
    """Return whether payloads of so many bytes go by a window rather than by Ray."""
    return SMALLEST_BYTES <= sum(sizes) <= LARGEST_BYTES and len(sizes) <= MOST_IMAGES


def images_in(batch: InWindow) -> list[PackedImage]:
    """Return the images that a client of this node has put into a window, copied out of it.

    Raises:
        OSError: The window can't be reached, or is gone.
    """
    images: list[PackedImage] = []
    with _opened(batch.address) as file:
        for number, (form, shape, part) in enumerate(batch.images):
            payload = np.frombuffer(_read(file, part), np.uint8)
            digest = os.pread(file, DIGEST_CHARS, DIGEST_CHARS * number)
            # The client zeroes the head before the call: what has no zero left is the whole digest.
            # One that is not there yet is computed here rather than waited for.
            known = None if 0 in digest else digest.decode()
            images.append(PackedImage(form, shape, payload, known))
    return images


def leave_in(address: WindowAddress, fetched: Fetched) -> Fetched:
    """Return an answer whose payload lies in the asking client's window, where that is possible."""
    payloads = [image.payload for image in fetched.images if isinstance(image.payload, np.ndarray)]
    if not is_worth_a_window([payload.nbytes for payload in payloads]):
        return fetched
    try:
        with _opened(address) as file:
            parts = _parts(payloads, 0)
            for payload, part in zip(payloads, parts, strict=True):
                _write(file, payload, part)
    except OSError:
        return fetched
    images = [
        image._replace(payload=part) for image, part in zip(fetched.images, parts, strict=True)
    ]
    return fetched._replace(images=tuple(images))


@contextmanager
def _opened(address: WindowAddress) -> Generator[int]:
    path = f"/proc/{address.process}/fd/{address.number}"
    _require_name(path, address.name)
    file = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        # The number may have changed hands between the look and the opening.
        _require_name(f"/proc/self/fd/{file}", address.name)
        yield file
    finally:
        os.close(file)


def _require_name(path: str, name: str) -> None:
    if os.readlink(path).split(" ")[0] != f"/memfd:{name}":
        raise FileNotFoundError(errno.ENOENT, "another file has this number now", path)


def _parts(payloads: Sequence[NDArray[np.uint8]], start: int) -> tuple[WindowSlice, ...]:
    """Return where payloads lie one behind the other."""
    parts: list[WindowSlice] = []
    for payload in payloads:
        parts.append(WindowSlice(start, payload.nbytes))
        start += payload.nbytes
    return tuple(parts)


def _span(part: WindowSlice) -> slice:
    return slice(part.start, part.start + part.num_bytes)


def _write(file: int, payload: NDArray[np.uint8], part: WindowSlice) -> None:
    if os.pwrite(file, payload.data, part.start) != part.num_bytes:
        raise OSError(errno.ENOSPC, "no memory for the window")


def _read(file: int, part: WindowSlice) -> bytes:
    payload = os.pread(file, part.num_bytes, part.start)
    if len(payload) != part.num_bytes:
        raise OSError(errno.EIO, "the window is shorter than it was said to be")
    return payload
