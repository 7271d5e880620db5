"""One image as it is put, hashed, shipped and given back.

Invariants: what comes back equals what was put, byte for byte and in the same form; arrays that
come back rest on an immutable `bytes` object, so that no reader can change what is stored; the
digest covers form, shape and payload, so that equal digests mean equal images.

Legend: `H` height, `W` width, `C` channels.
"""

import hashlib
from dataclasses import dataclass
from typing import Literal, NamedTuple, TypeAlias, cast

import numpy as np
from numpy.typing import NDArray

from awrl_pixelstore.errors import InvalidImage
from awrl_pixelstore.headers import EncodedForm, Shape, read_header

Form: TypeAlias = EncodedForm | Literal["array"]
Image: TypeAlias = bytes | NDArray[np.uint8]
"""Encoded PNG, JPEG or WebP bytes, or a uint8 array `[H, W, C]`."""

DIGEST_CHARS = 32
"""128 bits of SHA-256: no chance collision below 10^15 images, and the key stays short."""


class PackedImage:
    """A validated image, ready to be shipped or stored.

    Args:
        form: Encoding, or `array` for raw pixels.
        shape: `(H, W, C)`.
        payload: Flat view of the bytes, `[num_bytes]`; not a copy of what was put.
        digest: Content address when it is known; else it is computed when first asked for, so that
            hashing can wait until the bytes are on their way.
    """

    __slots__ = ("_digest", "form", "payload", "shape")

    def __init__(
        self, form: Form, shape: Shape, payload: NDArray[np.uint8], digest: str | None = None
    ) -> None:
        self.form: Form = form
        self.shape = shape
        self.payload = payload
        self._digest = digest

    @property
    def digest(self) -> str:
        """Content address, `DIGEST_CHARS` hex characters."""
        if self._digest is None:
            self._digest = digest_of(self.form, self.shape, self.payload)
        return self._digest

    def __reduce__(self) -> tuple[object, ...]:
        """Pickle with the digest."""
        return PackedImage, (self.form, self.shape, self.payload, self.digest)


class StoredPayload(NamedTuple):
    """One image as it lies in the store."""

    form: Form
    """Encoding, or `array` for raw pixels."""
    shape: Shape
    """`(H, W, C)`."""
    payload: bytes
    """Its bytes, immutable and shared with the store."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageInfo:
    """What a store knows of one key without reading its bytes."""

    key: str
    """The key asked for."""
    form: Form
    """Encoding, or `array` for raw pixels."""
    shape: Shape
    """`(H, W, C)`."""
    num_bytes: int
    """Payload bytes."""
    num_references: int
    """Trajectories that hold a lease on it."""


def pack(data: Image, shape: tuple[int, ...] | None = None) -> PackedImage:
    """Return `data` validated.

    Args:
        data: Encoded bytes, or a uint8 array `[H, W, C]`.
        shape: Declared `(H, W)` or `(H, W, C)`; checked, never needed. Of encoded bytes only
            height and width are compared, because decoders choose the channels.

    Returns:
        The packed image; its payload shares memory with a contiguous `data`.

    Raises:
        TypeError: `data` is neither bytes nor an array (a key, say).
        InvalidImage: Wrong dtype or shape, unknown encoding, or a declared shape that differs.
    """
    if isinstance(data, (bytes, bytearray, memoryview)):
        raw = bytes(data)
        form, actual = read_header(raw)
        _check_declared(actual[:2], shape[:2] if shape is not None else None)
        payload = np.frombuffer(raw, np.uint8)
        return PackedImage(form, actual, payload)
    if not isinstance(data, np.ndarray):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise TypeError(
            f"data must be encoded bytes or a uint8 array [H, W, C], got {type(data).__name__}. "
            "A key is a reference: call get() for its pixels."
        )
    return _pack_array(data, shape)


def _pack_array(data: NDArray[np.uint8], shape: tuple[int, ...] | None) -> PackedImage:
    if data.dtype != np.uint8:
        raise InvalidImage(
            f"array dtype must be uint8, got {data.dtype}. Store pixels, not float patches."
        )
    if data.ndim != 3 or 0 in data.shape:
        raise InvalidImage(f"array shape must be [H, W, C], got {data.shape}. Add the missing dim.")
    height, width, channels = data.shape
    _check_declared((height, width, channels)[: len(shape or ())], shape)
    payload = np.ascontiguousarray(data).reshape(-1)
    return PackedImage("array", (height, width, channels), payload)


def _check_declared(actual: tuple[int, ...], declared: tuple[int, ...] | None) -> None:
    if declared is not None and (len(declared) < 2 or tuple(declared) != actual):
        raise InvalidImage(
            f"shape must be that of the image, {actual}, got {tuple(declared)}. "
            "Give (H, W) or (H, W, C), or leave it out."
        )


def digest_of(form: Form, shape: Shape, payload: NDArray[np.uint8] | bytes) -> str:
    """Return the content address of one image.

    Args:
        form: Its encoding.
        shape: `(H, W, C)`.
        payload: Its bytes, contiguous.

    Returns:
        `DIGEST_CHARS` lower-case hex characters.
    """
    digest = hashlib.sha256(f"{form}:{shape[0]}x{shape[1]}x{shape[2]}:".encode())
    digest.update(memoryview(payload))  # pyright: ignore[reportArgumentType]
    return digest.hexdigest()[:DIGEST_CHARS]


def own_bytes(image: PackedImage) -> bytes:
    """Return the payload as immutable bytes of this process, copied unless it is that already."""
    base = cast("object", image.payload.base)
    if isinstance(base, bytes) and len(base) == image.payload.nbytes:
        return base
    return image.payload.tobytes()


def unpack(form: Form, shape: Shape, payload: bytes) -> Image:
    """Return an image as it was put, without a copy.

    Args:
        form: Its encoding.
        shape: `(H, W, C)`.
        payload: Its bytes.

    Returns:
        `payload` itself when encoded, else a read-only uint8 array `[H, W, C]` over it.
    """
    if form != "array":
        return payload
    return np.frombuffer(payload, np.uint8).reshape(shape)
