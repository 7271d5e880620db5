"""What is taken as an image, and how fast the rest is refused."""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np
import pytest
from awrl_pixelstore import InvalidImage
from awrl_pixelstore.image import DIGEST_CHARS, digest_of, pack, unpack
from awrl_pixelstore.wire import NUM_PIECES, PIECE_BYTES, cut, glue, head_of
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

MakeArray = Callable[..., NDArray[np.uint8]]
MakePng = Callable[..., bytes]
PNG = b"\x89PNG\r\n\x1a\n"
TWENTY_MB = 20 * 10**6


@pytest.mark.parametrize(
    "start",
    [
        b"\xff\xd8\xff\xe0\x00\x10JFIF\x00",
        b"\xff\xd8\xff\xdb\x00\x43",
        b"RIFF\x24\0\0\0WEBPVP8 ",
        b"RIFF\x24\0\0\0WEBPVP8L",
        b"RIFF\x24\0\0\0WEBPVP8X",
    ],
)
def test_every_format_is_known_by_its_first_bytes(start: bytes) -> None:
    data = start + bytes(40)
    image = pack(data)
    assert image.shape is None
    assert unpack(image) == data


def test_a_png_is_taken_as_it_is(make_png: MakePng) -> None:
    png = make_png(height=20, width=30)
    for data in (png, bytearray(png), memoryview(png)):
        assert unpack(pack(data)) == png  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize(
    "data",
    [
        b"",
        PNG,
        b"GIF89a" + bytes(40),
        PNG + bytes(4) + b"XXXX" + b"\0\0\0\5\0\0\0\5\x08\x02",
        b"RIFF\0\0\0\0WEBPJUNK" + b"\x05\0" * 20,
        b"\xff\xd8" + bytes(40),
        b"\xff\xd8\xff\x00" + bytes(40),
        b"\xff\xd8\xff\xe0",
    ],
    ids=["empty", "cut", "gif", "png", "webp", "jpeg", "jpeg escape", "cut jpeg"],
)
def test_bytes_that_do_not_begin_like_an_image_are_refused(data: bytes) -> None:
    with pytest.raises(InvalidImage, match=f"must be PNG, JPEG or WebP bytes, got {len(data)} "):
        pack(data)


@pytest.mark.parametrize("start", [b"\xff\xd8", b"\xff\xd8\xff\x00", PNG, b"RIFF\0\0\0\0WEBP"])
def test_a_large_file_that_is_no_image_is_refused_without_being_read(start: bytes) -> None:
    data = start + bytes(TWENTY_MB)
    started = time.process_time()
    with pytest.raises(InvalidImage):
        pack(data)
    assert time.process_time() - started < 0.01


@given(st.binary(max_size=64), st.sampled_from([b"", b"\xff\xd8", PNG, b"RIFF"]))
def test_any_bytes_are_kept_as_they_are_or_refused(data: bytes, start: bytes) -> None:
    try:
        image = pack(start + data)
    except InvalidImage:
        pass
    else:
        assert unpack(image) == start + data


def test_a_digest_tells_form_and_shape_apart() -> None:
    digests = {digest_of(shape, b"abc") for shape in (None, (1, 1, 3), (1, 3, 1), (3, 1, 1))}
    assert len(digests) == 4
    assert {len(digest) for digest in digests} == {DIGEST_CHARS}


def test_an_array_that_comes_back_is_the_readers_own(make_array: MakeArray) -> None:
    image = pack(make_array())
    for _ in range(2):
        back = unpack(image)
        assert isinstance(back, np.ndarray)
        np.testing.assert_array_equal(back, make_array())
        back[:] = 0


@pytest.mark.parametrize(
    "sizes",
    [
        [],
        [1],
        [160_000],
        [PIECE_BYTES] * NUM_PIECES,
        [NUM_PIECES * PIECE_BYTES + 1],
        [5, 100_000, 400_000, 7],
    ],
)
def test_images_come_out_of_their_pieces_as_they_went_in(sizes: list[int]) -> None:
    generator = np.random.default_rng(0)
    images = [pack(generator.integers(0, 256, (size, 1, 1), dtype=np.uint8)) for size in sizes]
    pieces = cut(image.payload for image in images)
    assert len(pieces) == NUM_PIECES
    if sum(sizes) <= NUM_PIECES * PIECE_BYTES:
        assert max(map(len, pieces)) <= PIECE_BYTES
    assert glue(head_of(images), pieces) == images
