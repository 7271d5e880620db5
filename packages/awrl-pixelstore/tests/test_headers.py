"""Sizes from headers alone."""

import struct
from collections.abc import Callable

import pytest
from awrl_pixelstore import InvalidImage
from awrl_pixelstore.headers import read_header
from hypothesis import given
from hypothesis import strategies as st

SIDE = st.integers(1, 16000)


def jpeg(height: int, width: int, *, before: bytes = b"", marker: int = 0xC0) -> bytes:
    frame = struct.pack(">BBHBHHB", 0xFF, marker, 17, 8, height, width, 3) + b"\0" * 9
    return b"\xff\xd8" + before + frame + b"\xff\xd9"


def webp(chunk: bytes, body: bytes) -> bytes:
    return b"RIFF" + struct.pack("<I", 12 + len(body)) + b"WEBP" + chunk + body


def lossy(height: int, width: int) -> bytes:
    return webp(b"VP8 ", struct.pack("<I3s3sHH", 20, b"\0\0\0", b"\x9d\x01\x2a", width, height))


def lossless(height: int, width: int, *, alpha: int) -> bytes:
    bits = (width - 1) | (height - 1) << 14 | alpha << 28
    return webp(b"VP8L", struct.pack("<IBI", 5, 0x2F, bits))


def extended(height: int, width: int, *, flags: int) -> bytes:
    sides = (width - 1).to_bytes(3, "little") + (height - 1).to_bytes(3, "little")
    return webp(b"VP8X", struct.pack("<IB3s", 10, flags, b"\0\0\0") + sides)


@given(height=SIDE, width=SIDE, alpha=st.integers(0, 1))
def test_every_format_tells_its_size(height: int, width: int, alpha: int) -> None:
    segments = b"\xff\xe0" + struct.pack(">H", 4) + b"\xff\xc0" + b"\xff\xff\xd0\xff\xc4\0\2"
    assert read_header(jpeg(height, width)) == ("jpeg", (height, width, 3))
    assert read_header(jpeg(height, width, before=segments, marker=0xC2))[1][:2] == (height, width)
    assert read_header(lossy(height, width)) == ("webp", (height, width, 3))
    assert read_header(lossless(height, width, alpha=alpha)) == ("webp", (height, width, 3 + alpha))
    assert read_header(extended(height, width, flags=alpha << 4)) == (
        "webp",
        (height, width, 3 + alpha),
    )


def test_png_tells_size_and_channels(make_png: Callable[..., bytes]) -> None:
    png = make_png(height=20, width=30)
    assert read_header(png) == ("png", (20, 30, 3))
    gray = png[:25] + b"\0" + png[26:]
    assert read_header(gray) == ("png", (20, 30, 1))


@given(st.binary(max_size=64), st.sampled_from([b"", b"\xff\xd8", b"\x89PNG\r\n\x1a\n", b"RIFF"]))
def test_any_bytes_are_read_or_refused(data: bytes, start: bytes) -> None:
    try:
        _, shape = read_header(start + data)
    except InvalidImage as error:
        assert "must" in str(error)  # noqa: PT017
    else:
        assert min(shape) >= 1


@pytest.mark.parametrize("length", [3, 10, 18])
def test_a_cut_jpeg_is_refused(length: int) -> None:
    with pytest.raises(InvalidImage, match="whole image header"):
        read_header(jpeg(20, 30)[: length if length < 10 else 6])


def test_an_image_without_sides_is_refused() -> None:
    with pytest.raises(InvalidImage, match=r"sides must be >= 1, got \(0, 30, 3\)"):
        read_header(jpeg(0, 30))
