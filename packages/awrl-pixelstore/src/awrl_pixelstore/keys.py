"""The form of a key: `px-<run tag>-<shard>-<digest>`.

Invariants: a key is an opaque JSON-safe `str`; it is unique across shards, nodes and runs; it
says which shard holds it, so that no directory is asked.
"""

import hashlib
import re
from typing import NamedTuple

from awrl_pixelstore.errors import InvalidKey

RUN_TAG_CHARS = 8
_PATTERN = re.compile(r"px-([0-9a-f]{8})-([0-9]{1,6})-([0-9a-f]{32})")
_RUN_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:@=+-]{0,127}")


class ParsedKey(NamedTuple):
    """The parts of a key."""

    run_tag: str
    """First characters of the hash of the run's id."""
    shard: int
    """Index of the shard that holds it."""
    digest: str
    """Content address of the image."""


def run_tag_of(run_id: str) -> str:
    """Return the short tag that all keys of a run carry.

    Args:
        run_id: Name of the run.

    Returns:
        `RUN_TAG_CHARS` hex characters.

    Raises:
        ValueError: `run_id` is empty, too long, or has characters that a file name can't hold.
    """
    if not _RUN_ID.fullmatch(run_id):
        raise ValueError(
            "run_id must be 1 to 128 letters, digits or ._:@=+-, starting with a letter or digit, "
            f"got {run_id!r}. Use the run's folder name."
        )
    return hashlib.sha256(run_id.encode()).hexdigest()[:RUN_TAG_CHARS]


def make_key(run_tag: str, shard: int, digest: str) -> str:
    """Return the key of one image in one shard.

    Args:
        run_tag: From `run_tag_of`.
        shard: Index of the shard.
        digest: Content address.

    Returns:
        The key.
    """
    return f"px-{run_tag}-{shard}-{digest}"


def parse_key(key: str) -> ParsedKey:
    """Return the parts of a key.

    Args:
        key: What a put returned.

    Returns:
        Its parts.

    Raises:
        TypeError: `key` is not a string (an image, say).
        InvalidKey: The string has not the form of a key.
    """
    if not isinstance(key, str):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise TypeError(
            f"a key must be a str from put(), got {type(key).__name__}. Pass keys, not images."
        )
    match = _PATTERN.fullmatch(key)
    if match is None:
        raise InvalidKey(f"a key must be a string from put(), got {key!r}. Pass it unchanged.")
    return ParsedKey(match[1], int(match[2]), match[3])


def require_trajectory_id(trajectory_id: str) -> None:
    """Pass silently when a trajectory has a name.

    Args:
        trajectory_id: The name.

    Raises:
        ValueError: It is empty.
    """
    if not trajectory_id:
        raise ValueError("trajectory_id must be a name, got ''. Use the episode's id.")
