"""One image as it is put, hashed, shipped and given back.

Invariants: what comes back equals what was put, byte for byte and in the same form; an array that
comes back is the reader's own, so that nothing done to it (by numpy, or by torch, which ignores a
read-only flag) changes what is stored; the digest covers form, shape and payload, so that equal
digests mean equal images.

Legend: `H` height, `W` width, `C` channels.
"""

from __future__ import annotations

import hashlib
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from awrl_pixelstore.errors import InvalidImage

Image: TypeAlias = bytes | NDArray[np.uint8]
"""Encoded PNG, JPEG or WebP bytes, or a uint8 array `[H, W, C]`."""
Shape: TypeAlias = tuple[int, int, int]

DIGEST_CHARS = 32
"""128 bits of SHA-256: no chance collision below 10^15 images, and the key stays short."""
FIRST_BYTES = 16
"""As far as `pack` looks into encoded bytes."""
JPEG_MARKERS = range(0xC0, 0xFF)
"""Second bytes that the first segment of a JPEG file can have."""
WEBP_CHUNKS = (b"VP8 ", b"VP8L", b"VP8X")


class PackedImage(NamedTuple):
    """A validated image, ready to be shipped or stored."""

    digest: str
    """Content address, `DIGEST_CHARS` hex characters."""
    shape: Shape | None
    """`(H, W, C)` of an array; None for encoded bytes."""
    payload: bytes
    """Encoded bytes, or the pixels of an array in C order."""


def pack(data: Image) -> PackedImage:
    """Return `data` validated and hashed, in time that does not depend on what is wrong with it.

    Raises:
        TypeError: `data` is neither bytes nor an array (a key, say).
        InvalidImage: Wrong dtype or shape, or bytes that do not begin like an image.
    """
    if isinstance(data, (bytes, bytearray, memoryview)):
        payload, shape = bytes(data), None
        if not _begins_like_an_image(payload[:FIRST_BYTES]):
            raise InvalidImage(
                f"data must be PNG, JPEG or WebP bytes, got {len(payload)} bytes that start with "
                f"{payload[:FIRST_BYTES]!r}. Put pixels as a uint8 array [H, W, C] instead."
            )
    elif isinstance(data, np.ndarray):  # pyright: ignore[reportUnnecessaryIsInstance]
        shape = _shape_of(data)
        payload = data.tobytes()
    else:
        raise TypeError(
            f"data must be encoded bytes or a uint8 array [H, W, C], got {type(data).__name__}. "
            "A key is a reference: call get_many() for its pixels."
        )
    return PackedImage(digest_of(shape, payload), shape, payload)


def unpack(image: PackedImage) -> Image:
    """Return an image as it was put: the same encoded bytes, or a copy of the array."""
    if image.shape is None:
        return image.payload
    return np.frombuffer(image.payload, np.uint8).reshape(image.shape).copy()


def digest_of(shape: Shape | None, payload: bytes) -> str:
    """Return the content address of one image, `DIGEST_CHARS` lower-case hex characters."""
    form = "encoded" if shape is None else "{}x{}x{}".format(*shape)
    digest = hashlib.sha256(f"{form}:".encode())
    digest.update(payload)
    return digest.hexdigest()[:DIGEST_CHARS]


def _shape_of(data: NDArray[np.uint8]) -> Shape:
    if data.dtype != np.uint8:
        raise InvalidImage(
            f"array dtype must be uint8, got {data.dtype}. Store pixels, not float patches."
        )
    if data.ndim != 3 or 0 in data.shape:
        raise InvalidImage(f"array shape must be [H, W, C], got {data.shape}. Add the missing dim.")
    height, width, channels = data.shape
    return height, width, channels


def _begins_like_an_image(head: bytes) -> bool:
    if len(head) < FIRST_BYTES:
        return False
    if head.startswith(b"\x89PNG\r\n\x1a\n"):
        return head[12:16] == b"IHDR"
    if head.startswith(b"\xff\xd8\xff"):
        return head[3] in JPEG_MARKERS
    return head.startswith(b"RIFF") and head[8:12] == b"WEBP" and head[12:16] in WEBP_CHUNKS
