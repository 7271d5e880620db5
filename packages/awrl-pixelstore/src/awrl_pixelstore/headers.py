"""Size of an encoded image from its header alone; nothing is decoded.

Every reader is total: it returns `(form, (height, width, channels))` or raises `InvalidImage`.
Channels are those in the file (PNG palette counts as 3), not those of a decoder's output.
"""

import struct
from typing import Literal, TypeAlias

from awrl_pixelstore.errors import InvalidImage

EncodedForm: TypeAlias = Literal["png", "jpeg", "webp"]
Shape: TypeAlias = tuple[int, int, int]

PNG_SIGNATURE = b"\x89PNG\r\n\x1a\n"
PNG_CHANNELS = {0: 1, 2: 3, 3: 3, 4: 2, 6: 4}
JPEG_START = b"\xff\xd8"
JPEG_FRAMES = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}
JPEG_BARE = frozenset({0x01, *range(0xD0, 0xD9)})


def read_header(data: bytes) -> tuple[EncodedForm, Shape]:
    """Return format and size of encoded bytes.

    Args:
        data: A whole PNG, JPEG or WebP file.

    Returns:
        The form and `(height, width, channels)`.

    Raises:
        InvalidImage: The bytes are none of the three, or their header is cut or empty.
    """
    form: EncodedForm
    try:
        if data.startswith(PNG_SIGNATURE):
            form, shape = "png", _read_png(data)
        elif data.startswith(JPEG_START):
            form, shape = "jpeg", _read_jpeg(data)
        elif data[:4] == b"RIFF" and data[8:12] == b"WEBP":
            form, shape = "webp", _read_webp(data)
        else:
            raise InvalidImage(
                f"data must be PNG, JPEG or WebP bytes, got {len(data)} bytes that start with "
                f"{data[:8]!r}. Put pixels as a uint8 array [H, W, C] instead."
            )
    except (struct.error, IndexError) as error:
        raise InvalidImage(
            f"data must hold a whole image header, got {len(data)} bytes. Check the capture."
        ) from error
    if min(shape) < 1:
        raise InvalidImage(f"image sides must be >= 1, got {shape}. Check the capture.")
    return form, shape


def _read_png(data: bytes) -> Shape:
    width, height, _, color = struct.unpack_from(">IIBB", data, 16)
    return height, width, PNG_CHANNELS.get(color, 0)


def _read_jpeg(data: bytes) -> Shape:
    at = 2
    while True:
        while data[at] != 0xFF:
            at += 1
        while data[at] == 0xFF:
            at += 1
        marker = data[at]
        at += 1
        if marker in JPEG_FRAMES:
            height, width, channels = struct.unpack_from(">HHB", data, at + 3)
            return height, width, channels
        if marker not in JPEG_BARE:
            (length,) = struct.unpack_from(">H", data, at)
            at += max(length, 2)


def _read_webp(data: bytes) -> Shape:
    chunk = data[12:16]
    if chunk == b"VP8X":
        flags = data[20]
        width = 1 + int.from_bytes(data[24:27], "little")
        height = 1 + int.from_bytes(data[27:30], "little")
        if len(data) < 30:
            raise IndexError
        return height, width, 4 if flags & 0x10 else 3
    if chunk == b"VP8L":
        (bits,) = struct.unpack_from("<I", data, 21)
        width, height = 1 + (bits & 0x3FFF), 1 + (bits >> 14 & 0x3FFF)
        return height, width, 4 if bits >> 28 & 1 else 3
    width, height = struct.unpack_from("<HH", data, 26)
    return height & 0x3FFF, width & 0x3FFF, 3
