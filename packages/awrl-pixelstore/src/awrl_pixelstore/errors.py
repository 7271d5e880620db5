"""What can go wrong, as types; every error pickles, so it crosses process borders unchanged.

::

    PixelStoreError
    |-- InvalidImage(ValueError)                 a put of something that is no image
    |-- PixelNotFound(KeyError)                  keys that are not (or no longer) held
    |-- PixelStoreFull(MemoryError)              a budget, in memory or on disk, refuses a put
    `-- PixelStoreUnavailable(ConnectionError)   a shard, or its disk, did not answer

An argument that no store could ever take (a key of another form, an empty name) is a plain
`ValueError` or `TypeError`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

MAX_NAMED_KEYS = 5
"""Keys spelled out in a message; the error's `keys` holds all of them."""


def name_keys(keys: Sequence[str]) -> str:
    """Return the first few keys, quoted, and how many more there are."""
    named = ", ".join(repr(key) for key in keys[:MAX_NAMED_KEYS])
    rest = len(keys) - MAX_NAMED_KEYS
    return f"{named} and {rest} more" if rest > 0 else named


def _restore(cls: type[PixelStoreError], message: str, state: dict[str, object]) -> PixelStoreError:
    error = cls.__new__(cls, message)
    error.args = (message,)
    error.__dict__.update(state)
    return error


class PixelStoreError(Exception):
    """Root of all errors of this package. Not raised itself."""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message

    def __str__(self) -> str:
        """Return the message alone (`KeyError` would quote it)."""
        return self.message

    def __reduce__(self) -> tuple[object, ...]:
        """Pickle by message and attributes, whatever the constructor takes."""
        return _restore, (type(self), self.message, dict(self.__dict__))


class InvalidImage(PixelStoreError, ValueError):
    """A put was given neither a uint8 array `[H, W, C]` nor PNG, JPEG or WebP bytes.

    Not raised for an object of a wrong type (that is a `TypeError`), and not for damage behind
    the first bytes: the store does not decode.
    """


class PixelNotFound(PixelStoreError, KeyError):
    """Keys are not held: never put, released, expired, or lost with a killed shard.

    Not raised when it is unknown whether they are held: that is `PixelStoreUnavailable`.

    Attributes:
        keys: Every key that is not held, in the order asked for.
        found: What the same call did find, by key.
    """

    def __init__(
        self, keys: Sequence[str], *, found: Mapping[str, bytes | NDArray[np.uint8]]
    ) -> None:
        self.keys = tuple(keys)
        self.found = dict(found)
        super().__init__(
            f"every key must be held, got {len(self.keys)} that are not: {name_keys(self.keys)}. "
            "Ask missing() before use and refill the trajectories concerned."
        )


# MemoryError comes first: it allocates by itself, and unpickling needs its allocator.
class PixelStoreFull(MemoryError, PixelStoreError):
    """A put does not fit the budget. The store goes on; nothing of the call was stored.

    Not raised for a put whose content the store already holds.

    Attributes:
        shard: Index of the shard that refused.
        tier: Which budget refused.
        requested_bytes: New bytes of the call.
        used_bytes: Bytes held.
        limit_bytes: The budget; a full file system refuses below it.
    """

    def __init__(
        self,
        *,
        shard: int,
        tier: Literal["memory", "disk"],
        requested_bytes: int,
        used_bytes: int,
        limit_bytes: int,
        reason: str = "",
    ) -> None:
        self.shard = shard
        self.tier: Literal["memory", "disk"] = tier
        self.requested_bytes = requested_bytes
        self.used_bytes = used_bytes
        self.limit_bytes = limit_bytes
        PixelStoreError.__init__(
            self,
            f"a put must fit the {tier} budget of {limit_bytes} bytes of shard {shard}, got "
            f"{requested_bytes} bytes on top of {used_bytes}{f' ({reason})' if reason else ''}. "
            "Release trajectories, raise the budget, or consult pressure() at admission.",
        )


class PixelStoreUnavailable(PixelStoreError, ConnectionError):
    """A shard did not answer: dead, restarting, stuck, closed, or its disk fails.

    Not raised for keys that a living shard does not hold, nor for a full disk (`PixelStoreFull`).

    Attributes:
        shard: Index of the shard, or None when the store as a whole is meant.
        keys: Keys of the call, when it had any.
        limit_s: Seconds that were granted.
        is_gone: True when the shard is known to be dead for good: what it held is lost.
    """

    def __init__(
        self,
        reason: str,
        *,
        shard: int | None = None,
        keys: Sequence[str] = (),
        limit_s: float | None = None,
        is_gone: bool = False,
    ) -> None:
        self.shard = shard
        self.keys = tuple(keys)
        self.limit_s = limit_s
        self.is_gone = is_gone
        where = "the store" if shard is None else f"shard {shard}"
        within = "" if limit_s is None else f" within {limit_s:g} s"
        about = f" Keys: {name_keys(self.keys)}." if self.keys else ""
        super().__init__(f"{where} must answer{within}, got {reason}.{about}")
