"""What travels between a client and a shard: small tuples, payload as flat uint8 views.

A flat view is pickled out of band: Ray writes it into shared memory once and the receiver reads it
there without a copy, until it copies what it keeps and lets go of the view. On one node, payload of
a few screenshots lies in a window instead and the tuples say where.
"""

from typing import Literal, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from awrl_pixelstore.config import PixelStoreConfig
from awrl_pixelstore.errors import PixelStoreUnavailable
from awrl_pixelstore.headers import Shape
from awrl_pixelstore.image import Form

Method: TypeAlias = Literal[
    "put",
    "fetch",
    "missing",
    "describe",
    "acquire",
    "release",
    "transfer",
    "renew",
    "usage",
    "statistics",
    "stop",
]

Seen: TypeAlias = tuple[str, int]
"""Incarnation of a shard and the number of freed keys that a reader knows of."""


class StoreSpec(NamedTuple):
    """What all shards and clients of a store agree on; fixed by whoever creates it first."""

    run_id: str
    """Name of the run."""
    config: PixelStoreConfig
    """Budgets and limits."""
    layout: tuple[str, ...]
    """Ray node id of each shard."""


class Call(NamedTuple):
    """One actor call to be made."""

    shard: int
    """Index of the shard."""
    method: Method
    """Name of its method."""
    arguments: tuple[object, ...]
    """Positional arguments, without `seen`."""
    keys: tuple[str, ...] = ()
    """Keys that an error should name."""


class Reply(NamedTuple):
    """The answer of a shard to any call."""

    value: object
    """The result, or the `PixelStoreError` of an operation that was refused."""
    used_bytes: int
    """Payload bytes held after the call."""
    capacity_bytes: int
    """Payload bytes that can be held; 0 from a shard that is closed or could not start."""
    incarnation: str
    """Changes when the shard's process does."""
    sequence: int
    """Keys freed so far in this incarnation."""
    freed: tuple[str, ...] | None
    """Keys freed since the caller's `seen`; None when unknown or not asked for."""


class WindowAddress(NamedTuple):
    """Where on its node a process finds a window of another."""

    process: int
    """Id of the process that owns it."""
    number: int
    """File number in that process."""
    name: str
    """Unique name of the file."""


class WindowSlice(NamedTuple):
    """Bytes of one image in a window."""

    start: int
    """First byte."""
    num_bytes: int
    """Length."""


class InWindow(NamedTuple):
    """Images that a client puts, whose payload lies in its window."""

    address: WindowAddress
    """The window."""
    images: tuple[tuple[Form, Shape, WindowSlice], ...]
    """Encoding, shape and place of each image; the digests follow into the window's head."""


class WindowUnreachable(NamedTuple):
    """Value of a reply to a put whose window the shard can't reach: nothing was done."""

    reason: str
    """What the system said."""


class FetchedImage(NamedTuple):
    """One image in a `Fetched`."""

    key: str
    """Its key."""
    form: Form
    """Encoding, or `array` for raw pixels."""
    shape: Shape
    """`(H, W, C)`."""
    payload: NDArray[np.uint8] | WindowSlice | bytes
    """Flat bytes, `[num_bytes]`, as Ray carries them; where they are; or a copy of them."""


class Fetched(NamedTuple):
    """What one fetch call brought."""

    images: tuple[FetchedImage, ...]
    """Images found, in the order asked for."""
    missing: tuple[str, ...]
    """Keys not held."""
    rest: tuple[str, ...]
    """Keys not looked at because the call's payload limit was reached."""


Outcome: TypeAlias = Reply | PixelStoreUnavailable
