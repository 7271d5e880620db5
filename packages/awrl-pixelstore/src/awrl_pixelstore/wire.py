"""What travels between a client and a shard: a header of small tuples, and payload in pieces.

Ray carries an argument or a result of up to 100 KiB within the call itself, and makes an object of
its shared memory for a larger one, which takes longer than the copy. So the payload of a screenshot
goes in a few pieces below that limit, and only what is larger than all of them goes as one object,
which both sides copy out of and let go.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple, TypeAlias

from awrl_pixelstore.config import PixelStoreConfig
from awrl_pixelstore.image import PackedImage, Shape

NUM_PIECES = 3
PIECE_BYTES = 96 * 2**10
"""Below Ray's limit with room for what Ray adds."""

Header: TypeAlias = tuple[tuple[str, Shape | None, int], ...]
"""Digest, shape and payload bytes of each image."""


class StoreSpec(NamedTuple):
    """What all shards and clients of a store agree on; fixed by whoever creates it first."""

    run_id: str
    """Name of the run."""
    config: PixelStoreConfig
    """Budgets and limits."""
    layout: tuple[str, ...]
    """Ray node id of each shard."""


class Fetched(NamedTuple):
    """What one fetch call brought, besides the payload."""

    keys: tuple[str, ...]
    """Keys found, in the order asked for."""
    header: Header
    """Their images."""
    missing: tuple[str, ...]
    """Keys not held."""
    rest: tuple[str, ...]
    """Keys not looked at because the call's payload limit was reached."""


def head_of(images: Iterable[PackedImage]) -> Header:
    """Return what has to be known of images besides their payload."""
    return tuple((image.digest, image.shape, len(image.payload)) for image in images)


def cut(payloads: Iterable[bytes]) -> list[bytes]:
    """Return payloads, one behind the other, as `NUM_PIECES` pieces."""
    whole = b"".join(payloads)
    if len(whole) > NUM_PIECES * PIECE_BYTES:
        return [whole] + [b""] * (NUM_PIECES - 1)
    return [whole[at * PIECE_BYTES : (at + 1) * PIECE_BYTES] for at in range(NUM_PIECES)]


def glue(header: Header, pieces: Sequence[bytes]) -> list[PackedImage]:
    """Return the images that a header and the pieces of their payload make."""
    whole = b"".join(piece for piece in pieces if piece)
    images: list[PackedImage] = []
    at = 0
    for digest, shape, num_bytes in header:
        images.append(PackedImage(digest, shape, whole[at : at + num_bytes]))
        at += num_bytes
    return images
